"""A database connection for the statements of this package: dialects, and statements scoped to one tenant.

Statements have named parameters (`:name`) and use what SQLite and PostgreSQL have in common. What differs is in
`Dialect`. A change may run while other processes change the same rows: it locks the row that it reads before it
writes (`key` with `lock`), or the tenant (`lock_tenant`). SQLite has one writer, so there the locks are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antwort.engine.stores import Owner


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> tuple[Any, ...] | None: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Dialect:
    """The differences between two databases."""

    row_lock: str
    """Appended to a SELECT: locks its rows until the end of the transaction."""
    skip_locked: str
    """The same, and leaves out the rows that another transaction has locked."""
    live_replicas: str
    """A query for the ids of the replicas that live, except this one."""
    tenant_lock: str
    """A statement that lets only one transaction of `:tenant` continue; empty where there is one writer."""
    members: str
    """A condition behind a column: its value is in the list of a parameter, whose name replaces `{}`."""
    as_list: Callable[[Sequence[str]], object]
    """The value of such a parameter."""
    execute: Callable[[Any, str, Mapping[str, object]], Cursor]
    executemany: Callable[[Any, str, Iterable[Mapping[str, object]]], object]


class Rows:
    """A connection with its dialect: statements across all tenants, for maintenance by the server itself."""

    def __init__(self, connection: object, dialect: Dialect) -> None:
        self._connection = connection
        self.dialect = dialect

    def execute(self, sql: str, **values: object) -> Cursor:
        """Execute a statement."""
        return self.dialect.execute(self._connection, sql, values)

    def executemany(self, sql: str, values: Iterable[Mapping[str, object]]) -> None:
        """Execute a statement once for each mapping of values."""
        self.dialect.executemany(self._connection, sql, values)

    def fetchone(self, sql: str, **values: object) -> tuple[Any, ...] | None:
        """The first row, or None."""
        return self.execute(sql, **values).fetchone()

    def member_of(self, parameter: str) -> str:
        """The condition that a column is in the list of a parameter."""
        return self.dialect.members.format(parameter)

    def of(self, owner: Owner) -> TenantRows:
        """The same connection, scoped to a tenant."""
        return TenantRows(self._connection, self.dialect, owner)


class TenantRows(Rows):
    """A connection scoped to one tenant: all statements on behalf of a caller run through it.

    It binds the tenant, and rejects a statement without a `:tenant` parameter.
    """

    def __init__(self, connection: object, dialect: Dialect, owner: Owner) -> None:
        super().__init__(connection, dialect)
        self._owner = owner

    def execute(self, sql: str, **values: object) -> Cursor:
        """Execute a statement with `:tenant` and `:key_id` bound to the owner."""
        return super().execute(_require_tenant(sql), **self._bind(values))

    def executemany(self, sql: str, values: Iterable[Mapping[str, object]]) -> None:
        """Execute a statement once for each mapping of values, with the same bindings."""
        super().executemany(_require_tenant(sql), map(self._bind, values))

    def key(self, table: str, identifier: str, *, lock: bool = False) -> int | None:
        """The integer key of the row with this id; `table` is a constant. `lock`: until the end of the transaction."""
        row_lock = self.dialect.row_lock if lock else ""
        found = self.fetchone(
            f"SELECT key FROM {table} WHERE tenant = :tenant AND id = :id{row_lock}",  # noqa: S608 - a constant table and lock clause
            id=identifier,
        )
        return None if found is None else int(found[0])

    def lock_tenant(self) -> None:
        """Let no other transaction of this tenant that calls this continue until the end of this one."""
        if self.dialect.tenant_lock:
            self.execute(self.dialect.tenant_lock)

    def delete(self, table: str, identifier: str) -> bool:
        """Delete the row with this id, and with it the rows that refer to it; whether it existed."""
        return self.execute(f"DELETE FROM {table} WHERE tenant = :tenant AND id = :id", id=identifier).rowcount > 0  # noqa: S608 - a constant table

    def _bind(self, values: Mapping[str, object]) -> dict[str, object]:
        return {**values, "tenant": self._owner.tenant, "key_id": self._owner.key_id}


def _require_tenant(sql: str) -> str:
    if ":tenant" not in sql:
        raise AssertionError(f"a statement needs a :tenant parameter: {sql}")
    return sql
