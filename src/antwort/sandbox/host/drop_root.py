"""Drop root: bind-mount the paths that a jail needs, setuid to an ordinary user, exec bubblewrap.

Run by root only. A Python below `/root` is not readable for the user that a zygote runs as, and changing permissions
would change the host. So the paths are bind-mounted below one directory in a private mount namespace; then all
privileges are dropped and bubblewrap is executed. It is a separate program without imports of the package.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from typing import Any, Final

BIND_ROOT: Final = "/mnt"
_CLONE_NEWNS: Final = 0x00020000
_MS_BIND_REC: Final = 4096 | 16384
_MS_PRIVATE_REC: Final = (1 << 18) | 16384


def main(request: dict[str, Any]) -> None:
    """Bind-mount `sources`, become `uid`, execute `argv`; does not return."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.unshare(_CLONE_NEWNS), "unshare")
    check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_PRIVATE_REC), None), "make private")
    # Opened before BIND_ROOT is covered: a source may be below it.
    opened = [os.open(source, os.O_PATH) for source in request["sources"]]
    check(libc.mount(b"tmpfs", BIND_ROOT.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=0755"), "mount tmpfs")
    for i, descriptor in enumerate(opened):
        target = f"{BIND_ROOT}/{i}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target)  # noqa: PTH102 - no import that is not needed
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        source = f"/proc/self/fd/{descriptor}".encode()
        check(libc.mount(source, target.encode(), None, ctypes.c_ulong(_MS_BIND_REC), None), f"bind {i}")
        os.close(descriptor)
    os.setgroups([])
    os.setresgid(request["uid"], request["uid"], request["uid"])
    os.setresuid(request["uid"], request["uid"], request["uid"])
    os.execve(request["argv"][0], request["argv"], {})  # noqa: S606 - the purpose of this program


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
