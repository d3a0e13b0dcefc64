"""Landlock: the kernel refuses access to every file that is not listed here, whatever is mounted.

A second layer behind the mount namespace. It also hides what a new /proc still reveals: the mount table
(`/proc/self/mountinfo` names directories of the host), cgroups, and the files of processes other than the container's
own interpreter.

Without namespaces it is the only layer, and the files are those of the server: `SHARED_RULES` name less.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from . import mounts, syscalls

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REMOVE_DIR: Final = 1 << 4
REMOVE_FILE: Final = 1 << 5
MAKE_CHAR: Final = 1 << 6
MAKE_DIR: Final = 1 << 7
MAKE_REG: Final = 1 << 8
MAKE_SOCK: Final = 1 << 9
MAKE_FIFO: Final = 1 << 10
MAKE_BLOCK: Final = 1 << 11
MAKE_SYM: Final = 1 << 12
REFER: Final = 1 << 13  # ABI 2: rename and link between directories
TRUNCATE: Final = 1 << 14  # ABI 3
IOCTL_DEV: Final = 1 << 15  # ABI 5

SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0  # ABI 6: no abstract sockets outside
SCOPE_SIGNAL: Final = 1 << 1  # ABI 6: no signals to processes outside

READ: Final = READ_FILE | READ_DIR | EXECUTE
# Everything but creating devices, for which the container lacks the capability anyway.
READ_WRITE: Final = (
    READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
) | REFER | TRUNCATE  # fmt: skip
DEVICE: Final = READ_FILE | WRITE_FILE | IOCTL_DEV
_FILE_ONLY: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

_SCOPES_SINCE: Final = 6
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

# What programs read in /proc to size themselves. No other file in it can be opened.
_PROC_GLOBAL: Final = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version")
_PROC_OWN: Final = ("status", "stat", "statm", "maps", "smaps_rollup", "cmdline", "comm", "limits", "fd")

RULES: Final[tuple[tuple[str, int], ...]] = (
    # Directories may be listed everywhere: the root contains only what bubblewrap mounted.
    ("/", READ_DIR),
    *(
        (path, READ)
        for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt/python", "/opt/stack")
    ),
    (mounts.SITE, READ),
    (mounts.SESSION_PACKAGES, READ),
    *((path, READ_WRITE) for path in (mounts.DATA, mounts.TMP, mounts.SHM)),
    *((f"/dev/{name}", DEVICE) for name in ("null", "zero", "full", "random", "urandom", "tty")),
    ("/dev/pts", DEVICE | READ_DIR),
    *((f"/proc/{name}", READ_FILE) for name in _PROC_GLOBAL),
)


_ETC_FILES: Final = (
    *("ld.so.cache", "fonts", "alternatives", "localtime", "passwd", "group", "hosts", "nsswitch.conf", "mime.types"),
    "gitconfig",
    *("ssl/openssl.cnf", "ssl/certs", "pki/tls/certs", "os-release"),
)

SHARED_RULES: Final[tuple[tuple[str, int], ...]] = (
    # No directory can be listed but these, and nothing is writable: the container's own directories are added.
    *((path, READ) for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")),
    *((f"/etc/{name}", READ) for name in _ETC_FILES),
    *((f"/dev/{name}", DEVICE) for name in ("null", "zero", "full", "random", "urandom")),
    *((f"/proc/{name}", READ_FILE) for name in _PROC_GLOBAL),
)
"""Rules where the root directory is that of the server."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The Landlock ABI version of this kernel; 0 without Landlock."""
    try:
        return syscalls.call("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except (OSError, syscalls.UnknownMachine):
        return 0


def scopes_signals() -> bool:
    """Whether this kernel's Landlock keeps signals from processes outside."""
    return abi() >= _SCOPES_SINCE


def handled_access(version: int) -> int:
    """All file access rights that this ABI version can restrict."""
    access = (1 << 13) - 1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if version >= since:
            access |= right
    return access


def restrict(rules: tuple[tuple[str, int], ...]) -> None:
    """Restrict this process and its descendants to the access that the rules list. Needs no_new_privs."""
    version = abi()
    access = handled_access(version)
    # No network rules (ABI 4): the network namespace has only loopback, and without one there are no sockets.
    scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= _SCOPES_SINCE else 0
    attributes = _RulesetAttr(access, 0, scoped)
    # Older kernels have a shorter structure and refuse unknown bytes that are set, so only what is used is passed.
    length = 24 if scoped else 8
    ruleset = syscalls.call("landlock_create_ruleset", attributes, length, 0)
    try:
        for path, right in rules:
            _allow(ruleset, path, right & access)
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def own_proc_rules(pid: int) -> tuple[tuple[str, int], ...]:
    """What the interpreter may read of its own /proc entry; not `mountinfo`, `environ`, `mem` or `cgroup`."""
    return tuple((f"/proc/{pid}/{name}", READ_FILE | READ_DIR) for name in _PROC_OWN)


def _allow(ruleset: int, path: str, right: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # /lib32, /sbin and the like are not on every distribution
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112 - a descriptor, not a path
            right &= _FILE_ONLY
        syscalls.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, _PathBeneath(right, descriptor), 0)
    finally:
        os.close(descriptor)
