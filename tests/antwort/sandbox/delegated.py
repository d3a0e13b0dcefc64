"""Run by root: run Python in a control group of version 2, made for it alone, and remove it afterwards.

Usage: delegated.py HOW UID CODE
HOW is a comma-separated list of: owned (the group is the user's), marked (as systemd marks what it hands over),
shared (a stranger is in it). The tree is mounted over /sys/fs/cgroup in a mount namespace that nobody else sees, and
the code finds in NEEDED which controllers there are: memory and pids where version 1 has not taken them.
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
NOTHING_TO_LEND = 77


def mount_tree() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    must(libc.unshare(CLONE_NEWNS))
    must(libc.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_REC), None))
    must(libc.mount(b"cgroup2", str(TREE).encode(), b"cgroup2", ctypes.c_ulong(0), None))


def controllers() -> set[str]:
    there = set((TREE / "cgroup.controllers").read_text().split())
    return {"memory", "pids"} if {"memory", "pids"} <= there else set(sorted(there)[:1])


def remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while group.exists() and time.monotonic() < deadline:
        for directory in sorted(group.rglob("*"), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                directory.rmdir()  # files refuse, and vanish with their directory
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.01)


def main(how: set[str], uid: int, code: str) -> int:
    mount_tree()
    needed = controllers()
    if not needed:
        return NOTHING_TO_LEND
    switched = needed - set((TREE / "cgroup.subtree_control").read_text().split())
    group = TREE / f"antwort-test-{os.getpid()}"
    stranger = subprocess.Popen(["sleep", "600"]) if "shared" in how else None
    try:
        for name in switched:
            (TREE / "cgroup.subtree_control").write_text(f"+{name}")
        group.mkdir()
        if stranger is not None:
            (group / "cgroup.procs").write_text(str(stranger.pid))
        if "marked" in how:
            os.setxattr(group, "user.delegate", b"1")
        if "owned" in how:
            for path in (group, *(group / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
                os.chown(path, uid, uid)
        shown = [str(path) for path in {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}]
        script = Path(__file__).with_name("as_user.py")
        command = [sys.executable, str(script), str(uid), *shown, "--", sys.executable, "-c", code]
        if uid == 0:
            command = [sys.executable, "-c", code]
        environment = {**os.environ, "NEEDED": " ".join(needed), "PYTHONPATH": str(REPOSITORY / "src")}
        enter = (
            f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write('0'); os.execv({command[0]!r}, {command!r})"
        )
        return subprocess.run([sys.executable, "-c", enter], env=environment, check=False).returncode
    finally:
        if stranger is not None:
            stranger.kill()
            stranger.wait()
        remove(group)
        for name in switched:
            with contextlib.suppress(OSError):  # another run of these tests may be using it
                (TREE / "cgroup.subtree_control").write_text(f"-{name}")


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1].split(",")), int(sys.argv[2]), sys.argv[3]))
