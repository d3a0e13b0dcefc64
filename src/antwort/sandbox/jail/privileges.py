"""Capabilities and no_new_privs: dropped in every set, and not regained by executing a program."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from . import syscalls

_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    # Effective, permitted, inheritable; twice, for capabilities 0-31 and 32-63. All zero: none.
    _fields_ = tuple((f"word{i}", ctypes.c_uint32) for i in range(6))


def prctl(option: int, *arguments: int) -> int:
    """Make the system call, or raise `OSError` that names the option."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    result: int = _libc.prctl(option, *(ctypes.c_ulong(a) for a in padded))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
    return result


def set_no_new_privs() -> None:
    """No setuid program or file capability can raise privileges; Landlock and seccomp require it, too."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop every capability; the bounding set first, since that needs one."""
    capability = 0
    while True:
        try:
            prctl(_PR_CAPBSET_READ, capability)
        except OSError:
            break  # past the last capability of this kernel
        prctl(_PR_CAPBSET_DROP, capability)
        capability += 1
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.call("capset", _Header(_CAPABILITY_VERSION_3, 0), _Sets())


def raise_oom_score() -> None:
    """If the whole host runs out of memory, the OOM killer prefers a container over the server."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def clear_dumpable() -> None:
    """No other process can read or change this one's memory, or read its environment, through /proc."""
    prctl(_PR_SET_DUMPABLE, 0)


def set_dumpable() -> None:
    """Undo that, for a process that has nothing to hide. Without it a process cannot read its own files in /proc."""
    prctl(_PR_SET_DUMPABLE, 1)
