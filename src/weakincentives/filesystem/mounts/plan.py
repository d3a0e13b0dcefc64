"""Planning of host mounts: lists the files to copy and validates them. Reads the host; writes nothing.

A path is first resolved textually to find its allowed root. It is then opened beneath that root's descriptor, without
following links, which enforces the confinement.

`include_glob` and `exclude_glob` are gitignore patterns (pathspec). `Filesystem.glob` uses another dialect; see
`filesystem.glob_patterns`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from pathspec import GitIgnoreSpec

from weakincentives.errors import InvalidPathError, WorkspaceBudgetError, WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem.mounts.mount import HostMount, HostMountPreview
from weakincentives.filesystem.openat import LIST_DIR, READ_FILE, describe_mode, list_names, open_beneath, open_dir
from weakincentives.filesystem.paths import Parts, VfsPath, is_addressable, join

# Followed links can make a small tree practically endless.
MAX_FILES = 1_000_000

_MAX_LISTED_FILES = 5
_STAT = getattr(os, "O_PATH", READ_FILE)  # a plan reads metadata: it opens no file for reading


@dataclass(frozen=True, slots=True)
class Location:
    """A path to open: `parts` beneath the descriptor `anchor` of the directory `base`."""

    base: Path
    anchor: int
    parts: Parts

    def below(self, name: str) -> Location:
        return Location(self.base, self.anchor, (*self.parts, name))

    @property
    def path(self) -> str:
        return str(self.base.joinpath(*self.parts))


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to copy: `entry` is its path in the mount, `target` its path in the workspace."""

    entry: str
    target: Parts
    source: Location
    size: int


@dataclass(frozen=True, slots=True)
class MountPlan:
    """The files of one mount."""

    mount: HostMount
    resolved: Path
    mount_path: VfsPath
    is_directory: bool
    files: tuple[PlannedFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def preview(self, bytes_copied: int) -> HostMountPreview:
        """The public description of this mount."""
        return HostMountPreview(
            host_path=self.mount.host_path,
            resolved_host=self.resolved,
            mount_path=str(self.mount_path),
            entries=tuple(file.entry for file in self.files),
            is_directory=self.is_directory,
            bytes_copied=bytes_copied,
        )


class AllowedRoots:
    """The host directories (or single files) that mounts may read; their descriptors are closed with `stack`."""

    def __init__(self, roots: Sequence[str | os.PathLike[str]], stack: ExitStack) -> None:
        self._roots = _resolve_roots(roots)
        self._anchors: dict[Path, int] = {}
        for root in self._roots:
            base = _root_directory(root)
            if base.is_dir() and base not in self._anchors:
                self._anchors[base] = stack.enter_context(open_dir(str(base)))

    def __str__(self) -> str:
        return ", ".join(repr(str(root)) for root in self._roots)

    def locate(self, resolved: Path) -> Location | None:
        """The location of a resolved path; None if it is in no allowed root."""
        for root in self._roots:
            if resolved.is_relative_to(root) and (base := _root_directory(root)) in self._anchors:
                return Location(base, self._anchors[base], resolved.relative_to(base).parts)
        return None

    def resolve(self, host_path: str) -> Location:
        """The location of a mount's `host_path`; raises if it is outside of the roots or does not exist."""
        for candidate in _candidate_paths(host_path, self._roots):
            location = self.locate(candidate)
            if location is not None and os.path.lexists(candidate):
                return location
        raise WorkspaceError(f"{host_path!r} does not exist in the allowed host roots ({self})")


def root_tuple(roots: Sequence[str | os.PathLike[str]]) -> tuple[str | os.PathLike[str], ...]:
    """The roots as a tuple; a single path is an error, because its characters, such as `/`, would be the roots."""
    if isinstance(roots, str | os.PathLike):
        raise WorkspaceSecurityError(
            f"allowed_host_roots must be a list of directories, not a single path: pass [{roots!r}]"
        )
    return tuple(roots)


def check_mounts(mounts: Iterable[HostMount], roots: Sequence[str | os.PathLike[str]]) -> None:
    """Raise for mounts whose path is outside of the allowed roots. `plan_mounts` checks what the paths refer to."""
    for mount in mounts:
        _candidate_paths(mount.host_path, _resolve_roots(roots))


def plan_mounts(mounts: Iterable[HostMount], roots: AllowedRoots) -> tuple[MountPlan, ...]:
    """Plan all mounts; raises if any of them is invalid, over budget or overlaps another."""
    plans = tuple(_plan(mount, roots) for mount in mounts)
    for plan in plans:
        _check_budget(plan)
    _check_overlaps(plans)
    return plans


def _plan(mount: HostMount, roots: AllowedRoots) -> MountPlan:
    location = roots.resolve(mount.host_path)
    mount_path = mount.mount_path or _default_mount_path(mount, location)
    with _translate_read_errors(location), open_beneath(location.anchor, location.parts, _STAT) as descriptor:
        found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        files = tuple(sorted(_MountWalk(mount, mount_path, roots).files(location), key=lambda file: file.target))
    elif stat.S_ISREG(found.st_mode):
        if not mount_path.segments:
            raise WorkspaceError(f"{mount.host_path!r} is a file; mount_path must include its name")
        with _translate_read_errors(location):
            _check_readable(location)
        files = (PlannedFile(mount_path.segments[-1], mount_path.segments, location, found.st_size),)
    else:
        raise WorkspaceError(
            f"{mount.host_path!r} is {describe_mode(found.st_mode)}; only files and directories are mounted"
        )
    return MountPlan(mount, Path(location.path), mount_path, stat.S_ISDIR(found.st_mode), files)


class _MountWalk:
    """Lists the files of one mounted directory."""

    def __init__(self, mount: HostMount, mount_path: VfsPath, roots: AllowedRoots) -> None:
        self._mount = mount
        self._mount_path = mount_path
        self._roots = roots
        self._included = _spec(mount.include_glob) if mount.include_glob else None
        self._excluded = _spec(mount.exclude_glob)

    def files(self, top: Location) -> Iterator[PlannedFile]:
        count = 0
        pending: list[tuple[Parts, Location, tuple[tuple[int, int], ...]]] = [((), top, ())]
        while pending:
            entry, location, ancestors = pending.pop()
            with _translate_read_errors(location), open_beneath(location.anchor, location.parts, LIST_DIR) as directory:
                directory_stat = os.fstat(directory)
                identity = (directory_stat.st_dev, directory_stat.st_ino)
                if identity in ancestors:
                    continue  # a circular link
                for name in list_names(directory):
                    child = (*entry, name)
                    inspected = self._inspect_entry(child, location.below(name), directory)
                    if inspected is None:
                        continue
                    source, found = inspected
                    if stat.S_ISDIR(found.st_mode):
                        pending.append((child, source, (*ancestors, identity)))
                    else:
                        yield self._planned_file(child, source, found.st_size)
                        count += 1
            if count > MAX_FILES:
                raise WorkspaceBudgetError(f"{self._mount.host_path!r} has more than {MAX_FILES:,} files; exclude some")

    def _inspect_entry(self, entry: Parts, source: Location, directory: int) -> tuple[Location, os.stat_result] | None:
        """The location and stat of an entry; None if it is skipped."""
        path = "/".join(entry)
        if self._excluded.match_file(path):
            return None
        with _translate_read_errors(source):
            try:
                found = os.stat(entry[-1], dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(found.st_mode):
                followed = self._follow_link(source)
                if followed is None:
                    return None
                source, found = followed
            if stat.S_ISDIR(found.st_mode):
                return None if self._excluded.match_file(path + "/") else (source, found)
            if not stat.S_ISREG(found.st_mode) or (self._included and not self._included.match_file(path)):
                return None
            _check_readable(source)
            return source, found

    def _follow_link(self, link: Location) -> tuple[Location, os.stat_result] | None:
        if not self._mount.follow_symlinks:
            return None
        resolved = Path(os.path.realpath(link.path))
        location = self._roots.locate(resolved)
        if location is None:
            raise WorkspaceSecurityError(
                f"{link.path!r} is a symbolic link to {str(resolved)!r}, outside of the allowed host roots "
                f"({self._roots}); exclude it, or mount with follow_symlinks=False"
            )
        try:
            found = os.lstat(resolved)
        except OSError:
            return None
        # `realpath` returns a link that points to itself.
        return None if stat.S_ISLNK(found.st_mode) else (location, found)

    def _planned_file(self, entry: Parts, source: Location, size: int) -> PlannedFile:
        target = (*self._mount_path.segments, *entry)
        if not is_addressable(target):
            raise WorkspaceError(f"{source.path!r} has a name that is not valid in a workspace; rename or exclude it")
        return PlannedFile("/".join(entry), target, source, size)


def _resolve_roots(roots: Sequence[str | os.PathLike[str]]) -> list[Path]:
    if not roots:
        raise WorkspaceSecurityError(
            "allowed_host_roots is empty, so no mount is allowed; list the directories that mounts may read"
        )
    return [Path(os.path.realpath(root)) for root in root_tuple(roots)]


def _candidate_paths(host_path: str, roots: Sequence[Path]) -> list[Path]:
    """The resolved paths that `host_path` may refer to, in order of preference; raises if none is allowed."""
    bases = [Path("/")] if Path(host_path).is_absolute() else [*map(_root_directory, roots), Path.cwd()]
    candidates = [Path(os.path.realpath(base / host_path)) for base in bases]
    if not any(path.is_relative_to(root) for path in candidates for root in roots):
        allowed = ", ".join(repr(str(root)) for root in roots)
        raise WorkspaceSecurityError(
            f"{host_path!r} is {str(candidates[0])!r}, outside of the allowed host roots ({allowed})"
        )
    return candidates


def _root_directory(root: Path) -> Path:
    return root.parent if root.is_file() else root


def _default_mount_path(mount: HostMount, location: Location) -> VfsPath:
    name = Path(mount.host_path).name
    try:
        return VfsPath((name if name not in {"", ".."} else Path(location.path).name,))
    except InvalidPathError as error:
        raise WorkspaceError(f"{mount.host_path!r} has no name for the default mount_path; set mount_path") from error


def _spec(globs: Sequence[str]) -> GitIgnoreSpec:
    try:
        spec = GitIgnoreSpec.from_lines(_at_every_depth(glob) for glob in globs)
    except (ValueError, re.error) as error:
        raise WorkspaceError(f"invalid glob in {tuple(globs)!r}: {error}") from error
    for glob, pattern in zip(globs, spec.patterns, strict=True):
        if pattern.include is None:  # pathspec ignores the pattern silently
            raise WorkspaceError(f"invalid glob {glob!r}")
    return spec


def _at_every_depth(glob: str) -> str:
    negation, pattern = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    if pattern.startswith("./"):
        pattern = pattern[1:]
    return negation + (pattern if pattern.startswith(("/", "**/")) else f"**/{pattern}")


def _check_budget(plan: MountPlan) -> None:
    limit = plan.mount.max_bytes
    if limit is None or plan.size <= limit:
        return
    largest = nlargest(_MAX_LISTED_FILES, plan.files, key=lambda file: file.size)
    raise WorkspaceBudgetError(
        f"{plan.mount.host_path!r} holds {plan.size:,} bytes, more than its max_bytes of {limit:,}; its largest files: "
        + ", ".join(f"{file.entry} ({file.size:,})" for file in largest)
        + ". Exclude some, or raise max_bytes."
    )


def _check_overlaps(plans: Sequence[MountPlan]) -> None:
    """No mount may write at or below another's mount path, nor put a file at one of its parents."""
    for plan in plans:
        depth = len(plan.mount_path.segments)
        files = {file.target for file in plan.files}
        occupied = {target[:length] for target in files for length in range(depth, len(target) + 1)}
        occupied.add(plan.mount_path.segments)
        for other in plans:
            target = other.mount_path.segments
            is_occupied = target in occupied or any(target[:length] in files for length in range(len(target)))
            if other is not plan and is_occupied:
                raise WorkspaceError(
                    f"the mounts of {plan.mount.host_path!r} and {other.mount.host_path!r} both write to "
                    f"{join(target)!r}; change the mount_path of one of them"
                )


def _check_readable(location: Location) -> None:
    """Raise `PermissionError` for a file that cannot be read, before anything is copied; the copy checks it again."""
    if not os.access(location.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _translate_read_errors(location: Location) -> Generator[None]:
    """Translate `OSError`s to a `WorkspaceError` that names the file."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"cannot read {location.path!r}: {error.strerror}; exclude it, or make it readable"
        ) from error
