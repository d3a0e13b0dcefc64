"""The files in a container, worked on by path: index, mirror and cache kept in step with what the server has.

Every method that asks the server is given the container's id, and may raise `ContainerGone`: the manager then calls it
again with another.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import BinaryIO, Literal

from weakincentives.adapters.openai.containers.api import FileGone
from weakincentives.adapters.openai.containers.index import Entry, Index
from weakincentives.adapters.openai.containers.manager import ContainerManager
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.adapters.openai.containers.transfer import (
    Archive,
    OneByOne,
    Outgoing,
    Progress,
    Refused,
    Sink,
    download,
    in_parallel,
)
from weakincentives.errors import MissingFileError
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.errors import missing_file, not_a_directory, not_a_file
from weakincentives.filesystem.paths import normalise

_MOST_CACHED = 64 << 20
_LARGEST_CACHED = 16 << 20
_FEW = 8  # files that are quicker to get one by one than with all others in one archive


class ContainerContents:
    """What is in the container of a manager. A lodger of it: it moves into every new one."""

    def __init__(self, manager: ContainerManager, mirror: Mirror) -> None:
        self.index = Index()
        self.is_stale = True
        """Somebody may have changed what is there: it has to be looked at before anything is said of it."""
        self.was_stale = True
        self._manager = manager
        self._mirror = mirror
        self._one_by_one = OneByOne()
        self._cache: OrderedDict[tuple[str, int | None, int], bytes] = OrderedDict()
        self._began = datetime.now(UTC)

    # ── moving in ────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Have the mirror there."""
        _ = self._mirror.files

    def settle(self, container_id: str) -> tuple[str, ...]:
        """Put all of the mirror into a container that has none of it; which paths these are."""
        files, directories = self._mirror.listing()
        self.index.clear()
        self._cache.clear()
        for directory in directories:
            self.index.make_directory(directory)
        now = int(datetime.now(UTC).timestamp())
        outgoing: list[Outgoing] = []
        for path, size in files:
            place = self.index.place_for(path)
            self.index.put(Entry(path, place, None, size, now, is_saved=True))
            outgoing.append(Outgoing(path, place, size, partial(self._mirror.open_read, path)))
        self._send(outgoing, directories, container_id)
        self._mirror.sent.update(path for path, _ in files)
        self.is_stale = not self._manager.is_fresh
        return tuple(path for path, _ in files)

    def _send(self, files: Sequence[Outgoing], directories: Sequence[str], container: str) -> None:
        api, progress = self._manager.api, self._progress("upload", container, [file.size for file in files])
        if self._manager.takes_archives:
            if files or directories:
                Archive.send(api, container, files, list(map(self.index.place_for, directories)), progress)
            return
        for file, made in zip(files, self._one_by_one.send(api, container, files, progress), strict=True):
            self.index.put(Entry(file.path, made.place, made.id, file.size, made.created_at, is_saved=True))

    def unsaved(self) -> tuple[str, ...]:
        """The files whose newest content is in the container only, as far as we know."""
        return tuple(entry.path for entry in self.index if not entry.is_saved)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self, container: str) -> None:
        """Look at what is there. Where files that we put there are not, the container itself is asked after first."""
        listed = list(self._manager.api.files(container))
        if self.index.misses(listed):
            self._manager.require()
        self.index.refresh(listed)
        self.is_stale = False

    def look(self, container: str) -> None:
        """The same, where there is a reason to."""
        if self.is_stale:
            self.refresh(container)

    def names(self, path: str, container: str) -> list[str]:
        """What a directory holds."""
        self.look(container)
        if self.index.find(path) is not None:
            raise not_a_directory(path)
        return self.index.names(normalise(path))

    def stat(self, path: str, container: str) -> FileStat:
        """What is at a path. Where the server does not tell a size, the file has to be read for it."""
        self.look(container)
        entry = self.index.find(path)
        if entry is None:
            return FileStat(normalise(path), 0, is_dir=True, modified_at=self._began)
        size = len(self.content(entry, container)) if entry.size is None else entry.size
        return FileStat(entry.path, size, is_dir=False, modified_at=datetime.fromtimestamp(entry.created_at, UTC))

    def read(self, path: str, container: str) -> bytes:
        """A file's content: the mirror's where that is the same, or the cache's, or the container's."""
        self.look(container)
        entry = self.index.find(path)
        if entry is None:
            raise not_a_file(path)
        if entry.is_saved:
            with suppress(MissingFileError):  # somebody has tidied up in the mirror; the container has it still
                return self._mirror.files.read_bytes(entry.path)
        try:
            return self.content(entry, container)
        except FileGone as gone:
            self.is_stale = True
            raise missing_file(path) from gone

    def content(self, entry: Entry, container: str) -> bytes:
        """What the container has. Kept by id and size, since another content has another of the one or the other."""
        entry = self._listed(entry, container)
        key = (entry.file_id or "", entry.size, entry.created_at)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        target = io.BytesIO()
        download(self._manager.api, container, entry, target)
        content = target.getvalue()
        if entry.size is not None and len(content) <= _LARGEST_CACHED:
            self._cache[key] = content
            while sum(map(len, self._cache.values())) > _MOST_CACHED:
                self._cache.popitem(last=False)
        return content

    def _listed(self, entry: Entry, container: str) -> Entry:
        """The same file, with the id that an archive did not tell."""
        if entry.file_id is not None:
            return entry
        self.refresh(container)
        found = self.index.get(entry.path)
        if found is None:
            raise missing_file(entry.path)
        return found

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def upload(self, path: str, size: int, source: Callable[[], BinaryIO], container: str) -> None:
        """Put a file there; only then does the one before it go."""
        before, place = self.index.get(path), self.index.place_for(path)
        if before is not None and before.place != place:
            before = self._listed(before, container)
        made = self._one_by_one.send_one(self._manager.api, container, Outgoing(path, place, size, source))
        self.index.put(Entry(path, made.place, made.id, size, made.created_at))
        if before is not None and before.file_id not in (None, made.id):
            self._remove(before, container)

    def delete(self, path: str, container: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        is_file = self.index.get(path) is not None
        if any(entry.file_id is None for entry in self.index.at(path)):
            self.refresh(container)
        in_parallel([partial(self._remove, entry, container) for entry in self.index.at(path)], lambda: None)
        if not is_file:
            self.index.drop_directory(path)
        elif self.index.get(path) is not None:
            self.index.drop(path)

    def _remove(self, entry: Entry, container: str) -> None:
        with suppress(FileGone):  # so it is where it should be
            self._manager.api.remove(container, entry.file_id or "")

    def make_directory(self, path: str, container: str) -> None:
        """Where directories can be sent, code in the container sees it too; elsewhere it is our own knowledge."""
        if not self.index.is_directory(path):
            if self._manager.takes_archives:
                self._send([], [path], container)
            self.index.make_directory(path)

    def unsaved_at(self, path: str, container: str) -> dict[str, bytes]:
        """The content of a file, or of those below a directory, that only the container has."""
        return {entry.path: self.content(entry, container) for entry in self.index.at(path) if not entry.is_saved}

    # ── bringing it here ─────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, wanted: Sequence[Entry], sink: Sink, container: str) -> tuple[dict[str, int], Refused]:
        """Hand files to a sink, by the quicker route; how many bytes each of them had, and what was not taken."""
        came, counting = _counting(sink)
        api, progress = self._manager.api, self._progress("download", container, [one.size or 0 for one in wanted])
        if self._manager.takes_archives and len(wanted) > _FEW:
            paths = {one.place: one.path for one in wanted}
            return came, Archive.fetch(api, container, paths.get, counting, progress)
        listed = [self._listed(entry, container) for entry in wanted]
        return came, self._one_by_one.fetch(api, container, listed, counting, progress)

    def fetch_all(self, sink: Sink, container: str) -> tuple[dict[str, int], Refused] | None:
        """Hand everything to a sink without so much as a listing; None where another route is quicker."""
        if not self._manager.takes_archives or not (self.is_stale or len(self.unsaved()) > _FEW):
            return None
        came, counting = _counting(sink)
        progress = self._progress("download", container, None)
        return came, Archive.fetch(self._manager.api, container, self.index.path_of, counting, progress)

    def _progress(
        self, direction: Literal["upload", "download"], container: str, sizes: Sequence[int] | None
    ) -> Progress:
        return Progress(self._manager.tell, direction, container, sizes, session_id=self._manager.session_id)


def _counting(sink: Sink) -> tuple[dict[str, int], Sink]:
    """The same sink, and how many bytes it was given for each path."""
    came: dict[str, int] = {}

    def counting(path: str, content: Iterator[bytes]) -> None:
        sizes: list[int] = []
        sink(path, (piece for piece in content if sizes.append(len(piece)) is None))
        came[path] = sum(sizes)

    return came, counting
