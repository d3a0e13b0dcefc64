"""Contents of files, as files in one directory. Names are ours and random; nothing of a caller's is a path.

A content is written under a temporary name, forced to disk and renamed, so one with its final name is whole. While
it is under way, until its record is durable too, its file is locked: what is there without a record and without a
lock is what a killed process has left, and is swept away.
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
from antwort.storage.errors import faults_told

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHUNK = 1024 * 1024
THREADS = 4

_TEMPORARY = ".part"
_OURS = re.compile(r"[0-9a-f]{32}(?:\.part)?")


class Upload:
    """A content on its way in. Its methods wait for the disk; they may come from several threads."""

    def __init__(self, folder: Path) -> None:
        self.name = secrets.token_hex(16)
        self.size = 0
        self._folder = folder
        self._file: int | None = None
        self._settled = False
        self._lock = Lock()

    def write(self, data: bytes) -> None:
        """Add to it."""
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._open(), rest) :]
            self.size += len(data)

    def finish(self) -> None:
        """All is there: make it durable, under its final name."""
        with self._lock:
            os.fsync(self._open())
            (self._folder / (self.name + _TEMPORARY)).rename(self._folder / self.name)
            _force(self._folder)

    def settle(self, kept: bool) -> None:  # noqa: FBT001 — there is nothing else that it could be
        """It has a record now, or never will and is removed. Either way nothing more is written."""
        with self._lock:
            self._settled = True
            if not kept:
                _unlink(self._folder, (self.name, self.name + _TEMPORARY))
            if self._file is not None:
                with suppress(OSError):
                    os.close(self._file)  # and with it goes the lock
                self._file = None

    def _open(self) -> int:
        if self._settled:
            raise StoreFault("The upload was given up.")
        while self._file is None:
            file = os.open(self._folder / (self.name + _TEMPORARY), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            if _locked(file):
                self._file = file
            else:  # a sweep took it for a leftover before it was locked
                os.close(file)
                self.name = secrets.token_hex(16)
        return self._file


class Download:
    """A content on its way out: its chunks. It stays readable when it is deleted meanwhile."""

    def __init__(self, path: Path, read: Callable[[int, int], Awaitable[bytes]]) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._read = read
        self._offset = 0
        self._close = weakref.finalize(self, os.close, self._file)  # also when it is dropped half-way

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._read(self._file, self._offset) if self._close.alive else b""
        if not chunk:
            self._close()
            raise StopAsyncIteration
        self._offset += len(chunk)
        return chunk

    async def aclose(self) -> None:
        """Read no further."""
        self._close()


class Blobs:
    """A directory of contents, made where it is missing. To be made in a thread: it waits for the disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="antwort-blobs")
        self._closed = False

    async def receive(self, content: AsyncIterator[bytes]) -> Upload:
        """Take in a content. It must be settled; where this fails it is already, and nothing is left of it."""
        upload = Upload(self._folder)
        try:
            async for piece in _gathered(content):
                await self._run(upload.write, piece)
            await self._run(upload.finish)
        except BaseException:
            # Also when cancelled: shielded, so that it is done even if the caller cannot wait for it.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(upload.settle, kept=False)))
            raise
        return upload

    async def open(self, name: str) -> Download | None:
        """A content, or None where it is not there."""
        return await self._run(self._opened, name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove contents whose records are gone. Waits for the disk. One that resists is left to a sweep."""
        _unlink(self._folder, names)

    def sweep(self, needed: Callable[[str], bool]) -> None:
        """Remove what a killed process has left: all that nobody writes and nobody needs. Waits for the disk."""
        for name in _names(self._folder):
            if not needed(name):
                _sweep_one(self._folder, name, needed)

    def close(self) -> None:
        """Finish what is under way."""
        self._closed = True
        self._threads.shutdown()

    def _opened(self, name: str) -> Download | None:
        try:
            return Download(self._folder / name, self._read)
        except FileNotFoundError:
            return None

    async def _read(self, file: int, offset: int) -> bytes:
        return await self._run(os.pread, file, CHUNK, offset)

    async def _run(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        if self._closed:
            raise StoreFault("The store is closed.")
        with faults_told():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


async def _gathered(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Small pieces together, so that the disk's thread is not asked for each."""
    gathered = bytearray()
    async for piece in content:
        gathered += piece
        if len(gathered) >= CHUNK:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def _names(folder: Path) -> Iterator[str]:
    """Of the contents here, whole or not. What else is there is somebody else's."""
    with os.scandir(folder) as entries:
        yield from [entry.name for entry in entries if _OURS.fullmatch(entry.name)]


def _sweep_one(folder: Path, name: str, needed: Callable[[str], bool]) -> None:
    with suppress(FileNotFoundError):
        file = os.open(folder / name, os.O_RDONLY)
        try:
            # Asked again under the lock: an upload may have got its record since.
            if _locked(file) and not needed(name):
                _unlink(folder, (name,))
        finally:
            os.close(file)


def _locked(file: int) -> bool:
    """Lock a file; False where another has it, or where it has no name any more."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


def _unlink(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            (folder / name).unlink()


def _force(folder: Path) -> None:
    """Make names durable too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
