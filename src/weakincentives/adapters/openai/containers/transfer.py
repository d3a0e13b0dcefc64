"""Many files into a container and out of it: one by one in parallel, or as one tar. And how far that has come."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import BinaryIO, Literal, TypeAlias, TypeVar, cast

from weakincentives.adapters.openai.containers.api import ContainerApi, FileGone, RemoteFile
from weakincentives.adapters.openai.containers.index import Entry
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import (
    FilesystemError,
    InvalidPathError,
    NotADirectoryPathError,
    NotAFileError,
    ProviderFault,
)
from weakincentives.filesystem.tar import TarEntry, TarMember, pack, unpack
from weakincentives.runtime import TransferProgress

T = TypeVar("T")

Sink: TypeAlias = Callable[[str, Iterator[bytes]], object]
"""Takes a path and what the file there is to hold. Called by one thread at a time."""

Refused: TypeAlias = list[tuple[str, str]]
"""Names that a sink did not take, and why."""

WORKERS = 8
_TICK = 0.1
_IN_MEMORY = 1 << 20
_CHUNK = 1 << 18
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A file to be sent: its path, where it should lie, and how to open it."""

    path: str
    place: str
    size: int
    open: Callable[[], BinaryIO]


class Progress:
    """Counts, and tells at most some times a second; always from the thread that asked for the transfer.

    Without `sizes` nobody knows how much there is: then there is always one file to come, until the end.
    """

    def __init__(
        self,
        tell: Callable[[TransferProgress], object],
        direction: Literal["upload", "download"],
        container_id: str,
        sizes: Sequence[int] | None,
        *,
        session_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tell = tell
        self._direction: Literal["upload", "download"] = direction
        self._container_id = container_id
        self._session_id = session_id
        self._clock = clock
        self._files, self._bytes = 0, 0
        self._totals = None if sizes is None else (len(sizes), sum(sizes))
        self._lock = Lock()
        self._last = clock.monotonic()

    def moved(self, count: int) -> None:
        """So many bytes more, or less where something is sent again."""
        with self._lock:
            self._bytes += count

    def restart(self) -> None:
        """All of it again, from the beginning."""
        with self._lock:
            self._files = self._bytes = 0

    def finished(self) -> None:
        """One file more."""
        with self._lock:
            self._files += 1

    def tick(self, *, last: bool = False) -> None:
        """Tell, if it is time."""
        now = self._clock.monotonic()
        if now - self._last < _TICK and not last:
            return
        self._last = now
        with self._lock:
            most, size = self._totals or (self._files + (not last), self._bytes)
            if not most:
                return
            files = most if last else min(self._files, most - 1)
            told = TransferProgress(
                direction=self._direction,
                container_id=self._container_id,
                files=files,
                bytes=self._bytes,
                total_files=most,
                total_bytes=size,
                session_id=self._session_id,
            )
        self._tell(told)


class OneByOne:
    """The route that every server has. Remembers whether this one keeps directories in names."""

    def __init__(self) -> None:
        self._is_flat: bool | None = None

    def send(
        self, api: ContainerApi, container_id: str, files: Sequence[Outgoing], progress: Progress
    ) -> list[RemoteFile]:
        """Upload all of them; where each of them lies, in their order. The first that fails ends it."""
        nested = next((file for file in files if "/" in file.place), None)
        made: dict[str, RemoteFile] = {}
        if self._is_flat is None and nested is not None:  # one goes ahead, to see what becomes of its name
            made[nested.path] = self.send_one(api, container_id, nested, progress)
        rest = [file for file in files if file.path not in made]
        jobs = [lambda file=file: self.send_one(api, container_id, file, progress) for file in rest]
        made |= zip((file.path for file in rest), in_parallel(jobs, progress.tick), strict=True)
        progress.tick(last=True)
        return [made[file.path] for file in files]

    def send_one(
        self, api: ContainerApi, container_id: str, file: Outgoing, progress: Progress | None = None
    ) -> RemoteFile:
        """Upload one. A server that will not have a directory in a name gets one without."""
        name = file.place.replace("%", "%25").replace("/", "%2F") if self._is_flat else file.place
        try:
            made = api.upload(container_id, name, _counting(file.open, progress))
        except ProviderFault as fault:
            if self._is_flat is not None or fault.status != _BAD_REQUEST or "/" not in name:
                raise
            self._is_flat = True
            return self.send_one(api, container_id, file, progress)
        if self._is_flat is None and "/" in name:
            self._is_flat = "/" not in made.place
            if self._is_flat:  # its bare name may be another file's
                api.remove(container_id, made.id)
                return self.send_one(api, container_id, file, progress)
        if made.size not in (None, file.size):
            raise FilesystemError(
                f"{file.path!r} has {made.size} bytes in the container, not {file.size}", path=file.path
            )
        if progress is not None:
            progress.finished()
        return made

    @staticmethod
    def fetch(
        api: ContainerApi, container_id: str, entries: Sequence[Entry], sink: Sink, progress: Progress
    ) -> Refused:
        """Download all of them into a sink. What has vanished meanwhile is passed over."""
        refused: Refused = []
        writing = Lock()

        def fetch_one(entry: Entry) -> None:
            with SpooledTemporaryFile(_IN_MEMORY) as spool:
                try:
                    download(api, container_id, entry, cast("BinaryIO", spool), progress)
                except FileGone:
                    return
                spool.seek(0)
                with writing:
                    _hand_over(sink, entry.path, iter(lambda: spool.read(_CHUNK), b""), refused)
            progress.finished()

        in_parallel([lambda entry=entry: fetch_one(entry) for entry in entries], progress.tick)
        progress.tick(last=True)
        return refused


class Archive:
    """The route of servers that unpack and pack."""

    @staticmethod
    def send(
        api: ContainerApi, container_id: str, files: Sequence[Outgoing], directories: Sequence[str], progress: Progress
    ) -> None:
        """One tar up."""

        def tar() -> Iterator[bytes]:
            progress.restart()
            packed = [TarEntry(name) for name in directories]
            packed += [TarEntry(file.place, file.size, _counting(file.open, progress)) for file in files]
            for piece in pack(packed, lambda _: progress.finished()):
                yield piece
                progress.tick()

        api.unpack(container_id, tar)
        progress.tick(last=True)

    @staticmethod
    def fetch(
        api: ContainerApi, container_id: str, wanted: Callable[[str], str | None], sink: Sink, progress: Progress
    ) -> Refused:
        """One tar down. `wanted` tells the path of a place; what has none is passed over."""
        refused: Refused = []
        with api.pack(container_id) as pieces:
            for member in unpack(pieces):
                place = member.name.removeprefix("./")
                if member.kind == "other":
                    refused.append((place, "it is a link or a device; only files and directories are taken"))
                elif member.kind == "file" and (path := wanted(place)) is not None:
                    _hand_over(sink, path, _watched(member, progress), refused)
                    progress.finished()
                progress.tick()
        progress.tick(last=True)
        return refused


def download(
    api: ContainerApi, container_id: str, entry: Entry, target: BinaryIO, progress: Progress | None = None
) -> None:
    """Write a file's content to `target`, from the beginning again where it broke off."""

    def once() -> None:
        came = -target.tell()
        target.seek(0)
        target.truncate()
        if progress is not None:
            progress.moved(came)
        with api.content(container_id, entry.file_id or "") as pieces:
            for piece in pieces:
                target.write(piece)
                if progress is not None:
                    progress.moved(len(piece))

    with_backoff(once, policy=ThrottlePolicy(max_attempts=3), deadline=api.deadline)


def in_parallel(jobs: Sequence[Callable[[], T]], tick: Callable[[], object]) -> list[T]:
    """The results of all jobs, in their order. The first error ends it: what has not begun is not begun."""
    if not jobs:
        return []
    with ThreadPoolExecutor(min(WORKERS, len(jobs)), thread_name_prefix="workspace") as threads:
        futures = [threads.submit(job) for job in jobs]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, _TICK, FIRST_EXCEPTION)
                tick()
                for future in done:
                    future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def _hand_over(sink: Sink, path: str, content: Iterator[bytes], refused: Refused) -> None:
    try:
        sink(path, content)
    except (InvalidPathError, NotAFileError, NotADirectoryPathError) as error:
        refused.append((path, str(error)))


def _watched(member: TarMember, progress: Progress) -> Iterator[bytes]:
    for piece in member.content:
        progress.moved(len(piece))
        progress.tick()
        yield piece


class _Counted(io.BufferedReader):
    """A file that tells how much of it was read, and takes that back when it is read from the beginning again."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        super().__init__(cast("io.RawIOBase", file))
        self._progress = progress
        self._told = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._told += len(data)
        self._progress.moved(len(data))
        return data

    def seek(self, target: int, whence: int = 0, /) -> int:
        if target == 0 and whence == 0:
            self.take_back()
        return super().seek(target, whence)

    def take_back(self) -> None:
        self._progress.moved(-self._told)
        self._told = 0


def _counting(source: Callable[[], BinaryIO], progress: Progress | None) -> Callable[[], BinaryIO]:
    """The same file, opened once for each try; what an earlier try has read does not count."""
    if progress is None:
        return source
    last: list[_Counted] = []

    def opened() -> BinaryIO:
        for earlier in last:
            earlier.take_back()
        last[:] = [_Counted(source(), progress)]
        return last[0]

    return opened
