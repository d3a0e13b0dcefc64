"""What a list of mounts would copy, and every reason to refuse it. Reads the host; writes nothing.

A path is resolved in text first, to know which allowed root it claims to lie in. What counts is what is then opened:
beneath that root's descriptor, without following a link.
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
from weakincentives.filesystem.beneath import LIST, READ, best_opener, describe, names_in, opened, opened_root
from weakincentives.filesystem.mounts.mount import HostMount
from weakincentives.filesystem.paths import Parts, VfsPath, is_addressable, join

# Links that are followed can make a small tree endless in all but name.
MAX_FILES = 1_000_000

_LARGEST = 5
_STAT = getattr(os, "O_PATH", READ)  # a plan reads metadata: it opens no file for reading


@dataclass(frozen=True, slots=True)
class Location:
    """Where something is opened: `parts` beneath the descriptor `anchor`, which is the directory `base`."""

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
    """One file to copy: `entry` is its path in the mount, `target` in the workspace."""

    entry: str
    target: Parts
    source: Location
    size: int


@dataclass(frozen=True, slots=True)
class MountPlan:
    """All that one mount would copy."""

    mount: HostMount
    resolved: Path
    mount_path: VfsPath
    is_directory: bool
    files: tuple[PlannedFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class AllowedRoots:
    """The directories (or single files) of the host that mounts may read, held open until `stack` is closed."""

    def __init__(self, roots: Sequence[str | os.PathLike[str]], stack: ExitStack) -> None:
        self._roots = _resolved(roots)
        self._anchors: dict[Path, int] = {}
        for root in self._roots:
            base = _base(root)
            if base.is_dir() and base not in self._anchors:
                self._anchors[base] = stack.enter_context(opened_root(str(base)))

    def __str__(self) -> str:
        return ", ".join(repr(str(root)) for root in self._roots)

    def locate(self, resolved: Path) -> Location | None:
        """Where to open this path, which has no links in it; `None` if no root allows it."""
        for root in self._roots:
            if resolved.is_relative_to(root) and (base := _base(root)) in self._anchors:
                return Location(base, self._anchors[base], resolved.relative_to(base).parts)
        return None

    def resolve(self, host_path: str) -> Location:
        """The place that a mount names, or the reason why it cannot be mounted."""
        for claim in _claims(host_path, self._roots):
            location = self.locate(claim)
            if location is not None and os.path.lexists(claim):
                return location
        raise WorkspaceError(f"{host_path!r} does not exist in the allowed host roots ({self})")


def listed_roots(roots: Sequence[str | os.PathLike[str]]) -> tuple[str | os.PathLike[str], ...]:
    """Roots as they were given, unless that is one path alone: its letters would be the roots, and `/` is the first."""
    if isinstance(roots, str | os.PathLike):
        raise WorkspaceSecurityError(f"allowed_host_roots must be a list of directories, not one path: [{roots!r}]")
    return tuple(roots)


def check_mounts(mounts: Iterable[HostMount], roots: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse what lies outside of the allowed roots as far as paths tell. What is really there is seen by the plan."""
    for mount in mounts:
        _claims(mount.host_path, _resolved(roots))


def plan_mounts(mounts: Iterable[HostMount], roots: AllowedRoots) -> tuple[MountPlan, ...]:
    """What all of them would copy, if nothing speaks against any of them."""
    plans = tuple(_plan(mount, roots) for mount in mounts)
    for plan in plans:
        _check_budget(plan)
    _check_overlaps(plans)
    return plans


def _plan(mount: HostMount, roots: AllowedRoots) -> MountPlan:
    location = roots.resolve(mount.host_path)
    mount_path = mount.mount_path or _default_mount_path(mount, location)
    with _readable(location), opened(best_opener(), location.anchor, location.parts, _STAT) as descriptor:
        found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        files = tuple(sorted(_Walk(mount, mount_path, roots).files(location), key=lambda file: file.target))
    elif stat.S_ISREG(found.st_mode):
        if not mount_path.segments:
            raise WorkspaceError(f"{mount.host_path!r} is a file; give it a name in mount_path")
        with _readable(location):
            _check_readable(location)
        files = (PlannedFile(mount_path.segments[-1], mount_path.segments, location, found.st_size),)
    else:
        raise WorkspaceError(
            f"{mount.host_path!r} is {describe(found.st_mode)}; only files and directories are mounted"
        )
    return MountPlan(mount, Path(location.path), mount_path, stat.S_ISDIR(found.st_mode), files)


class _Walk:
    """Finds the files of one mounted directory."""

    def __init__(self, mount: HostMount, mount_path: VfsPath, roots: AllowedRoots) -> None:
        self._mount = mount
        self._mount_path = mount_path
        self._roots = roots
        self._included = _spec(mount.include_glob) if mount.include_glob else None
        self._excluded = _spec(mount.exclude_glob)

    def files(self, top: Location) -> Iterator[PlannedFile]:
        count = 0
        waiting: list[tuple[Parts, Location, tuple[tuple[int, int], ...]]] = [((), top, ())]
        while waiting:
            entry, location, above = waiting.pop()
            with _readable(location), opened(best_opener(), location.anchor, location.parts, LIST) as directory:
                here = os.fstat(directory)
                identity = (here.st_dev, here.st_ino)
                if identity in above:
                    continue  # a link led back to where we came from
                for name in names_in(directory):
                    child = (*entry, name)
                    source, found = self._look(child, location.below(name), directory)
                    if source is None or found is None:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append((child, source, (*above, identity)))
                    else:
                        yield self._file(child, source, found.st_size)
                        count += 1
            if count > MAX_FILES:
                raise WorkspaceBudgetError(f"{self._mount.host_path!r} has more than {MAX_FILES:,} files; exclude some")

    def _look(self, entry: Parts, source: Location, directory: int) -> tuple[Location | None, os.stat_result | None]:
        """What an entry is and where it is opened, or nothing if the mount passes it over."""
        path = "/".join(entry)
        if self._excluded.match_file(path):
            return None, None
        with _readable(source):
            try:
                found = os.stat(entry[-1], dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return None, None
            if stat.S_ISLNK(found.st_mode):
                followed = self._follow(source)
                if followed is None:
                    return None, None
                source, found = followed
            if stat.S_ISDIR(found.st_mode):
                return (None, None) if self._excluded.match_file(path + "/") else (source, found)
            if not stat.S_ISREG(found.st_mode) or (self._included and not self._included.match_file(path)):
                return None, None
            _check_readable(source)
            return source, found

    def _follow(self, link: Location) -> tuple[Location, os.stat_result] | None:
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
        # `realpath` gives up on a link that leads to itself and returns it.
        return None if stat.S_ISLNK(found.st_mode) else (location, found)

    def _file(self, entry: Parts, source: Location, size: int) -> PlannedFile:
        target = (*self._mount_path.segments, *entry)
        if not is_addressable(target):
            raise WorkspaceError(f"{source.path!r} has a name that a workspace cannot hold; rename or exclude it")
        return PlannedFile("/".join(entry), target, source, size)


def _resolved(roots: Sequence[str | os.PathLike[str]]) -> list[Path]:
    if not roots:
        raise WorkspaceSecurityError(
            "allowed_host_roots is empty, so nothing may be mounted; name the directories that mounts may read"
        )
    return [Path(os.path.realpath(root)) for root in listed_roots(roots)]


def _claims(host_path: str, roots: Sequence[Path]) -> list[Path]:
    """The places in the allowed roots that a mount may mean, likeliest first; refused where there is none."""
    bases = [Path("/")] if Path(host_path).is_absolute() else [*map(_base, roots), Path.cwd()]
    claims = [Path(os.path.realpath(base / host_path)) for base in bases]
    if not any(claim.is_relative_to(root) for claim in claims for root in roots):
        allowed = ", ".join(repr(str(root)) for root in roots)
        raise WorkspaceSecurityError(
            f"{host_path!r} is {str(claims[0])!r}, outside of the allowed host roots ({allowed})"
        )
    return claims


def _base(root: Path) -> Path:
    return root.parent if root.is_file() else root


def _default_mount_path(mount: HostMount, location: Location) -> VfsPath:
    name = Path(mount.host_path).name
    try:
        return VfsPath((name if name not in {"", ".."} else Path(location.path).name,))
    except InvalidPathError as error:
        raise WorkspaceError(f"{mount.host_path!r} gives no name to mount it under; set mount_path") from error


def _spec(globs: Sequence[str]) -> GitIgnoreSpec:
    try:
        spec = GitIgnoreSpec.from_lines(_at_every_depth(glob) for glob in globs)
    except (ValueError, re.error) as error:
        raise WorkspaceError(f"one of the patterns {tuple(globs)!r} is no glob: {error}") from error
    for glob, pattern in zip(globs, spec.patterns, strict=True):
        if pattern.include is None:  # neither includes nor excludes: not understood, and not said so
            raise WorkspaceError(f"the pattern {glob!r} is no glob")
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
    largest = nlargest(_LARGEST, plan.files, key=lambda file: file.size)
    raise WorkspaceBudgetError(
        f"{plan.mount.host_path!r} holds {plan.size:,} bytes, more than its max_bytes of {limit:,}; its largest files: "
        + ", ".join(f"{file.entry} ({file.size:,})" for file in largest)
        + ". Exclude some, or raise max_bytes."
    )


def _check_overlaps(plans: Sequence[MountPlan]) -> None:
    """No mount may put anything at another's mount path or below it, nor a file on the way to it."""
    for plan in plans:
        depth = len(plan.mount_path.segments)
        files = {file.target for file in plan.files}
        occupied = {target[:length] for target in files for length in range(depth, len(target) + 1)}
        occupied.add(plan.mount_path.segments)
        for other in plans:
            way = other.mount_path.segments
            if other is not plan and (way in occupied or any(way[:length] in files for length in range(len(way)))):
                raise WorkspaceError(
                    f"the mounts of {plan.mount.host_path!r} and {other.mount.host_path!r} both fill "
                    f"{join(way)!r}; give one of them another mount_path"
                )


def _check_readable(location: Location) -> None:
    """Raise `PermissionError` for a file that cannot be read, before anything is copied; the copy checks it again."""
    if not os.access(location.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _readable(location: Location) -> Generator[None]:
    """Say which file could not be read, and what to do."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"cannot read {location.path!r}: {error.strerror}; exclude it, or allow us to read it"
        ) from error
