"""Port: a connection to the database of a store for an export or an import. All methods block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from antwort.storage.sql.database import Committed
from antwort.storage.sql.rows import Rows


class TransferDatabase(Protocol):
    """One transaction: a snapshot for an export, or the change of an import."""

    @property
    def rows(self) -> Rows:
        """Its statements."""
        ...

    @property
    def insert_clause(self) -> str:
        """What an INSERT with given keys needs before its VALUES."""
        ...

    def columns(self, table: str) -> dict[str, bool]:
        """The columns of a table, and which of them are boolean to the database."""
        ...

    def stream(self, sql: str, **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, with one at a time in memory. No other statement may run meanwhile."""
        ...

    def still_referenced(self, blobs: Sequence[str]) -> set[str]:
        """Those of the blobs that a record refers to now, outside of the snapshot."""
        ...

    def rejection(self, error: Exception) -> Literal["duplicate", "invalid"] | None:
        """Why an INSERT failed: a row with this id exists, or the values do not fit; None for all other reasons."""
        ...

    def translated_errors(self) -> AbstractContextManager[None]:
        """Context manager: raises failures of the database, such as a full disk, as `StoreFault`."""
        ...

    def commit(self) -> Committed:
        """Commit; whether that is certain. The keys of later rows follow those of the inserted ones."""
        ...

    def close(self) -> None:
        """Roll back, unless committed, and close."""
        ...


@dataclass
class RowProgress:
    """What has been transferred so far. `show` is called after each step."""

    rows: dict[str, int] = field(default_factory=dict[str, int])
    content_bytes: int = 0
    skipped_files: int = 0
    """Files that were deleted during the export."""

    def count(self, table: str, rows: int) -> None:
        """Add rows of a table."""
        self.rows[table] = self.rows.get(table, 0) + rows
        self.show()

    def add_content(self, size: int) -> None:
        """Add content of files."""
        self.content_bytes += size
        self.show()

    def show(self) -> None:
        """Display the progress. This class does not."""
