"""Cursor for pipeline mode, in which the result of a statement is received when it is read."""

from __future__ import annotations

from typing import Any

import psycopg


class PipelinedCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor whose row count is received when it is read, as psycopg does with rows."""

    @property
    def rowcount(self) -> int:
        if self.pgresult is None:
            with self.connection.pipeline() as pipeline:  # the one that is open
                pipeline.sync()
        return super().rowcount
