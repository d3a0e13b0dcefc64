"""Writer thread with group commit: changes that arrive during a commit share the next transaction and its fsync.

Without group commit every change waits for an fsync of its own, and throughput drops to one write per disk flush.
Each change runs in a savepoint, so a failing change does not affect the others; its caller gets the result when the
group is durable. If the transaction of a group fails, each of its changes is retried once in a transaction of its own.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from antwort.engine.stores import StoreFault
from antwort.storage.sql.database import OnDone
from antwort.storage.sqlite.errors import translate_error

T = TypeVar("T")
Change: TypeAlias = Callable[[sqlite3.Connection], T]

MAX_GROUP_SIZE = 256
"""Bounds how long the first change of a group waits for the last."""


class _Job:
    """A queued change, the future of its caller, and its outcome."""

    def __init__(self, change: Change[Any], future: asyncio.Future[Any], on_done: OnDone) -> None:
        self.change = change
        self.future = future
        self.on_done = on_done
        self.value: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        """Set the result of the future, unless it was cancelled. Runs on the event loop of the caller."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class WriterThread:
    """Commits changes of any number of tasks, in order of arrival."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        # A daemon, so that a program that does not close the store can exit. Committed changes are durable.
        self._thread = Thread(target=self._run, name="antwort-store-writer", daemon=True)
        self._thread.start()

    async def write(self, change: Change[T], on_done: OnDone = lambda _: None) -> T:
        """Run a change and return its result once it is durable.

        A queued change is committed even if the caller is cancelled. `on_done` is always called, in the writer
        thread, with whether it was committed. A change may run twice (see the retry above); only the last run counts.
        """
        if self._closed:
            await asyncio.to_thread(on_done, False)  # noqa: FBT003 - a callback with the outcome
            raise StoreFault("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Job(change, future, on_done))
        return await future

    def close(self) -> None:
        """Commit the queued changes and stop the thread. Blocks on the disk."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            group = [self._queue.get()]
            with suppress(Empty):
                while len(group) < MAX_GROUP_SIZE:
                    group.append(self._queue.get_nowait())
            stopping = None in group
            jobs = [job for job in group if job is not None]
            if jobs:
                self._commit(jobs)
                _notify(jobs)
        self._connection.close()

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """Commit the changes together; if that fails, retry each alone, so that one oversized change fails alone."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            _fail(jobs, error)
            return
        try:
            for job in jobs:
                self._apply(job)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            if len(jobs) == 1:
                _fail(jobs, error)
                return
            for job in jobs:
                self._commit([job])

    def _apply(self, job: _Job) -> None:
        self._connection.execute("SAVEPOINT change")
        try:
            job.value, job.error = job.change(self._connection), None
        except Exception as error:  # the outermost loop: the error belongs to the caller
            if not self._connection.in_transaction and isinstance(error, sqlite3.Error):
                raise  # SQLite rolled back the transaction with all changes of the group
            job.error = translate_error(error)
            self._connection.execute("ROLLBACK TO change")
        self._connection.execute("RELEASE change")


def _fail(jobs: Sequence[_Job], error: Exception) -> None:
    for job in jobs:
        job.error = translate_error(error)


def _notify(jobs: Sequence[_Job]) -> None:
    """Call `on_done`, and wake each event loop once for all its futures."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Job]] = defaultdict(list)
    for job in jobs:
        job.on_done(job.error is None)
        by_loop[job.future.get_loop()].append(job)
    for loop, finished in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve_all, finished)


def _resolve_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.resolve()
