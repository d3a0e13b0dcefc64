"""Archives on their way: each has a thread of its own, that works at the pace of its client and holds up nobody else.

In the threads that everything else shares, a handful of slow clients would be enough to stop the server.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import IO, Any, Final, TypeVar, cast

from antwort.sandbox.files.archive import ChunkReader

T = TypeVar("T")

MOST: Final = 32
"""How many at once; whoever starts one must have a place first, or it would wait for a thread."""

_CHUNK: Final = 1 << 20
_PIECES: Final = 8
_LOOK_SECONDS: Final = 0.5
_threads = concurrent.futures.ThreadPoolExecutor(MOST, thread_name_prefix="archive")


async def receive(pieces: AsyncIterator[bytes], work: Callable[[IO[bytes]], T]) -> T:
    """Do the work on a file to read from, which has what the pieces are; a full queue slows the sender down."""
    line = _Line()
    task = line.start(lambda: work(cast("IO[bytes]", ChunkReader(iter(line.get, b"")))))
    try:
        async for piece in pieces:
            if piece:
                await line.hand_over(piece, task)
        await line.hand_over(b"", task)
        return await task
    finally:
        await line.stop(task)


async def send(work: Callable[[IO[bytes]], object]) -> AsyncIterator[bytes]:
    """Do the work on a file to write to, and yield what is written; a full queue slows the work down."""
    line = _Line()

    def whole() -> None:
        sink = _Sink(line.put)
        try:
            work(cast("IO[bytes]", sink))
            sink.flush()
        finally:
            line.put(b"")

    task = line.start(whole)
    try:
        while piece := await line.waiting.get():
            yield piece
        await task
    finally:
        await line.stop(task)


class _Line:
    """A short queue between the event loop and one thread; when one side has gone the other does not wait for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue(_PIECES)

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(_threads, work)

    async def stop(self, task: asyncio.Future[Any]) -> None:
        self._stopped.set()
        await asyncio.gather(task, return_exceptions=True)

    async def hand_over(self, piece: bytes, task: asyncio.Future[Any]) -> None:
        """To the thread, unless that has ended."""
        if not self.waiting.full():
            self.waiting.put_nowait(piece)
            return
        putting = asyncio.ensure_future(self.waiting.put(piece))
        await asyncio.wait([putting, task], return_when=asyncio.FIRST_COMPLETED)
        putting.cancel()

    def get(self) -> bytes:
        """In the thread."""
        return self._ask(self.waiting.get())

    def put(self, piece: bytes) -> None:
        """In the thread."""
        self._ask(self.waiting.put(piece))

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        while True:
            try:
                return answer.result(_LOOK_SECONDS)
            except concurrent.futures.TimeoutError:
                if self._stopped.is_set():
                    answer.cancel()
                    message = "nobody is at the other end any more"
                    raise BrokenPipeError(message) from None


class _Sink:
    """A file to write to, whose pieces go elsewhere."""

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
