"""Blobs as files in one directory, under random names that no caller chooses.

A blob is written under a temporary name, fsynced and renamed, so a blob with its final name is complete. A directory
is used by one process (`is_shared` is false; the store's lock ensures it), or by several, maybe on a network volume.
One process knows its own uploads, so every other blob without a record is an orphan. Of several processes, none knows
the uploads of the others, and locks of files may not work across hosts: there a blob counts as an upload in progress
until it was not written to for `orphan_age`.

A file in the directory has the id of the store that it belongs to. Another store, of either kind, refuses to start with
it, because every blob in it would be an orphan there.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar, TypeVarTuple, Unpack

from antwort.engine.stores import StoreFault
from antwort.storage.blobs.port import ORPHAN_AGE, KnownBlobs, UploadAge
from antwort.storage.errors import UnusableStore, translate_os_errors

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHUNK_SIZE = 1024 * 1024
THREADS = 4
OWNER_FILE = "antwort-store"
"""The file with the id of the store that the directory belongs to, and with the id of the directory."""

_KNOWN_SIZE = 1000
"""Blobs in one question for those that the store knows."""
_MARK_TIMEOUT = 2.0
"""Seconds in which another process completes a mark that it has begun."""
_MARK_POLL = 0.02
_PARTIAL_SUFFIX = ".part"
_BLOB_NAME_RE = re.compile(r"(?P<name>[0-9a-f]{32})(?:\.part)?")


class _FileUpload:
    """A blob that is being written. `write` and `finish` block on the disk."""

    def __init__(self, directory: Path, age: UploadAge, on_closed: Callable[[str], None]) -> None:
        self.name = secrets.token_hex(16)
        self.size = 0
        self._directory = directory
        self._age = age
        self._on_closed = on_closed
        self._fd: int | None = None
        self._closed = False
        self._lock = Lock()  # the upload may be closed while a thread writes

    def write(self, data: bytes) -> None:
        """Append data."""
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._open(), rest) :]
            self.size += len(data)
            self._age.written()

    def finish(self) -> None:
        """Make the complete blob durable, under its final name."""
        with self._lock:
            os.fsync(self._open())
            (self._directory / (self.name + _PARTIAL_SUFFIX)).rename(self._directory / self.name)
            _fsync_directory(self._directory)

    def check_fresh(self) -> None:
        self._age.check()

    async def close(self, keep: bool | None) -> None:  # noqa: FBT001 - as in the port
        await asyncio.to_thread(self._close, keep)

    def _close(self, keep: bool | None) -> None:  # noqa: FBT001 - as in the port
        with self._lock:
            self._closed = True
            if keep is False:
                _unlink(self._directory, (self.name,))
            if self._fd is not None:
                with suppress(OSError):
                    os.close(self._fd)
                self._fd = None
        self._on_closed(self.name)

    def _open(self) -> int:
        if self._closed:
            raise StoreFault("The upload was aborted.")
        if self._fd is None:
            path = self._directory / (self.name + _PARTIAL_SUFFIX)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return self._fd


class _FileDownload:
    """Iterator over the chunks of a blob. It stays readable if the blob is deleted meanwhile."""

    def __init__(self, path: Path, read: Callable[[int, int], Awaitable[bytes]]) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._read = read
        self._offset = 0
        self._close = weakref.finalize(self, os.close, self._fd)  # also when the iterator is garbage-collected

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._read(self._fd, self._offset) if self._close.alive else b""
        if not chunk:
            self._close()
            raise StopAsyncIteration
        self._offset += len(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the file."""
        self._close()


class DirectoryBlobs:
    """A `BlobStore`: a directory, created if missing. The constructor blocks on the disk."""

    def __init__(self, directory: Path, *, is_shared: bool = False, orphan_age: float = ORPHAN_AGE) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._orphan_age = orphan_age if is_shared else None
        self._uploads: set[str] = set()
        self._cursor = ""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="antwort-blobs")
        self._closed = False

    async def claim(self, store_id: str, known: KnownBlobs) -> str:
        path = self._directory / OWNER_FILE
        if not await self._run(path.exists) and not await self._is_known(known) and not await self._run(path.exists):
            # Still without a mark: no other process has marked it, and then written these blobs, meanwhile.
            raise UnusableStore(
                f"{self._directory} has files that this database does not know, and no {OWNER_FILE!r} that says which "
                "database they belong to. Set `storage.blobs` to another directory; or, if no database needs them, "
                "delete them."
            )
        return await self._run(_claim, path, store_id)

    async def write(self, content: AsyncIterator[bytes]) -> _FileUpload:
        upload = _FileUpload(self._directory, UploadAge(self._orphan_age), self._uploads.discard)
        self._uploads.add(upload.name)
        try:
            async for piece in _batched(content):
                await self._run(upload.write, piece)
            await self._run(upload.finish)
        except BaseException:
            # Also on cancellation: shielded, so that the deletion completes even if the caller cannot wait for it.
            await asyncio.shield(asyncio.ensure_future(upload.close(keep=False)))
            raise
        return upload

    async def open(self, name: str) -> _FileDownload | None:
        return await self._run(self._open_blob, name)

    async def remove(self, names: Iterable[str]) -> None:
        await asyncio.to_thread(_unlink, self._directory, list(names))

    async def unowned(self, limit: int) -> list[str]:
        return await self._run(self._unowned, limit)

    async def aclose(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)

    async def _is_known(self, known: KnownBlobs) -> bool:
        """Whether the store knows one of the complete blobs, or there is none."""
        names = await self._run(_complete_blobs, self._directory)
        for start in range(0, len(names), _KNOWN_SIZE):
            if await known(names[start : start + _KNOWN_SIZE]):
                return True
        return not names

    def _unowned(self, limit: int) -> list[str]:
        oldest = None if self._orphan_age is None else time.time() - self._orphan_age
        following = (name for name in _blobs(self._directory, oldest) if name > self._cursor)
        found = heapq.nsmallest(limit, following)
        self._cursor = found[-1] if len(found) == limit else ""
        # After the listing, and before the records are looked up: an upload that ends later is left out here, and one
        # that ended earlier has its record by now.
        return [name for name in dict.fromkeys(found) if name not in self._uploads]

    def _open_blob(self, name: str) -> _FileDownload | None:
        try:
            return _FileDownload(self._directory / name, self._read)
        except FileNotFoundError:
            return None

    async def _read(self, file: int, offset: int) -> bytes:
        return await self._run(os.pread, file, CHUNK_SIZE, offset)

    async def _run(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        if self._closed:
            raise StoreFault("The store is closed.")
        with translate_os_errors():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


async def _batched(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Concatenate small chunks, so that the disk thread is not called for each."""
    buffer = bytearray()
    async for piece in content:
        buffer += piece
        if len(buffer) >= CHUNK_SIZE:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def _blobs(directory: Path, written_before: float | None) -> Iterator[str]:
    """The names of complete and partial blobs, last written to before a time. Other files are ignored."""
    with os.scandir(directory) as entries:
        for entry in entries:
            found = _BLOB_NAME_RE.fullmatch(entry.name)
            if found is None:
                continue
            with suppress(FileNotFoundError):  # deleted or renamed meanwhile
                if written_before is None or entry.stat(follow_symlinks=False).st_mtime < written_before:
                    yield found["name"]


def _complete_blobs(directory: Path) -> list[str]:
    """The names of complete blobs: a partial one has no record, so it says nothing about whose it is."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if _BLOB_NAME_RE.fullmatch(entry.name) and "." not in entry.name]


def _claim(path: Path, store_id: str) -> str:
    """Mark the directory as that of a store, unless it is marked; the random id of the directory.

    Its path would not do: hosts mount one directory at different paths, and different ones at one path.
    """
    if not path.exists():
        _write_mark(path, f"{store_id}\n{secrets.token_hex(16)}\n".encode())
    owner, directory_id = _read_mark(path)
    if owner != store_id:
        raise UnusableStore(
            f"{path.parent} holds the files of another database. Set `storage.blobs` to another directory; or, if that "
            f"database does not exist any more, delete {path}."
        )
    return directory_id


def _write_mark(path: Path, mark: bytes) -> None:
    """Create the mark, complete at once where there are hard links; does nothing if another process was faster."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        _create(new, mark)
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:  # no hard links: SMB, FAT, most FUSE file systems. Or no space, which fails here again
        with suppress(FileExistsError):
            _create(path, mark)
    finally:
        new.unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _read_mark(path: Path) -> tuple[str, str]:
    """The ids in the mark. Without hard links another process may be writing it."""
    deadline = time.monotonic() + _MARK_TIMEOUT
    while True:
        lines = path.read_text(encoding="ascii", errors="replace").split("\n")
        match lines:
            case [owner, directory_id, *_, _]:
                return owner, directory_id.strip()
            case _ if time.monotonic() > deadline:
                raise UnusableStore(f"{path} is incomplete: the process that wrote it was killed. Delete that file.")
            case _:
                time.sleep(_MARK_POLL)


def _unlink(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        for file in (name, name + _PARTIAL_SUFFIX):
            with suppress(OSError):
                (directory / file).unlink()


def _fsync_directory(directory: Path) -> None:
    """Make the directory entries durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
