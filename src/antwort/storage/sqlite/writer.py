"""The one thread that writes, and commits for everybody who waits.

Whoever comes while a transaction is being committed shares the next one, so the
disk is waited for once per group and not once per change. Each change stands or
falls alone (a savepoint), and is answered when the whole group is durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from antwort.engine.stores import StoreFault
from antwort.storage.errors import fault_of

T = TypeVar("T")

LARGEST_GROUP = 256
"""Bounds how long the first of a group waits for the last."""


class _Job:
    """A change, who waits for it, and what became of it."""

    def __init__(
        self, change: Callable[[sqlite3.Connection], Any], answer: asyncio.Future[Any], settled: Callable[[bool], None]
    ) -> None:
        self.change = change
        self.answer = answer
        self.settled = settled
        self.value: Any = None
        self.error: Exception | None = None

    def reply(self) -> None:
        """On the loop of the one who waits, unless that one has gone."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.value)
        else:
            self.answer.set_exception(self.error)


class WriterThread:
    """Takes changes from any number of tasks and makes them durable, in the order of arrival."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        # A daemon: a program that forgets to close the store can still end. What is durable stays so.
        self._thread = Thread(target=self._serve, name="antwort-store-writer", daemon=True)
        self._thread.start()

    async def write(
        self, change: Callable[[sqlite3.Connection], T], settled: Callable[[bool], None] = lambda _: None
    ) -> T:
        """Make a change; what it returns is returned once it is durable.

        A change that was handed over is made, also when the caller is cancelled meanwhile. So `settled` is told in
        the writer's thread, and always, whether it was. A change may be run twice and only the last run counts.
        """
        if self._closed:
            await asyncio.to_thread(settled, False)  # noqa: FBT003 — there is nothing else that it could be
            raise StoreFault("The store is closed.")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put(_Job(change, answer, settled))
        return await answer

    def close(self) -> None:
        """Finish what was handed over, and end. Waits for the disk."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        open_for_more = True
        while open_for_more:
            group = [self._waiting.get()]
            with suppress(Empty):
                while len(group) < LARGEST_GROUP:
                    group.append(self._waiting.get_nowait())
            open_for_more = None not in group
            jobs = [job for job in group if job is not None]
            if jobs:
                self._commit(jobs)
                _answer(jobs)
        self._connection.close()

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """Make the changes durable together; where that fails each alone, so that one too large hurts no other."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            _fail(jobs, error)
            return
        try:
            for job in jobs:
                self._run(job)
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

    def _run(self, job: _Job) -> None:
        self._connection.execute("SAVEPOINT change")
        try:
            job.value, job.error = job.change(self._connection), None
        except Exception as error:  # the outermost loop: the error is for the one who waits
            if not self._connection.in_transaction and isinstance(error, sqlite3.Error):
                raise  # SQLite gave up the transaction, and with it the changes of others
            job.error = fault_of(error)
            self._connection.execute("ROLLBACK TO change")
        self._connection.execute("RELEASE change")


def _fail(jobs: Sequence[_Job], error: Exception) -> None:
    for job in jobs:
        job.error = fault_of(error)


def _answer(jobs: Sequence[_Job]) -> None:
    """Wake each loop once, however many wait there."""
    waiting: defaultdict[asyncio.AbstractEventLoop, list[_Job]] = defaultdict(list)
    for job in jobs:
        job.settled(job.error is None)
        waiting[job.answer.get_loop()].append(job)
    for loop, theirs in waiting.items():
        with suppress(RuntimeError):  # the loop has ended, and with it all who waited
            loop.call_soon_threadsafe(_reply, theirs)


def _reply(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.reply()
