"""Upload and download of many files: one by one in parallel, or as one tar archive; with progress events."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import BinaryIO, Literal, TypeAlias, TypeVar, cast

from weakincentives.adapters.openai.containers.api import FileGone, RemoteFile
from weakincentives.adapters.openai.containers.index import FileEntry
from weakincentives.adapters.openai.containers.manager import OpenContainer
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import FilesystemError, InvalidPathError, ProviderFault
from weakincentives.filesystem.tar import TarEntry, TarMember, pack, unpack
from weakincentives.runtime import TransferProgress

T = TypeVar("T")

Sink: TypeAlias = Callable[[str, Iterator[bytes]], object]
"""Writes the content of one path. Called by one thread at a time."""

Direction: TypeAlias = Literal["upload", "download"]

PATH_ERRORS = (InvalidPathError, IsADirectoryError, NotADirectoryError)
MAX_WORKERS = 8
_REPORT_INTERVAL_SECONDS = 0.1
_MAX_SPOOLED_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class FileUpload:
    """A file to upload: its path, the remote path to request, and how to open it."""

    path: str
    remote_path: str
    size: int
    open: Callable[[], BinaryIO]


@dataclass
class Download:
    """The outcome of a download: the bytes of each file, and names that the sink refused, each with the reason."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def write(self, sink: Sink, path: str, content: Iterator[bytes]) -> None:
        sizes: list[int] = []
        try:
            sink(path, (chunk for chunk in content if sizes.append(len(chunk)) is None))
        except PATH_ERRORS as error:
            self.refused.append((path, str(error)))
        else:
            self.sizes[path] = sum(sizes)


class ProgressReporter:
    """Counts files and bytes; reports `TransferProgress` at most ten times a second, from the transferring thread.

    Without `sizes` the total is unknown: then the total is one file more than were transferred, until the end.
    """

    def __init__(
        self,
        container: OpenContainer,
        direction: Direction,
        sizes: Sequence[int] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._container = container
        self._direction: Direction = direction
        self._clock = clock
        self._files, self._bytes = 0, 0
        self._totals = None if sizes is None else (len(sizes), sum(sizes))
        self._lock = Lock()
        self._last_report = clock.monotonic()

    def add_bytes(self, count: int) -> None:
        """Count bytes; a negative number takes back those of an attempt that is repeated."""
        with self._lock:
            self._bytes += count

    def add_file(self) -> None:
        """Count a complete file."""
        with self._lock:
            self._files += 1

    def restart(self) -> None:
        """Count from zero: the whole transfer is repeated."""
        with self._lock:
            self._files = self._bytes = 0

    def report(self, *, is_last: bool = False) -> None:
        """Dispatch the progress, if the interval has passed or the transfer is complete."""
        now = self._clock.monotonic()
        if now - self._last_report < _REPORT_INTERVAL_SECONDS and not is_last:
            return
        self._last_report = now
        with self._lock:
            total_files, total_bytes = self._totals or (self._files + (not is_last), self._bytes)
            if not total_files:
                return
            progress = TransferProgress(
                direction=self._direction,
                container_id=self._container.id,
                files=total_files if is_last else min(self._files, total_files - 1),
                bytes=self._bytes,
                total_files=total_files,
                total_bytes=total_bytes,
                session_id=self._container.session_id,
            )
        self._container.dispatch(progress)


class FileUploader:
    """Uploads single files, which every server accepts. Remembers whether the server keeps directories in names."""

    def __init__(self) -> None:
        self._is_flat: bool | None = None

    def send_all(self, files: Sequence[FileUpload], container: OpenContainer) -> list[RemoteFile]:
        """Upload files in parallel and return them in order. The first failure ends the transfer."""
        progress = ProgressReporter(container, "upload", [file.size for file in files])
        nested = next((file for file in files if "/" in file.remote_path), None)
        created: dict[str, RemoteFile] = {}
        if self._is_flat is None and nested is not None:  # one upload first, to learn what the server does with names
            created[nested.path] = self.send(nested, container, progress)
        rest = [file for file in files if file.path not in created]
        jobs = [lambda file=file: self.send(file, container, progress) for file in rest]
        created |= zip((file.path for file in rest), run_parallel(jobs, progress.report), strict=True)
        progress.report(is_last=True)
        return [created[file.path] for file in files]

    def send(self, file: FileUpload, container: OpenContainer, progress: ProgressReporter | None = None) -> RemoteFile:
        """Upload one file. A server that does not keep directories in names gets a percent-encoded name."""
        name = file.remote_path.replace("%", "%25").replace("/", "%2F") if self._is_flat else file.remote_path
        try:
            created = container.api.upload_file(container.id, name, _counting_source(file.open, progress))
        except ProviderFault as fault:
            if self._is_flat is not None or fault.status != _BAD_REQUEST or "/" not in name:
                raise
            self._is_flat = True
            return self.send(file, container, progress)
        if self._is_flat is None and "/" in name:
            self._is_flat = "/" not in created.remote_path
            if self._is_flat:  # its name without directories may be the name of another file
                container.api.delete_file(container.id, created.id)
                return self.send(file, container, progress)
        if created.size not in (None, file.size):
            raise FilesystemError(
                f"{file.path!r} has {created.size} bytes in the container, not {file.size}", path=file.path
            )
        if progress is not None:
            progress.add_file()
        return created


def fetch_files(entries: Sequence[FileEntry], sink: Sink, container: OpenContainer) -> Download:
    """Download files in parallel into a sink. A file that no longer exists is skipped."""
    progress = ProgressReporter(container, "download", [one.size or 0 for one in entries])
    result = Download()
    sink_lock = Lock()

    def fetch_one(entry: FileEntry) -> None:
        with SpooledTemporaryFile(_MAX_SPOOLED_BYTES) as spool:
            try:
                fetch_file(entry, cast("BinaryIO", spool), container, progress)
            except FileGone:
                return
            spool.seek(0)
            with sink_lock:
                result.write(sink, entry.path, iter(lambda: spool.read(_CHUNK_BYTES), b""))
        progress.add_file()

    run_parallel([lambda entry=entry: fetch_one(entry) for entry in entries], progress.report)
    progress.report(is_last=True)
    return result


def fetch_file(
    entry: FileEntry, target: BinaryIO, container: OpenContainer, progress: ProgressReporter | None = None
) -> None:
    """Download a file into `target`; after an incomplete attempt, again from the beginning."""

    def attempt() -> None:
        taken_back = -target.tell()
        target.seek(0)
        target.truncate()
        if progress is not None:
            progress.add_bytes(taken_back)
        with container.api.stream_file(container.id, entry.file_id or "") as chunks:
            for chunk in chunks:
                target.write(chunk)
                if progress is not None:
                    progress.add_bytes(len(chunk))

    with_backoff(attempt, policy=ThrottlePolicy(max_attempts=3), deadline=container.api.deadline)


def send_archive(files: Sequence[FileUpload], directories: Sequence[str], container: OpenContainer) -> None:
    """Upload files and directories as one tar."""
    progress = ProgressReporter(container, "upload", [file.size for file in files])

    def tar() -> Iterator[bytes]:
        progress.restart()
        packed = [TarEntry(name) for name in directories]
        packed += [TarEntry(file.remote_path, file.size, _counting_source(file.open, progress)) for file in files]
        for chunk in pack(packed, lambda _: progress.add_file()):
            yield chunk
            progress.report()

    container.api.upload_archive(container.id, tar)
    progress.report(is_last=True)


def fetch_archive(
    path_of: Callable[[str], str | None], sink: Sink, container: OpenContainer, sizes: Sequence[int] | None = None
) -> Download:
    """Download one tar. `path_of` maps a remote path to the path for the sink; None skips the file."""
    progress = ProgressReporter(container, "download", sizes)
    result = Download()
    with container.api.stream_archive(container.id) as chunks:
        for member in unpack(chunks):
            remote_path = member.name.removeprefix("./")
            if member.kind == "other":
                reason = "it is a link or a device; only files and directories are accepted"
                result.refused.append((remote_path, reason))
            elif member.kind == "file" and (path := path_of(remote_path)) is not None:
                result.write(sink, path, _counted_content(member, progress))
                progress.add_file()
            progress.report()
    progress.report(is_last=True)
    return result


def run_parallel(jobs: Sequence[Callable[[], T]], on_wait: Callable[[], object]) -> list[T]:
    """Run jobs in threads and return their results in order. The first error cancels the jobs that have not begun."""
    if not jobs:
        return []
    with ThreadPoolExecutor(min(MAX_WORKERS, len(jobs)), thread_name_prefix="workspace") as threads:
        futures = [threads.submit(job) for job in jobs]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, _REPORT_INTERVAL_SECONDS, FIRST_EXCEPTION)
                on_wait()
                for future in done:
                    future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def _counted_content(member: TarMember, progress: ProgressReporter) -> Iterator[bytes]:
    for chunk in member.content:
        progress.add_bytes(len(chunk))
        progress.report()
        yield chunk


class _CountingReader(io.BufferedReader):
    """A file that counts the bytes read, and takes them back when it is read from the beginning again."""

    def __init__(self, file: BinaryIO, progress: ProgressReporter) -> None:
        super().__init__(cast("io.RawIOBase", file))
        self._progress = progress
        self._counted = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._counted += len(data)
        self._progress.add_bytes(len(data))
        return data

    def seek(self, target: int, whence: int = 0, /) -> int:
        if target == 0 and whence == 0:
            self.take_back()
        return super().seek(target, whence)

    def take_back(self) -> None:
        self._progress.add_bytes(-self._counted)
        self._counted = 0


def _counting_source(source: Callable[[], BinaryIO], progress: ProgressReporter | None) -> Callable[[], BinaryIO]:
    """Count the bytes of a file that is opened once per attempt; the bytes of an earlier attempt do not count."""
    if progress is None:
        return source
    last: list[_CountingReader] = []

    def opened() -> BinaryIO:
        for earlier in last:
            earlier.take_back()
        last[:] = [_CountingReader(source(), progress)]
        return last[0]

    return opened
