"""Namespaces: a fork into new ones, with CPython's fork hooks, and their setup.

`os.fork` takes no flags, `os.unshare` is newer than the oldest supported Python, and with it a pid namespace applies
only to the children of the caller. So this is one raw `clone`, with CPython's hooks called before and after.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Final

from . import syscalls

CLONE_NEWNS: Final = 0x00020000  # its own mounts
CLONE_NEWUTS: Final = 0x04000000  # host name
CLONE_NEWIPC: Final = 0x08000000  # System V and POSIX message queues
CLONE_NEWUSER: Final = 0x10000000  # capabilities have no effect outside
CLONE_NEWPID: Final = 0x20000000  # sees and signals no other process; all die with its first process
CLONE_NEWNET: Final = 0x40000000  # no interface but loopback
CLONE_PIDFD: Final = 0x00001000

ALL_NAMESPACES: Final = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_TCP_BUFFERS: Final = "4096 65536 131072"  # minimum, default and maximum bytes per socket


def fork(flags: int = ALL_NAMESPACES) -> tuple[int, int]:
    """Fork into new namespaces; returns `(pid, pidfd)` in the parent and `(0, -1)` in the child.

    The child has not run the C library's fork handlers: it must fork once more with `os.fork` before it does
    anything that relies on them. (`child` does: the first process stays as init, its child becomes the interpreter.)
    """
    pidfd = ctypes.c_int(-1)
    hooks = ctypes.pythonapi
    hooks.PyOS_BeforeFork()
    try:
        pid = syscalls.call("clone", flags | CLONE_PIDFD | signal.SIGCHLD, None, ctypes.addressof(pidfd), None, 0)
    except OSError:
        hooks.PyOS_AfterFork_Parent()
        raise
    if pid == 0:
        hooks.PyOS_AfterFork_Child()
        return 0, -1
    hooks.PyOS_AfterFork_Parent()
    return pid, pidfd.value


def map_user(uid: int, gid: int) -> None:
    """Map exactly one user and one group, to the same ids outside. Never root, so no program gains privileges."""
    # The kernel requires setgroups to be denied first, or a process could drop a group that denies it access.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def forbid_nested_user_namespaces() -> None:
    """Forbid nested user namespaces, so that even a gap in the seccomp filter yields no new capabilities."""
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def bring_up_loopback() -> None:
    """Enable the loopback interface, for a server and its client inside the container; there is no other one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def limit_tcp_buffers() -> None:
    """Limit TCP buffers: loopback needs no large ones, and all TCP sockets of the host share one budget."""
    for name in ("tcp_rmem", "tcp_wmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text(_TCP_BUFFERS)


def set_hostname(name: str) -> None:
    """Set the container's own host name."""
    encoded = name.encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sethostname(encoded, len(encoded)) != 0:
        raise OSError(ctypes.get_errno(), f"sethostname: {os.strerror(ctypes.get_errno())}")
