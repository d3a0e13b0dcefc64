"""Files of agents: the `Filesystem` port, its implementations, and mounts. Knows nothing of prompts or providers.

    protocol    what a filesystem is: `Filesystem`, `FileStat`, `GrepMatch`
    paths       what a path is: `VfsPath`, and the one validation
    base        `FilesystemBase`: all of the port from six primitives (`patterns`, `faults`)
    memory      `InMemoryFilesystem`
    host        `HostFilesystem`, over descriptors (`beneath`) with undo (`journal`)
    mounts      `HostMount`; `materialize` plans (`mount_plan`), then copies (`mount_copy`)
    conformance the tests that every filesystem must pass, a stranger's too

What touches the disk is loaded on first use: most programs that import this room only name its types.
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
    from weakincentives.filesystem.journal import HostSnapshot
    from weakincentives.filesystem.mounts.copy import materialize

_HOMES = {"HostFilesystem": "host", "HostSnapshot": "journal", "materialize": "mounts.copy"}

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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
