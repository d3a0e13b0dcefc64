"""Ends the processes of a CLI session: the CLI itself, its commands, and what they left in the background.

A session has directories of its own, and their names are in the environment of its processes. So the processes are
found without the risk of ending any other: not by name, and not by a pid that another process has by now.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def end_processes(variable: str, value: str) -> list[int]:
    """Kill the processes of this user that have this environment variable; return their ids. Linux only."""
    if not (hasattr(os, "pidfd_open") and _PROC.is_dir()):
        return []
    marker = f"{variable}={value}".encode()
    ended: list[int] = []
    while found := [pid for pid in _pids() if pid not in ended and pid != os.getpid() and _kill(pid, marker)]:
        ended += found  # again, for processes that were started meanwhile
    return ended


def remove_daemon_directory() -> None:
    """Remove the directory that every CLI of this user creates outside of its own directories, unless it is in use."""
    if hasattr(os, "getuid"):
        with suppress(OSError):
            Path(f"/tmp/cc-daemon-{os.getuid()}").rmdir()  # noqa: S108 - the name is given by the CLI


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _kill(pid: int, marker: bytes) -> bool:
    if not _has_variable(pid, marker):
        return False
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _has_variable(pid, marker):  # the descriptor is of this process, not of a later one with its pid
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def _has_variable(pid: int, marker: bytes) -> bool:
    try:
        return marker in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or belongs to another user
