"""What workspace sections are made of: host files in a temporary directory, and the words that tell a model of them."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TypeAlias

from weakincentives.errors import WorkspaceError
from weakincentives.filesystem import HostMount, HostMountPreview, materialize
from weakincentives.filesystem.mounts.plan import check_mounts, root_tuple

_Tree: TypeAlias = "dict[str, _Tree | None]"

_LINES = 60
_LINES_AT_LEAST = 6
_NAMES_PER_DIRECTORY = 20
_DEEPEST = 8
_KILO = 1000
_OTHERS = 20


class MountedFiles:
    """Host files, copied to a temporary directory when they are first needed; and gone with it.

    What lies outside of the allowed roots is refused at once, everything else when it is copied. A directory that
    nobody removes goes when this object does.
    """

    def __init__(self, mounts: Sequence[HostMount], allowed_host_roots: Sequence[os.PathLike[str] | str]) -> None:
        self.mounts = tuple(mounts)
        self.allowed_host_roots = root_tuple(allowed_host_roots)
        check_mounts(self.mounts, self.allowed_host_roots)
        self._directory: Path | None = None
        self._previews: tuple[HostMountPreview, ...] | None = None
        self._is_over = False
        self._lock = RLock()

    @property
    def directory(self) -> Path:
        """Where they are. Once it was removed, where they were."""
        with self._lock:
            if self._directory is None:
                self._directory, self._previews = self._copied()
            return self._directory

    @property
    def previews(self) -> tuple[HostMountPreview, ...]:
        """What became of each mount."""
        with self._lock:
            _ = self.directory
            return self._previews or ()

    @property
    def is_there(self) -> bool:
        """Whether they have been copied."""
        return self._directory is not None and not self._is_over

    def remove(self) -> None:
        """Remove the directory and all that is in it. Done twice, it is done once."""
        with self._lock:
            directory, self._is_over = self._directory if not self._is_over else None, True
        if directory is not None:
            _remove(directory)

    def _copied(self) -> tuple[Path, tuple[HostMountPreview, ...]]:
        if self._is_over:
            raise WorkspaceError("this workspace was cleaned up; make a new one")
        directory = Path(tempfile.mkdtemp(prefix="weakincentives-workspace-"))
        try:
            previews = materialize(self.mounts, allowed_host_roots=self.allowed_host_roots, destination=directory)
        except BaseException:
            _remove(directory)
            raise
        weakref.finalize(self, _remove, directory)
        return directory, previews


def _remove(directory: Path) -> None:
    """All of it, also below directories that forbid it; links are removed and not followed."""
    for place, names, _ in os.walk(directory):
        for name in names:
            below = Path(place, name)
            with suppress(OSError):
                if not below.is_symlink():
                    below.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def describe(previews: Sequence[HostMountPreview], place: str, others: Iterable[str] = ()) -> str:
    """Where each mount is and what is in it, cut where it gets long; and what else there is by now."""
    budget = max(_LINES_AT_LEAST, _LINES // max(1, len(previews)))
    blocks = [_mount(preview, place, budget) for preview in previews]
    more = [f"- `{_shown(path)}`" for path in others]
    if more:
        cut = [f"- … and {len(more) - _OTHERS} more"] if len(more) > _OTHERS else []
        blocks.append("\n".join([f"Also there by now, below `{place}`:", *more[:_OTHERS], *cut]))
    return "\n\n".join(blocks)


def _mount(preview: HostMountPreview, place: str, budget: int) -> str:
    where = f"{place}/{preview.mount_path}".removesuffix("/.")
    size = _size(preview.bytes_copied)
    if not preview.is_directory:
        return f"`{_shown(where)}`: a file of {size}"
    count = len(preview.entries)
    head = f"`{_shown(where)}`: {count:,} {'file' if count == 1 else 'files'}, {size}"
    lines = _fitting(_grown(preview.entries), budget)
    return "\n".join([head, "```", *lines, "```"]) if lines else head


def _grown(entries: Iterable[str]) -> _Tree:
    top: _Tree = {}
    for entry in entries:
        *above, name = entry.split("/")
        here = top
        for part in above:
            below = here.setdefault(part, {})
            here = below if below is not None else {}
        here[name] = None
    return top


def _fitting(tree: _Tree, budget: int) -> list[str]:
    """As deep as the lines allow, and one level in any case."""
    lines = list(_lines(tree, 1, ""))
    for depth in range(2, _DEEPEST + 1):
        deeper = list(_lines(tree, depth, ""))
        if len(deeper) > budget:
            break
        lines = deeper
    return lines


def _lines(tree: _Tree, depth: int, indent: str) -> Iterator[str]:
    names = sorted(tree, key=lambda name: (tree[name] is None, name))
    for name in names[:_NAMES_PER_DIRECTORY]:
        below = tree[name]
        if below is None:
            yield f"{indent}{_shown(name)}"
        elif depth > 1:
            yield f"{indent}{_shown(name)}/"
            yield from _lines(below, depth - 1, f"{indent}  ")
        else:
            count = _count(below)
            yield f"{indent}{_shown(name)}/ ({count:,} {'file' if count == 1 else 'files'})"
    if len(names) > _NAMES_PER_DIRECTORY:
        yield f"{indent}… and {len(names) - _NAMES_PER_DIRECTORY:,} more"


def _count(tree: _Tree) -> int:
    return sum(1 if below is None else _count(below) for below in tree.values())


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} GB"


def _shown(name: str) -> str:
    """A name on one line that cannot end the quoting around it."""
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one)[0] == "C" or one == "`" else one for one in name)
