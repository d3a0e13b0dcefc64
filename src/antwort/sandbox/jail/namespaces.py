"""A fork into new namespaces, around CPython's own fork hooks.

`os.fork` cannot pass flags and `os.unshare` is newer than our oldest Python, and a pid namespace would take hold only
for the children of the process that unshares it. So: one raw `clone`, told to CPython before and after.
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

CLONE_NEWNS: Final = 0x00020000  # mounts: its own view of the file tree
CLONE_NEWUTS: Final = 0x04000000  # host name
CLONE_NEWIPC: Final = 0x08000000  # System V and POSIX message queues
CLONE_NEWUSER: Final = 0x10000000  # capabilities mean nothing outside
CLONE_NEWPID: Final = 0x20000000  # sees and signals nobody else; all of it dies with its first process
CLONE_NEWNET: Final = 0x40000000  # no interface but loopback
CLONE_PIDFD: Final = 0x00001000

ALL: Final = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_TCP_BUFFERS: Final = "4096 65536 131072"  # least, first and most bytes per socket


def fork(flags: int = ALL) -> tuple[int, int]:
    """Fork into new namespaces; answers `(pid, pidfd)` to the parent and `(0, -1)` to the child.

    The child has not run the C library's fork handlers: it must fork once more, ordinarily, before it does
    anything that relies on them. (`cell` does: the first process stays as init, its child becomes the interpreter.)
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


def become_somebody(uid: int, gid: int) -> None:
    """Map exactly one user and one group, themselves onto themselves. Never root: no program can gain by it."""
    # The kernel demands that setgroups is given up first, or a process could shed a group that denies it something.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def forbid_nested_users() -> None:
    """No user namespace below this one, so that even a hole in the system-call filter yields no new capabilities."""
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def raise_loopback() -> None:
    """Loopback inside the container works (a test server and its client); there is nothing else to reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def shrink_buffers() -> None:
    """Loopback needs no large buffers, and all TCP of the host shares one budget, whoever fills it."""
    for name in ("tcp_rmem", "tcp_wmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text(_TCP_BUFFERS)


def name_host(name: str) -> None:
    """Give the container a host name of its own."""
    os_name = name.encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sethostname(os_name, len(os_name)) != 0:
        raise OSError(ctypes.get_errno(), f"sethostname: {os.strerror(ctypes.get_errno())}")
