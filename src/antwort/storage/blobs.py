"""Blob storage: file contents as files in one directory, under random names that no caller chooses.

A blob is written under a temporary name, fsynced and renamed, so a blob with its final name is complete. Until its
record is committed too, the writer holds a lock (flock) on it. A blob with neither a record nor a lock was left by a
killed process, and `remove_orphans` deletes it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar, TypeVarTuple, Unpack

from antwort.engine.stores import StoreFault
from antwort.storage.errors import translate_errors

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHUNK_SIZE = 1024 * 1024
THREADS = 4

_PARTIAL_SUFFIX = ".part"
_BLOB_NAME_RE = re.compile(r"[0-9a-f]{32}(?:\.part)?")


class BlobUpload:
    """A blob that is being written. The methods block on the disk and are thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.name = secrets.token_hex(16)
        self.size = 0
        self._directory = directory
        self._fd: int | None = None
        self._closed = False
        self._lock = Lock()

    def write(self, data: bytes) -> None:
        """Append data."""
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._open(), rest) :]
            self.size += len(data)

    def finish(self) -> None:
        """Make the complete blob durable, under its final name."""
        with self._lock:
            os.fsync(self._open())
            (self._directory / (self.name + _PARTIAL_SUFFIX)).rename(self._directory / self.name)
            _fsync_directory(self._directory)

    def close(self, keep: bool) -> None:  # noqa: FBT001 - the writer thread calls it with the outcome
        """End the upload: `keep` the blob if its record was committed, otherwise delete it."""
        with self._lock:
            self._closed = True
            if not keep:
                _unlink(self._directory, (self.name, self.name + _PARTIAL_SUFFIX))
            if self._fd is not None:
                with suppress(OSError):
                    os.close(self._fd)  # this releases the lock
                self._fd = None

    def _open(self) -> int:
        if self._closed:
            raise StoreFault("The upload was aborted.")
        while self._fd is None:
            file = os.open(self._directory / (self.name + _PARTIAL_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            if _try_lock(file):
                self._fd = file
            else:  # `remove_orphans` deleted it before it was locked
                os.close(file)
                self.name = secrets.token_hex(16)
        return self._fd


class BlobDownload:
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


class BlobStore:
    """A directory of blobs, created if missing. The constructor blocks on the disk."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="antwort-blobs")
        self._closed = False

    async def write(self, content: AsyncIterator[bytes]) -> BlobUpload:
        """Write a blob. The caller must `close` the returned upload; on an error the blob is deleted here."""
        upload = BlobUpload(self._directory)
        try:
            async for piece in _batched(content):
                await self._run(upload.write, piece)
            await self._run(upload.finish)
        except BaseException:
            # Also on cancellation: shielded, so that the deletion completes even if the caller cannot wait for it.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(upload.close, keep=False)))
            raise
        return upload

    async def open(self, name: str) -> BlobDownload | None:
        """A blob for reading, or None if there is none of this name."""
        return await self._run(self._open_blob, name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete blobs whose records are deleted. Blocks on the disk. A failed deletion is left to `remove_orphans`."""
        _unlink(self._directory, names)

    def remove_orphans(self, is_referenced: Callable[[str], bool]) -> None:
        """Delete blobs that are neither locked by a writer nor referenced by a record. Blocks on the disk."""
        for name in _blob_names(self._directory):
            if not is_referenced(name):
                _remove_orphan(self._directory, name, is_referenced)

    def close(self) -> None:
        """Wait for running operations."""
        self._closed = True
        self._threads.shutdown()

    def _open_blob(self, name: str) -> BlobDownload | None:
        try:
            return BlobDownload(self._directory / name, self._read)
        except FileNotFoundError:
            return None

    async def _read(self, file: int, offset: int) -> bytes:
        return await self._run(os.pread, file, CHUNK_SIZE, offset)

    async def _run(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        if self._closed:
            raise StoreFault("The store is closed.")
        with translate_errors():
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


def _blob_names(directory: Path) -> Iterator[str]:
    """The names of complete and partial blobs. Other files in the directory are ignored."""
    with os.scandir(directory) as entries:
        yield from [entry.name for entry in entries if _BLOB_NAME_RE.fullmatch(entry.name)]


def _remove_orphan(directory: Path, name: str, is_referenced: Callable[[str], bool]) -> None:
    with suppress(FileNotFoundError):
        file = os.open(directory / name, os.O_RDONLY)
        try:
            # Checked again under the lock: the record may have been committed since.
            if _try_lock(file) and not is_referenced(name):
                _unlink(directory, (name,))
        finally:
            os.close(file)


def _try_lock(file: int) -> bool:
    """Lock a file without waiting; False if it is locked by another or already deleted."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


def _unlink(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            (directory / name).unlink()


def _fsync_directory(directory: Path) -> None:
    """Make the directory entries durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
