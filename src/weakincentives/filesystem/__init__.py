"""Virtual filesystem: the `Filesystem` protocol, its implementations, and host mounts.

    protocol       `Filesystem`, `FileStat`, `GrepMatch`
    paths          path validation, `VfsPath`
    base           `FilesystemBase`: derives the protocol from six primitive methods
    errors         the error messages that all implementations share
    glob_patterns  glob patterns of `Filesystem.glob` and `grep`
    regex_timeout  regular expressions with a timeout
    memory         `InMemoryFilesystem`
    host           `HostFilesystem`: a host directory, with path resolution by `openat` and an `undo_log` for snapshots
    mounts         `HostMount`; `materialize` plans and copies host files
    tar            tar archives as streams

`weakincentives.testing.FilesystemConformance` is the conformance suite of implementations. Modules that access the disk
are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from weakincentives.filesystem.base import FilesystemBase
from weakincentives.filesystem.memory import InMemoryFilesystem, MemorySnapshot
from weakincentives.filesystem.mounts.mount import HostMount, HostMountPreview
from weakincentives.filesystem.paths import VfsPath
from weakincentives.filesystem.protocol import FileStat, Filesystem, GrepMatch

if TYPE_CHECKING:
    from weakincentives.filesystem.host import HostFilesystem
    from weakincentives.filesystem.mounts.copy import materialize
    from weakincentives.filesystem.undo_log import HostSnapshot

_LAZY_MODULES = {"HostFilesystem": "host", "HostSnapshot": "undo_log", "materialize": "mounts.copy"}

__all__ = [
    "FileStat",
    "Filesystem",
    "FilesystemBase",
    "GrepMatch",
    "HostFilesystem",
    "HostMount",
    "HostMountPreview",
    "HostSnapshot",
    "InMemoryFilesystem",
    "MemorySnapshot",
    "VfsPath",
    "materialize",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)
    globals()[name] = value
    return value
