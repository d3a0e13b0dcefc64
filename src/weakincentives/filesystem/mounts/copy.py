"""`materialize`: copies mounted host files into a workspace directory; undone if it fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from weakincentives.errors import WorkspaceBudgetError, WorkspaceError
from weakincentives.filesystem.mounts.mount import HostMount, HostMountPreview
from weakincentives.filesystem.mounts.plan import AllowedRoots, MountPlan, PlannedFile, plan_mounts
from weakincentives.filesystem.openat import CHUNK_BYTES, READ_FILE, TRAVERSE, open_beneath, open_dir, write_all
from weakincentives.filesystem.paths import Parts


def materialize(
    mounts: Iterable[HostMount], *, allowed_host_roots: Sequence[str | os.PathLike[str]], destination: Path
) -> tuple[HostMountPreview, ...]:
    """Copy the mounted host files below `destination`, which is created if missing.

    All mounts are checked before anything is copied (allowed roots, links, budgets, overlaps, readability). An invalid
    mount or a failed copy leaves no files behind. Copies keep their permission bits (and become writable for their
    owner) and modification times.
    """
    mounts = tuple(mounts)
    if not mounts:
        return ()
    with ExitStack() as stack:
        plans = plan_mounts(mounts, AllowedRoots(allowed_host_roots, stack))
        try:
            destination.mkdir(parents=True, exist_ok=True)
            copy = _MountCopier(stack.enter_context(open_dir(str(destination))))
        except OSError as error:
            raise WorkspaceError(f"cannot use {str(destination)!r} as a workspace: {error.strerror}") from error
        try:
            return tuple(copy.copy_mount(plan) for plan in plans)
        except BaseException:
            copy.undo()
            raise


class _MountCopier:
    """Copies mounts into one workspace and records what it creates, for undo."""

    def __init__(self, workspace: int) -> None:
        self._workspace = workspace
        self._created: list[tuple[Parts, bool]] = []
        self._directories: set[Parts] = {()}

    def copy_mount(self, plan: MountPlan) -> HostMountPreview:
        copied = 0
        if plan.is_directory:
            try:
                self._make_directory(plan.mount_path.segments)
            except OSError as error:
                raise WorkspaceError(
                    f"cannot create {str(plan.mount_path)!r} in the workspace: {error.strerror}; change "
                    f"the mount_path of {plan.mount.host_path!r}"
                ) from error
        for file in plan.files:
            allowance = None if plan.mount.max_bytes is None else plan.mount.max_bytes - copied
            try:
                copied += self._copy_file(file, allowance)
            except OSError as error:
                raise WorkspaceError(f"cannot copy {file.source.path!r}: {error.strerror}") from error
        return plan.preview(copied)

    def undo(self) -> None:
        for parts, is_directory in reversed(self._created):
            with suppress(OSError), open_beneath(self._workspace, parts[:-1], TRAVERSE) as directory:
                if is_directory:
                    os.rmdir(parts[-1], dir_fd=directory)
                else:
                    os.unlink(parts[-1], dir_fd=directory)

    def _copy_file(self, file: PlannedFile, max_bytes: int | None) -> int:
        """Copy one file. Type and size are checked again, since the file may have changed after planning."""
        self._make_directory(file.target[:-1])
        with open_beneath(file.source.anchor, file.source.parts, READ_FILE) as source:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise WorkspaceError(
                    f"{file.source.path!r} is no longer a file; it changed while it was mounted; try again"
                )
            if max_bytes is not None and found.st_size > max_bytes:
                raise WorkspaceBudgetError(
                    f"{file.source.path!r} grew to {found.st_size:,} bytes while it was mounted, past max_bytes"
                )
            target = self._create(file.target, (found.st_mode & 0o777) | 0o600)
            try:
                copied = _copy_bytes(source, target, found.st_size)
                os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
            finally:
                os.close(target)
        return copied

    def _create(self, parts: Parts, mode: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open_beneath(self._workspace, parts[:-1], TRAVERSE) as directory:
            descriptor = os.open(parts[-1], flags, mode, dir_fd=directory)
        self._created.append((parts, False))
        return descriptor

    def _make_directory(self, parts: Parts) -> None:
        if parts in self._directories:
            return
        for length in range(1, len(parts) + 1):
            directory = parts[:length]
            if directory not in self._directories:
                with open_beneath(self._workspace, directory[:-1], TRAVERSE) as parent:
                    try:
                        os.mkdir(directory[-1], dir_fd=parent)
                    except FileExistsError:
                        pass
                    else:
                        self._created.append((directory, True))
                self._directories.add(directory)


def _copy_bytes(source: int, target: int, size: int) -> int:
    """Copy at most `size` bytes, also if the file grows meanwhile."""
    remaining = size
    while remaining and (chunk := os.read(source, min(CHUNK_BYTES, remaining))):
        write_all(target, chunk)
        remaining -= len(chunk)
    return size - remaining
