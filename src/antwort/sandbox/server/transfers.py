"""Archive transfers: each runs in a thread of a dedicated pool and is connected to its client by a bounded queue.

A transfer blocks its thread at the speed of its client, so a few slow clients would exhaust the shared thread pool.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import IO, Any, Final, TypeVar, cast

from antwort.sandbox.files.archive import Feed

T = TypeVar("T")

MAX_TRANSFERS: Final = 32
"""Number of threads. Callers limit the transfers to it, because one more would wait for a thread."""

_CHUNK: Final = 1 << 20
_MAX_QUEUED_CHUNKS: Final = 8
_POLL_SECONDS: Final = 0.5
_threads = concurrent.futures.ThreadPoolExecutor(MAX_TRANSFERS, thread_name_prefix="archive")


async def receive(chunks: AsyncIterator[bytes], work: Callable[[IO[bytes]], T]) -> T:
    """Run `work` with a readable file that has the content of `chunks`. A full queue pauses the sender."""
    pipe = _ThreadPipe()
    task = pipe.start(lambda: work(cast("IO[bytes]", Feed(iter(pipe.get, b"")))))
    try:
        async for chunk in chunks:
            if chunk:
                await pipe.put_async(chunk, task)
        await pipe.put_async(b"", task)
        return await task
    finally:
        await pipe.stop(task)


async def send(work: Callable[[IO[bytes]], object]) -> AsyncIterator[bytes]:
    """Run `work` with a writable file and yield what it writes. A full queue pauses `work`."""
    pipe = _ThreadPipe()

    def write_all() -> None:
        sink = _ChunkWriter(pipe.put)
        try:
            work(cast("IO[bytes]", sink))
            sink.flush()
        finally:
            pipe.put(b"")

    task = pipe.start(write_all)
    try:
        while chunk := await pipe.queue.get():
            yield chunk
        await task
    finally:
        await pipe.stop(task)


class _ThreadPipe:
    """A bounded queue between the event loop and one thread. Neither side waits for one that has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(_MAX_QUEUED_CHUNKS)

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(_threads, work)

    async def stop(self, task: asyncio.Future[Any]) -> None:
        self._stopped.set()
        await asyncio.gather(task, return_exceptions=True)

    async def put_async(self, chunk: bytes, task: asyncio.Future[Any]) -> None:
        """Pass a chunk to the thread, unless its task has ended."""
        if not self.queue.full():
            self.queue.put_nowait(chunk)
            return
        putting = asyncio.ensure_future(self.queue.put(chunk))
        await asyncio.wait([putting, task], return_when=asyncio.FIRST_COMPLETED)
        putting.cancel()

    def get(self) -> bytes:
        """The next chunk. Called in the thread."""
        return self._run_in_loop(self.queue.get())

    def put(self, chunk: bytes) -> None:
        """Pass a chunk to the event loop. Called in the thread."""
        self._run_in_loop(self.queue.put(chunk))

    def _run_in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(_POLL_SECONDS)
            except concurrent.futures.TimeoutError:
                if self._stopped.is_set():
                    future.cancel()
                    raise BrokenPipeError("the transfer was stopped by the client's side") from None


class _ChunkWriter:
    """A writable file that passes its content on in chunks."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._pending = bytearray()

    def write(self, data: bytes) -> int:
        self._pending += data
        if len(self._pending) >= _CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._pending:
            self._put(bytes(self._pending))
        self._pending.clear()
