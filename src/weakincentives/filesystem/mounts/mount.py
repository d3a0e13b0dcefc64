"""`HostMount`: declares host files that are copied into a workspace; see `plan` and `copy`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import InvalidPathError, WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem.paths import VfsPath


@dataclass(frozen=True, slots=True, init=False)
class HostMount:
    """Host files to copy into a workspace.

    `host_path`: a file or a directory; absolute, or relative to one of the allowed host roots (or to the working
        directory if it is in one).
    `mount_path`: the path in the workspace; by default the name of `host_path`. `"."` is the workspace's root, and so
        is a leading `/`. It cannot leave the workspace.
    `include_glob`, `exclude_glob`: gitignore patterns, except that a pattern with a `/` in its middle matches at every
        depth too: `.git/*`, `*.pyc`, `**/__pycache__/**`, `build/`. A leading `/` anchors it at the mounted directory.
        Without include patterns everything is included; exclude takes precedence. Patterns do not apply to a mount of
        a single file.
    `max_bytes`: a larger mount is an error, before anything is copied. `None` means no limit.
    `follow_symlinks`: by default symbolic links are skipped. If set, they are followed if their target is in an allowed
        root; a target elsewhere is an error, and broken or circular links are skipped.

    FIFOs, sockets, devices and empty directories are always skipped.

    >>> HostMount("repo", "/workspace/repo", exclude_glob=".git/*").mount_path.segments
    ('workspace', 'repo')
    """

    host_path: str
    mount_path: VfsPath | None
    include_glob: tuple[str, ...]
    exclude_glob: tuple[str, ...]
    max_bytes: int | None
    follow_symlinks: bool

    def __init__(
        self,
        host_path: str | os.PathLike[str],
        mount_path: str | VfsPath | None = None,
        include_glob: str | Iterable[str] = (),
        exclude_glob: str | Iterable[str] = (),
        max_bytes: int | None = None,
        follow_symlinks: bool = False,  # noqa: FBT001, FBT002 — a dataclass field
    ) -> None:
        host_path = os.fspath(host_path)
        if not host_path or "\0" in host_path:
            raise WorkspaceError(f"host_path {host_path!r} is not a path; pass the file or directory to mount")
        if max_bytes is not None and max_bytes < 0:
            raise WorkspaceError(f"max_bytes is {max_bytes}; pass None for no limit")
        # A frozen dataclass whose constructor accepts more types than its fields have.
        assign = object.__setattr__
        assign(self, "host_path", host_path)
        assign(self, "mount_path", None if mount_path is None else _to_workspace_path(mount_path))
        assign(self, "include_glob", _patterns(include_glob))
        assign(self, "exclude_glob", _patterns(exclude_glob))
        assign(self, "max_bytes", max_bytes)
        assign(self, "follow_symlinks", follow_symlinks)


@dataclass(frozen=True, slots=True)
class HostMountPreview:
    """The result of one mount. `entries` are its files, relative to `mount_path`, sorted."""

    host_path: str
    resolved_host: Path
    mount_path: str
    entries: tuple[str, ...]
    is_directory: bool
    bytes_copied: int


def _to_workspace_path(mount_path: str) -> VfsPath:
    try:
        return VfsPath(mount_path)
    except InvalidPathError as error:
        raise WorkspaceSecurityError(f"mount_path {mount_path!r} is not a path in the workspace: {error}") from error


def _patterns(globs: str | Iterable[str]) -> tuple[str, ...]:
    # A single string is one pattern.
    patterns = (globs,) if isinstance(globs, str) else tuple(globs)
    if not all(pattern.strip("/! ") for pattern in patterns):
        raise WorkspaceError(f"{patterns!r} contains an empty glob pattern; remove it")
    return patterns
