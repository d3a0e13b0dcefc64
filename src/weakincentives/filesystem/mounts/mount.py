"""`HostMount`: which files of the host a workspace begins with. Declares only; `mount_plan` and `mount_copy` act."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import InvalidPathError, WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem.paths import VfsPath


@dataclass(frozen=True, slots=True, init=False)
class HostMount:
    """Host files to bring into a workspace.

    `host_path`: a file or a directory, absolute, or relative to one of the allowed host roots (or to the working
        directory, where that lies in one).
    `mount_path`: where it appears in the workspace; the name of `host_path` if left out. `"."` is the workspace's
        root, and so is a leading `/`. It cannot leave the workspace.
    `include_glob`, `exclude_glob`: as in a `.gitignore`, except that a pattern with a `/` in its middle matches at
        every depth too: `.git/*`, `*.pyc`, `**/__pycache__/**`, `build/`. A leading `/` ties it to the mount's own
        top. No include pattern means everything; exclude wins. A file that is mounted by itself is always taken.
    `max_bytes`: more than this is an error, before anything is copied. `None` is no limit.
    `follow_symlinks`: left off, symbolic links are skipped. If on, they are followed as long as their target lies in
        an allowed root; one that leads elsewhere is an error, one that leads nowhere or into a circle is skipped.

    FIFOs, sockets and devices are always skipped, and empty directories are not brought along.

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
        follow_symlinks: bool = False,  # noqa: FBT001, FBT002 — a field like the others
    ) -> None:
        host_path = os.fspath(host_path)
        if not host_path or "\0" in host_path:
            raise WorkspaceError(f"host_path {host_path!r} is no path; give the file or directory to mount")
        if max_bytes is not None and max_bytes < 0:
            raise WorkspaceError(f"max_bytes is {max_bytes}; give None for no limit")
        # The one way to set the fields of a frozen dataclass that takes more types than it keeps.
        keep = object.__setattr__
        keep(self, "host_path", host_path)
        keep(self, "mount_path", None if mount_path is None else _to_workspace_path(mount_path))
        keep(self, "include_glob", _patterns(include_glob))
        keep(self, "exclude_glob", _patterns(exclude_glob))
        keep(self, "max_bytes", max_bytes)
        keep(self, "follow_symlinks", follow_symlinks)


@dataclass(frozen=True, slots=True)
class HostMountPreview:
    """What became of one mount. `entries` are its files, relative to `mount_path` and sorted."""

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
        raise WorkspaceSecurityError(f"mount_path {mount_path!r} is no path inside the workspace: {error}") from error


def _patterns(globs: str | Iterable[str]) -> tuple[str, ...]:
    # A lone string is one pattern, not a pattern per letter.
    patterns = (globs,) if isinstance(globs, str) else tuple(globs)
    if not all(pattern.strip("/! ") for pattern in patterns):
        raise WorkspaceError(f"{patterns!r} has an empty glob pattern; leave it out")
    return patterns
