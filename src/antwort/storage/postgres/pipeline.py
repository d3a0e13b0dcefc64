"""Connection and cursor for pipeline mode, in which the result of a statement is received when it is read.

psycopg receives it with a Flush, after which the server does not count the transaction as idle: if nothing follows, it
waits without `idle_in_transaction_session_timeout`. Here it is received with a Sync.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg


class PipelinedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose cursors know its pipeline."""

    open_pipeline: psycopg.Pipeline | None = None

    @contextmanager
    def pipeline(self) -> Generator[psycopg.Pipeline]:
        """Pipeline mode. Not nested."""
        with super().pipeline() as pipeline:
            self.open_pipeline = pipeline
            try:
                yield pipeline
            finally:
                self.open_pipeline = None


class PipelinedCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor whose result is received when it is read."""

    @property
    def rowcount(self) -> int:
        self._receive()
        return super().rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        self._receive()
        return super().fetchone()

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._receive()
        return super().fetchall()

    def _receive(self) -> None:
        connection = self.connection
        if self.pgresult is None and isinstance(connection, PipelinedConnection) and connection.open_pipeline:
            connection.open_pipeline.sync()
