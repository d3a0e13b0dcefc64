"""Run by root only: show an ordinary user just the places that a jail needs, then become that user.

A Python below `/root` cannot be reached by the user that a zygote runs as, and opening the directory up would change
the host. So the places are bound, in a mount namespace of our own that nobody else sees, below one directory; then
every privilege is given up and bubblewrap takes over. A program of its own, since it is run before all imports.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from typing import Any, Final

PLACE: Final = "/mnt"
_CLONE_NEWNS: Final = 0x00020000
_MS_BIND_REC: Final = 4096 | 16384
_MS_PRIVATE_REC: Final = (1 << 18) | 16384


def main(order: dict[str, Any]) -> None:
    """Do what the order says; does not return."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    must(libc.unshare(_CLONE_NEWNS), "unshare")
    must(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_PRIVATE_REC), None), "make private")
    # Opened before PLACE is covered: a source may lie below it.
    opened = [os.open(source, os.O_PATH) for source in order["sources"]]
    must(libc.mount(b"tmpfs", PLACE.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=0755"), "stage")
    for i, descriptor in enumerate(opened):
        target = f"{PLACE}/{i}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target)  # noqa: PTH102 - no import that is not needed
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        source = f"/proc/self/fd/{descriptor}".encode()
        must(libc.mount(source, target.encode(), None, ctypes.c_ulong(_MS_BIND_REC), None), f"bind {i}")
        os.close(descriptor)
    os.setgroups([])
    os.setresgid(order["uid"], order["uid"], order["uid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    os.execve(order["argv"][0], order["argv"], {})  # noqa: S606 - what it is for


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
