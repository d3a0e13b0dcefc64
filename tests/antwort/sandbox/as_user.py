"""Run a command as an ordinary user who can read it, whatever the permissions above it. Run by root.

Usage: as_user.py UID DIRECTORY... -- COMMAND...
A private mount namespace makes the directories accessible (a Python below /root is not) without changing the host.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_BIND_REC = 4096 | 16384
MS_PRIVATE_REC = (1 << 18) | 16384


def main(uid: int, directories: list[Path], command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_REC), None))
    closed = {parent for d in directories for parent in d.parents if not parent.stat().st_mode & 0o001}
    for parent in sorted(closed, key=lambda path: len(path.parts)):
        inside = [d for d in directories if d.is_relative_to(parent)]
        opened = [os.open(d, os.O_PATH) for d in inside]
        check(libc.mount(b"tmpfs", str(parent).encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=0755"))
        for directory, descriptor in zip(inside, opened, strict=True):
            directory.mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{descriptor}".encode()
            check(libc.mount(source, str(directory).encode(), None, ctypes.c_ulong(MS_BIND_REC), None))
            os.close(descriptor)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(command[0], command)  # noqa: S606 - no shell


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(int(sys.argv[1]), [Path(word) for word in sys.argv[2:split]], sys.argv[split + 1 :])
