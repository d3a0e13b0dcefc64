"""Run Python in a new cgroup of the v2 hierarchy and remove the cgroup afterwards. Run by root.

Usage: delegated.py HOW UID CODE
HOW is a comma-separated list of: owned (by the user), marked (as systemd marks delegated cgroups), shared (another
process is in it). The hierarchy is mounted on /sys/fs/cgroup in a private mount namespace. REQUIRED in the environment
of the code lists the available controllers: memory and pids where v1 has not taken them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_PRIVATE_REC = (1 << 18) | 16384
TREE = Path("/sys/fs/cgroup")
REPOSITORY = Path(__file__).parents[3]
NO_CONTROLLERS = 77


def mount_tree() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_REC), None))
    check(libc.mount(b"cgroup2", str(TREE).encode(), b"cgroup2", ctypes.c_ulong(0), None))


def controllers() -> set[str]:
    available = set((TREE / "cgroup.controllers").read_text().split())
    return {"memory", "pids"} if {"memory", "pids"} <= available else set(sorted(available)[:1])


def remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 10
    while cgroup.exists() and time.monotonic() < deadline:
        for directory in sorted(cgroup.rglob("*"), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                directory.rmdir()  # fails for files, which disappear with their directory
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        time.sleep(0.01)


def main(how: set[str], uid: int, code: str) -> int:
    mount_tree()
    required = controllers()
    if not required:
        return NO_CONTROLLERS
    switched = required - set((TREE / "cgroup.subtree_control").read_text().split())
    cgroup = TREE / f"antwort-test-{os.getpid()}"
    other = subprocess.Popen(["sleep", "600"]) if "shared" in how else None
    try:
        for name in switched:
            (TREE / "cgroup.subtree_control").write_text(f"+{name}")
        cgroup.mkdir()
        if other is not None:
            (cgroup / "cgroup.procs").write_text(str(other.pid))
        if "marked" in how:
            os.setxattr(cgroup, "user.delegate", b"1")
        if "owned" in how:
            for path in (cgroup, *(cgroup / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
                os.chown(path, uid, uid)
        shown = [str(path) for path in {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}]
        script = Path(__file__).with_name("as_user.py")
        command = [sys.executable, str(script), str(uid), *shown, "--", sys.executable, "-c", code]
        if uid == 0:
            command = [sys.executable, "-c", code]
        environment = {**os.environ, "REQUIRED": " ".join(required), "PYTHONPATH": str(REPOSITORY / "src")}
        enter = (
            f"import os; open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0'); os.execv({command[0]!r}, {command!r})"
        )
        return subprocess.run([sys.executable, "-c", enter], env=environment, check=False).returncode
    finally:
        if other is not None:
            other.kill()
            other.wait()
        remove(cgroup)
        for name in switched:
            with contextlib.suppress(OSError):  # another run of these tests may be using it
                (TREE / "cgroup.subtree_control").write_text(f"-{name}")


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1].split(",")), int(sys.argv[2]), sys.argv[3]))
