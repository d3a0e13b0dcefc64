"""`EventChannel`: runs a coroutine in the event loop of another thread, and handles its events in the caller's thread.

The SDK is asynchronous and evaluations are not. The coroutine passes each event to `EventChannel.ask` and waits for the
answer; the caller's thread handles the events one after the other, so tools run where they run with every adapter, and
the loop of the SDK is never blocked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from weakincentives.deadlines import Deadline

EventT = TypeVar("EventT")
Main: TypeAlias = "Callable[[EventChannel[EventT]], Awaitable[object]]"

_MAX_WAIT = 3600.0


class DeadlinePassed(Exception):
    """The deadline passed while no event arrived."""


@dataclass(eq=False)
class Asked(Generic[EventT]):
    """An event and its answer. `is_cancelled`: the coroutine no longer waits for the answer."""

    event: EventT
    answer: Future[Any] = field(default_factory=Future[Any])
    is_cancelled: bool = False


class EventChannel(Generic[EventT]):
    """Events of a coroutine for the caller's thread, and the answers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Asked[EventT] | None] = queue.SimpleQueue()

    async def ask(self, event: EventT) -> Any:  # noqa: ANN401 - depends on the event
        """Pass an event to the caller's thread and wait for its answer."""
        asked = Asked(event)
        self._queue.put(asked)
        try:
            return await asyncio.wrap_future(asked.answer)
        except asyncio.CancelledError:
            asked.is_cancelled = True
            raise

    def tell(self, event: EventT) -> None:
        """Pass an event to the caller's thread."""
        self._queue.put(Asked(event))

    def end(self) -> None:
        """End `receive`."""
        self._queue.put(None)

    def receive(self, deadline: Deadline | None) -> Generator[Asked[EventT]]:
        """The events, until the coroutine ends. Raises `DeadlinePassed`."""
        while True:
            try:
                asked = self._queue.get(timeout=_MAX_WAIT if deadline is None else min(_MAX_WAIT, deadline.remaining))
            except queue.Empty:
                if deadline is not None and deadline.expired:
                    raise DeadlinePassed from None
                continue
            if asked is None:
                return
            if asked.answer.set_running_or_notify_cancel():
                yield asked


class LoopThread(Generic[EventT]):
    """A thread with an event loop that runs one coroutine."""

    def __init__(self, main: Main[EventT], channel: EventChannel[EventT]) -> None:
        self._main = main
        self._channel = channel
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="claude-agent-sdk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._run_main())
        except asyncio.CancelledError:
            pass  # by `stop`
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            self.error = error
        finally:
            self._channel.end()

    async def _run_main(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._is_stopped:
                return
        await self._main(self._channel)

    def stop(self, timeout: float) -> bool:
        """Cancel the coroutine if it still runs, and wait for its end; False if it does not end."""
        with self._lock:
            self._is_stopped = True
            loop, task = self._loop, self._task
        if loop is not None and task is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(timeout)
        return not self._thread.is_alive()


@contextmanager
def running(main: Main[EventT], *, stop_timeout: float) -> Generator[tuple[EventChannel[EventT], LoopThread[EventT]]]:
    """Run a coroutine in its thread; at the end of the block it is cancelled, if it has not ended."""
    channel: EventChannel[EventT] = EventChannel()
    thread = LoopThread(main, channel)
    try:
        yield channel, thread
    finally:
        thread.stop(stop_timeout)
