"""Mounted host files of workspace sections: plan, copy to a temporary directory, and description for the prompt."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import RLock
from typing import TypeAlias

from weakincentives.errors import WorkspaceError
from weakincentives.filesystem import HostMount, HostMountPreview, materialize
from weakincentives.filesystem.mounts.plan import AllowedRoots, check_mounts, plan_mounts, root_tuple

_Tree: TypeAlias = "dict[str, _Tree | None]"

_MAX_LINES = 60
_MIN_LINES_PER_MOUNT = 6
_MAX_NAMES_PER_DIRECTORY = 20
_MAX_DEPTH = 8
_MAX_OTHER_FILES = 20
_KILO = 1000


class MountedFiles:
    """Host files that are planned when they are described, and copied to a temporary directory when they are opened.

    A mount outside of the allowed roots is refused at once; everything else is checked by the plan. The directory is
    removed by `remove`, or when this object is garbage-collected.
    """

    def __init__(self, mounts: Sequence[HostMount], allowed_host_roots: Sequence[os.PathLike[str] | str]) -> None:
        self.mounts = tuple(mounts)
        self.allowed_host_roots = root_tuple(allowed_host_roots)
        check_mounts(self.mounts, self.allowed_host_roots)
        self._directory: Path | None = None
        self._previews: tuple[HostMountPreview, ...] | None = None
        self._is_removed = False
        self._lock = RLock()

    @property
    def previews(self) -> tuple[HostMountPreview, ...]:
        """What each mount copied, or will copy. Planned once: lists directories and sizes, opens no file."""
        with self._lock:
            if self._previews is None:
                self._check_not_removed()
                self._previews = self._planned()
            return self._previews

    @property
    def is_copied(self) -> bool:
        """Whether the temporary directory exists."""
        return self._directory is not None and not self._is_removed

    def copy(self) -> Path:
        """Copy the files on the first call; return the directory, also after it was removed."""
        with self._lock:
            if self._directory is None:
                self._check_not_removed()
                self._directory, self._previews = self._copied()
            return self._directory

    def remove(self) -> None:
        """Remove the directory with its content. A second call does nothing."""
        with self._lock:
            directory, self._is_removed = self._directory if not self._is_removed else None, True
        if directory is not None:
            remove_tree(directory)

    def _check_not_removed(self) -> None:
        if self._is_removed:
            raise WorkspaceError("this workspace was cleaned up; make a new one")

    def _planned(self) -> tuple[HostMountPreview, ...]:
        if not self.mounts:
            return ()
        with ExitStack() as stack:
            plans = plan_mounts(self.mounts, AllowedRoots(self.allowed_host_roots, stack))
            return tuple(plan.preview(plan.size) for plan in plans)

    def _copied(self) -> tuple[Path, tuple[HostMountPreview, ...]]:
        directory = Path(tempfile.mkdtemp(prefix="weakincentives-workspace-"))
        try:
            previews = materialize(self.mounts, allowed_host_roots=self.allowed_host_roots, destination=directory)
        except BaseException:
            remove_tree(directory)
            raise
        weakref.finalize(self, remove_tree, directory)
        return directory, previews


def remove_tree(directory: Path) -> None:
    """Remove a directory, also below directories without write permission; links are removed, not followed."""
    for parent, names, _ in os.walk(directory):
        for name in names:
            below = Path(parent, name)
            with suppress(OSError):
                if not below.is_symlink():
                    below.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def describe(previews: Sequence[HostMountPreview], root: str, others: Iterable[str] = ()) -> str:
    """Describe each mount below `root` as a file tree, shortened if it is long; then list `others`."""
    max_lines = max(_MIN_LINES_PER_MOUNT, _MAX_LINES // max(1, len(previews)))
    blocks = [_describe_mount(preview, root, max_lines) for preview in previews]
    more = [f"- `{_escape(path)}`" for path in others]
    if more:
        rest = [f"- … and {len(more) - _MAX_OTHER_FILES} more"] if len(more) > _MAX_OTHER_FILES else []
        blocks.append("\n".join([f"Also there by now, below `{root}`:", *more[:_MAX_OTHER_FILES], *rest]))
    return "\n\n".join(blocks)


def _describe_mount(preview: HostMountPreview, root: str, max_lines: int) -> str:
    path = _escape(f"{root}/{preview.mount_path}".removesuffix("/."))
    size = _format_size(preview.bytes_copied)
    if not preview.is_directory:
        return f"`{path}`: a file of {size}"
    head = f"`{path}`: {_format_count(len(preview.entries))}, {size}"
    lines = _fit_lines(_build_tree(preview.entries), max_lines)
    return "\n".join([head, "```", *lines, "```"]) if lines else head


def _build_tree(entries: Iterable[str]) -> _Tree:
    top: _Tree = {}
    for entry in entries:
        *parents, name = entry.split("/")
        tree = top
        for parent in parents:
            below = tree.setdefault(parent, {})
            tree = below if below is not None else {}
        tree[name] = None
    return top


def _fit_lines(tree: _Tree, max_lines: int) -> list[str]:
    """The lines of the deepest tree that fits into `max_lines`, at least one level."""
    lines = list(_tree_lines(tree, 1, ""))
    for depth in range(2, _MAX_DEPTH + 1):
        deeper = list(_tree_lines(tree, depth, ""))
        if len(deeper) > max_lines:
            break
        lines = deeper
    return lines


def _tree_lines(tree: _Tree, depth: int, indent: str) -> Iterator[str]:
    names = sorted(tree, key=lambda name: (tree[name] is None, name))
    for name in names[:_MAX_NAMES_PER_DIRECTORY]:
        below = tree[name]
        if below is None:
            yield f"{indent}{_escape(name)}"
        elif depth > 1:
            yield f"{indent}{_escape(name)}/"
            yield from _tree_lines(below, depth - 1, f"{indent}  ")
        else:
            yield f"{indent}{_escape(name)}/ ({_format_count(_count_files(below))})"
    if len(names) > _MAX_NAMES_PER_DIRECTORY:
        yield f"{indent}… and {len(names) - _MAX_NAMES_PER_DIRECTORY:,} more"


def _count_files(tree: _Tree) -> int:
    return sum(1 if below is None else _count_files(below) for below in tree.values())


def _format_count(count: int) -> str:
    return f"{count:,} {'file' if count == 1 else 'files'}"


def _format_size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} GB"


def _escape(name: str) -> str:
    """Escape control characters and backticks, so that a name stays on its line and in its quotes."""
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one)[0] == "C" or one == "`" else one for one in name)
