"""What is in a container, by path: an index over an API that knows only ids. Pure.

A container has no directories of its own: they are what the paths of its files say, and what was made through us. Where
a file lies in the container is its *place*. That is its path, unless the server will not have it so; then this is where
the two are told apart.
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

_KEPT_OF_A_LONG_NAME = 180


@dataclass(frozen=True, slots=True)
class Entry:
    """A file. `file_id` is None where it came in an archive and nobody has listed it since.

    `is_saved` says that the same content is kept on this side.
    """

    path: str
    place: str
    file_id: str | None
    size: int | None
    created_at: int
    is_saved: bool = False


class Index:
    """All files, the directories above them, and the directories that were made."""

    def __init__(self) -> None:
        self.made: frozenset[str] = frozenset()
        """Directories that are there without any file in them. Replaced and never changed, so that it can be kept."""
        self.refused: tuple[tuple[str, str], ...] = ()
        """What was listed and has no path here, each with the reason."""
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, set[str]] = {ROOT: set()}
        self._places: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, path: str) -> Entry | None:
        """The file at a path in normal form."""
        return self._entries.get(path)

    def is_directory(self, path: str) -> bool:
        return path in self._children

    def names(self, path: str) -> list[str]:
        """What a directory holds."""
        return sorted(self._children[path])

    def find(self, path: str) -> Entry | None:
        """The file at a path as it was given, or None for a directory; otherwise the error that says what is wrong."""
        parts = split(path)
        known = join(parts)
        if known in self._children:
            return None
        entry = self._entries.get(known)
        if entry is None:
            self.refuse_file_on_the_way(path, parts[:-1])
            raise missing_file(path)
        return entry

    def refuse_file_on_the_way(self, path: str, parts: Parts) -> None:
        """Refuse `path` if one of the directories that it needs is a file."""
        for length in range(1, len(parts) + 1):
            if join(parts[:length]) in self._entries:
                raise not_a_directory(path, component=join(parts[:length]))

    def check_writable(self, path: str) -> str:
        """The normal form of a path at which a file can be written."""
        parts = split(path)
        known = join(parts)
        if known in self._children:
            raise not_a_file(path)
        self.refuse_file_on_the_way(path, parts[:-1])
        return known

    def topmost_missing(self, path: str) -> str:
        """The path, or the first directory on the way to it that is not there."""
        parts = split(path)
        above = (join(parts[:length]) for length in range(1, len(parts)))
        return next((one for one in above if one not in self._children), path)

    def files_below(self, path: str) -> list[Entry]:
        """Every file in a directory, at every depth."""
        prefix = "" if path == ROOT else f"{path}/"
        return [entry for known, entry in self._entries.items() if known.startswith(prefix)]

    def at(self, path: str) -> list[Entry]:
        """The file at a path, or every file below it."""
        entry = self._entries.get(path)
        return self.files_below(path) if entry is None else [entry]

    def path_of(self, place: str) -> str:
        """The path of what lies at a place."""
        return self._places.get(place, place)

    def elsewhere(self) -> dict[str, str]:
        """The places of those files that do not lie where their paths say."""
        return {entry.path: entry.place for entry in self._entries.values() if entry.place != entry.path}

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def clear(self) -> None:
        """An empty container, with nothing made in it."""
        self._entries, self._children, self._places = {}, {ROOT: set()}, {}
        self.made, self.refused = frozenset(), ()

    def put(self, entry: Entry) -> None:
        """A file is there now, with the directories above it."""
        before = self._entries.get(entry.path)
        if before is not None:
            self._places.pop(before.place, None)
        self._entries[entry.path] = entry
        self._places[entry.place] = entry.path
        self._grow(entry.path)

    def drop(self, path: str) -> None:
        """A file is gone. The directory that held it stays."""
        entry = self._entries.pop(path)
        self._places.pop(entry.place, None)
        above, name = _apart(path)
        self._children[above].discard(name)
        self.made = self.made | {above} if above != ROOT else self.made

    def make_directory(self, path: str) -> None:
        """A directory is there now."""
        if path not in self._children:
            self._children[path] = set()
            self._grow(path)
            self.made |= {path}

    def drop_directory(self, path: str) -> None:
        """A directory is gone, with all that is in it."""
        for entry in self.files_below(path):
            self.drop(entry.path)
        inside = {known for known in self._children if known == path or known.startswith(f"{path}/")}
        for known in inside:
            del self._children[known]
        above, name = _apart(path)
        self._children[above].discard(name)
        self.made = (self.made - inside) | ({above} if above != ROOT else frozenset())

    def save(self, path: str) -> None:
        """What is in a file is now kept on this side too."""
        self._entries[path] = replace(self._entries[path], is_saved=True)

    def place_for(self, path: str) -> str:
        """Where to ask for a file to be put: at its own path if that can be, else where no other file is."""
        place = join([_spelled(part) for part in split(path)])
        while self._places.get(place, path) != path:
            above, name = _apart(place)
            place = f"_{name}" if above == ROOT else f"{above}/_{name}"
        return place

    def misses(self, listed: Iterable[RemoteFile]) -> bool:
        """Whether something that was put there is not listed."""
        places = {file.place for file in listed}
        return any(entry.is_saved and entry.place not in places for entry in self)

    def refresh(self, listed: Iterable[RemoteFile]) -> None:
        """Take over what was listed. What it says of a file that we know decides whether our copy is still its copy."""
        before, paths = self._entries, dict(self._places)
        self._entries, self._children, self._places = {}, {ROOT: set()}, {}
        refused: list[tuple[str, str]] = []
        newest = {file.place: file for file in listed}  # of two in one place, the later one counts
        for file in sorted(newest.values(), key=lambda one: one.place):
            path = paths.get(file.place, file.place)
            try:
                if path == ROOT or join(split(path)) != path:
                    raise InvalidPathError("it is not the normal form of a file's path", path=path)
                self.refuse_file_on_the_way(path, split(path)[:-1])
            except OSError as error:
                refused.append((file.place, str(error)))
                continue
            is_saved = _is_same(before.get(path), file)
            self.put(Entry(path, file.place, file.id, file.size, file.created_at, is_saved=is_saved))
        self.refused = tuple(refused)
        made, self.made = self.made, frozenset()
        for path in sorted(made):
            parts = split(path)
            if all(join(parts[:length]) not in self._entries for length in range(1, len(parts) + 1)):
                self.make_directory(path)
                self.made |= {path}

    def _grow(self, path: str) -> None:
        """Let every directory above know what is in it."""
        while path != ROOT:
            above, name = _apart(path)
            names = self._children.setdefault(above, set())
            if name in names:
                return
            names.add(name)
            path = above


def _is_same(known: Entry | None, file: RemoteFile) -> bool:
    """Whether the content that we keep is this file's: by its id; or where an archive brought it, by who wrote it."""
    if known is None or not known.is_saved:
        return False
    if known.file_id is not None:
        return (known.file_id, known.size) == (file.id, file.size)
    return known.size == file.size and file.source == "user"


def _apart(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition("/")
    return above or ROOT, name


def _spelled(name: str) -> str:
    """A name that a form can carry and a server will take: what is no plain character is written out."""
    if not any(map(_is_odd, name)):
        return name
    spelled = "".join(
        "".join(f"%{byte:02X}" for byte in one.encode()) if _is_odd(one) or one == "%" else one for one in name
    )
    if len(spelled.encode()) <= MAX_NAME_BYTES:
        return spelled
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{spelled.encode()[:_KEPT_OF_A_LONG_NAME].decode(errors='ignore')}-{digest}"


def _is_odd(character: str) -> bool:
    kind = unicodedata.category(character)
    return character == '"' or (kind[0] == "C" and character != "\N{ZERO WIDTH JOINER}") or kind in ("Zl", "Zp")
