"""Index of a container's files by path, over an API that has only file ids. Pure: no I/O.

A container has no directories: they follow from the paths of its files, and from `mkdir`. The *remote path*
of a file is its path in the container. It equals the path here, unless the server changes or refuses the name.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from weakincentives.adapters.openai.containers.api import RemoteFile
from weakincentives.errors import InvalidPathError
from weakincentives.filesystem.errors import missing_file, not_a_directory, not_a_file
from weakincentives.filesystem.paths import MAX_NAME_BYTES, ROOT, Parts, join, split

_MAX_ESCAPED_PREFIX_BYTES = 180


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file. `file_id` is None if it was uploaded in an archive and not listed since.

    `is_mirrored`: the mirror has the same content.
    """

    path: str
    remote_path: str
    file_id: str | None
    size: int | None
    created_at: int
    is_mirrored: bool = False


class FileIndex:
    """All files, their parent directories, and directories without files."""

    def __init__(self) -> None:
        self.created_directories: frozenset[str] = frozenset()
        """Directories that exist without any file in them. Replaced and never modified, so a snapshot can hold it."""
        self.refused: tuple[tuple[str, str], ...] = ()
        """Listed files whose remote path is not a valid path here, each with the reason."""
        self._entries: dict[str, FileEntry] = {}
        self._children: dict[str, set[str]] = {ROOT: set()}
        self._paths: dict[str, str] = {}  # by remote path

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self._entries.values())

    def get(self, path: str) -> FileEntry | None:
        """The file at a normalised path."""
        return self._entries.get(path)

    def is_directory(self, path: str) -> bool:
        return path in self._children

    def names(self, path: str) -> list[str]:
        """The names in a directory."""
        return sorted(self._children[path])

    def find(self, path: str) -> FileEntry | None:
        """The file at a path as the caller wrote it, or None for a directory; otherwise raises."""
        parts = split(path)
        known = join(parts)
        if known in self._children:
            return None
        entry = self._entries.get(known)
        if entry is None:
            self.check_directories(path, parts[:-1])
            raise missing_file(path)
        return entry

    def check_directories(self, path: str, parts: Parts) -> None:
        """Refuse `path` if one of the directories `parts` is a file."""
        for length in range(1, len(parts) + 1):
            if join(parts[:length]) in self._entries:
                raise not_a_directory(path, component=join(parts[:length]))

    def check_writable(self, path: str) -> str:
        """The normalised form of a path to which a file can be written; otherwise raises."""
        parts = split(path)
        known = join(parts)
        if known in self._children:
            raise not_a_file(path)
        self.check_directories(path, parts[:-1])
        return known

    def topmost_missing(self, path: str) -> str:
        """The first parent directory that does not exist, or the path itself."""
        parts = split(path)
        parents = (join(parts[:length]) for length in range(1, len(parts)))
        return next((one for one in parents if one not in self._children), path)

    def files_at(self, path: str) -> list[FileEntry]:
        """The file at a path, or every file below it."""
        entry = self._entries.get(path)
        return self._files_below(path) if entry is None else [entry]

    def path_of(self, remote_path: str) -> str:
        """The path of the file with this remote path."""
        return self._paths.get(remote_path, remote_path)

    def relocated(self) -> dict[str, str]:
        """The remote paths of the files whose remote path differs from their path."""
        return {one.path: one.remote_path for one in self._entries.values() if one.remote_path != one.path}

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def clear(self) -> None:
        """Remove all files and directories."""
        self._entries, self._children, self._paths = {}, {ROOT: set()}, {}
        self.created_directories, self.refused = frozenset(), ()

    def put(self, entry: FileEntry) -> None:
        """Add or replace a file, with its parent directories."""
        before = self._entries.get(entry.path)
        if before is not None:
            self._paths.pop(before.remote_path, None)
        self._entries[entry.path] = entry
        self._paths[entry.remote_path] = entry.path
        self._add_to_parents(entry.path)

    def remove(self, path: str) -> None:
        """Remove a file. Its directory stays."""
        entry = self._entries.pop(path)
        self._paths.pop(entry.remote_path, None)
        self._remove_from_parent(path)

    def make_directory(self, path: str) -> None:
        """Add a directory."""
        if path not in self._children:
            self._children[path] = set()
            self._add_to_parents(path)
            self.created_directories |= {path}

    def remove_directory(self, path: str) -> None:
        """Remove a directory with its content."""
        for entry in self._files_below(path):
            self.remove(entry.path)
        inside = {known for known in self._children if known == path or known.startswith(f"{path}/")}
        for known in inside:
            del self._children[known]
        self.created_directories -= inside
        self._remove_from_parent(path)

    def mark_mirrored(self, path: str) -> None:
        """Record that the mirror has the content of a file."""
        self._entries[path] = replace(self._entries[path], is_mirrored=True)

    def remote_path_for(self, path: str) -> str:
        """The remote path to request for a file: its own path if that can be, else one that no other file has."""
        remote_path = join([_escape_name(part) for part in split(path)])
        while self._paths.get(remote_path, path) != path:
            parent, name = _split_parent(remote_path)
            remote_path = f"_{name}" if parent == ROOT else f"{parent}/_{name}"
        return remote_path

    def has_mirrored(self, entry: FileEntry) -> bool:
        """Whether the mirror of this index has the content of a file that another index lists."""
        known = self._entries.get(self._paths.get(entry.remote_path, ROOT))
        if known is None or not known.is_mirrored:
            return False
        return known.size == entry.size and known.file_id in (None, entry.file_id)

    def has_missing(self, listed: Iterable[RemoteFile]) -> bool:
        """Whether an uploaded file is not listed."""
        remote_paths = {file.remote_path for file in listed}
        return any(entry.is_mirrored and entry.remote_path not in remote_paths for entry in self)

    def refresh(self, listed: Iterable[RemoteFile]) -> None:
        """Replace the content by a listing. A known file stays mirrored if the listing shows the same file."""
        before, paths = self._entries, dict(self._paths)
        self._entries, self._children, self._paths = {}, {ROOT: set()}, {}
        refused: list[tuple[str, str]] = []
        newest = {file.remote_path: file for file in listed}  # of two with the same path, the later one counts
        for file in sorted(newest.values(), key=lambda one: one.remote_path):
            path = paths.get(file.remote_path, file.remote_path)
            try:
                if path == ROOT or join(split(path)) != path:
                    raise InvalidPathError("it is not the normalised path of a file", path=path)
                self.check_directories(path, split(path)[:-1])
            except OSError as error:
                refused.append((file.remote_path, str(error)))
                continue
            is_mirrored = _is_same(before.get(path), file)
            self.put(FileEntry(path, file.remote_path, file.id, file.size, file.created_at, is_mirrored=is_mirrored))
        self.refused = tuple(refused)
        created, self.created_directories = self.created_directories, frozenset()
        for path in sorted(created):
            parts = split(path)
            if all(join(parts[:length]) not in self._entries for length in range(1, len(parts) + 1)):
                self.make_directory(path)
                self.created_directories |= {path}

    def _files_below(self, path: str) -> list[FileEntry]:
        prefix = "" if path == ROOT else f"{path}/"
        return [entry for known, entry in self._entries.items() if known.startswith(prefix)]

    def _add_to_parents(self, path: str) -> None:
        while path != ROOT:
            parent, name = _split_parent(path)
            names = self._children.setdefault(parent, set())
            if name in names:
                return
            names.add(name)
            path = parent

    def _remove_from_parent(self, path: str) -> None:
        """Remove a name from its directory, which continues to exist without it."""
        parent, name = _split_parent(path)
        self._children[parent].discard(name)
        self.created_directories |= {parent} - {ROOT}


def _is_same(known: FileEntry | None, file: RemoteFile) -> bool:
    """Whether a listed file has the mirrored content: same id; after an archive upload, same size and uploaded."""
    if known is None or not known.is_mirrored:
        return False
    if known.file_id is not None:
        return (known.file_id, known.size) == (file.id, file.size)
    return known.size == file.size and file.source == "user"


def _split_parent(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or ROOT, name


def _escape_name(name: str) -> str:
    """A name that fits into a multipart header and that servers accept: other characters are percent-encoded."""
    if not any(map(_needs_escape, name)):
        return name
    escaped = "".join(
        "".join(f"%{byte:02X}" for byte in one.encode()) if _needs_escape(one) or one == "%" else one for one in name
    )
    if len(escaped.encode()) <= MAX_NAME_BYTES:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{escaped.encode()[:_MAX_ESCAPED_PREFIX_BYTES].decode(errors='ignore')}-{digest}"


def _needs_escape(character: str) -> bool:
    kind = unicodedata.category(character)
    return character == '"' or (kind[0] == "C" and character != "\N{ZERO WIDTH JOINER}") or kind in ("Zl", "Zp")
