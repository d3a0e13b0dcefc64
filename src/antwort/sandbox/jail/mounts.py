"""The container's own mounts, laid over the zygote's read-only tree.

Every writable place is a tmpfs: its size and its number of files are limited by the kernel, nothing of it is on a
disk, and it is gone with the mount namespace, whatever the code did. Its pages count as the container's memory.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18

DATA: Final = "/mnt/data"
TMP: Final = "/tmp"  # noqa: S108 - the container's own, a fresh tmpfs
SHM: Final = "/dev/shm"  # noqa: S108 - the same reason
PACKAGES: Final = "/opt/packages"
SITE: Final = "/opt/site"
ANNEX: Final = "/opt/annex"

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """The system call, or `OSError` that says what and where."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} on {target}: {os.strerror(code)}")


def lay() -> None:
    """Cover every place that is writable or shared with something that is the container's alone."""
    # A fresh /proc belongs to the new pid namespace: it shows the container's processes and nobody else's.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for place in (DATA, TMP, SHM):
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=64,mode=0700")
    # Its own terminals: without this, siblings would share one set and could read each other's.
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")


def size(place: str, size_bytes: int, files: int) -> None:
    """Set the quota of one of the container's places."""
    # A mode is repeated because a remount without it would keep the first one only on some kernels.
    mount("tmpfs", place, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, f"size={size_bytes},nr_inodes={files},mode=0700")


def make_zero_unmappable() -> None:
    """Cover /dev/zero with /dev/full, which reads the same: mapped and shared, the former is memory of nobody."""
    mount("/dev/full", "/dev/zero", "", MS_BIND)


def show_packages(digest: str | None, annex: str | None) -> None:
    """Show this container its own packages, those it has and those it may get, read-only; hide everybody else's."""
    for source, target in ((digest, SITE), (annex, ANNEX)):
        if source is not None:
            mount(f"{PACKAGES}/{source}", target, "", MS_BIND)
            mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount("tmpfs", PACKAGES, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=2,mode=0555")
