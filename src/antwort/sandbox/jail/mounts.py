"""Mounts of a container, on top of the zygote's read-only root.

Every writable directory is a tmpfs: the kernel limits its size and number of files, nothing is on a disk, and it
disappears with the mount namespace, whatever the code did. Its pages count as the container's memory.
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
SESSION_PACKAGES: Final = "/opt/session-packages"

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Make the system call, or raise `OSError` that names the file system and the target."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} on {target}: {os.strerror(code)}")


def mount_private_filesystems() -> None:
    """Mount private file systems over everything that is writable or shared with other containers."""
    # A new /proc belongs to the new pid namespace: it shows the container's processes only.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for target in (DATA, TMP, SHM):
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=64,mode=0700")
    # Its own pseudo-terminals: otherwise containers would share them and could read each other's.
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")


def set_quota(target: str, size_bytes: int, files: int) -> None:
    """Set the quota of one of the container's tmpfs mounts."""
    # The mode is repeated: a remount without it keeps the first one only on some kernels.
    mount("tmpfs", target, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, f"size={size_bytes},nr_inodes={files},mode=0700")


def make_zero_unmappable() -> None:
    """Mount /dev/full, which reads the same, over /dev/zero: a shared mapping of the latter is uncounted memory."""
    mount("/dev/full", "/dev/zero", "", MS_BIND)


def mount_packages(digest: str | None, session_packages: str | None) -> None:
    """Mount this container's packages and its session packages read-only; hide those of other containers."""
    for source, target in ((digest, SITE), (session_packages, SESSION_PACKAGES)):
        if source is not None:
            mount(f"{PACKAGES}/{source}", target, "", MS_BIND)
            mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount("tmpfs", PACKAGES, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=2,mode=0555")
