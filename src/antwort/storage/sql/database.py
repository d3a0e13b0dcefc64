"""Database port: how `SqlStore` runs changes and queries. `antwort.storage.sqlite` and `.postgres` implement it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from antwort.engine.stores import Owner
from antwort.storage.sql.rows import Rows, TenantRows

T = TypeVar("T")

Committed: TypeAlias = bool | None
"""The outcome of a change. None: unknown, because the connection broke during the commit."""
OnDone: TypeAlias = Callable[[Committed], None]


class Database(Protocol):
    """Runs functions on rows in transactions, in threads of its own."""

    async def write(self, owner: Owner, change: Callable[[TenantRows], T], on_done: OnDone = ...) -> T:
        """Run a change of the owner's rows; durable when this returns.

        A change that has been submitted is completed even if the caller is cancelled. `on_done` is always called,
        in a thread, with the outcome. A change may run twice; only the last run counts.
        """
        ...

    async def write_all_tenants(self, change: Callable[[Rows], T], on_done: OnDone = ...) -> T:
        """Run a change across all tenants, for maintenance by the server itself."""
        ...

    async def read(self, owner: Owner, query: Callable[[TenantRows], T]) -> T:
        """Run a query on the owner's rows, in one snapshot."""
        ...

    async def read_all_tenants(self, query: Callable[[Rows], T]) -> T:
        """Run a query across all tenants, for maintenance by the server itself."""
        ...

    async def check_writable(self) -> None:
        """Do a write that changes nothing; `StoreFault` where it fails."""
        ...

    def close(self) -> None:
        """Wait for running operations and close all connections. Blocks."""
        ...
