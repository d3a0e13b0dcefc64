"""Containers and the records of their files, as statements about one tenant's rows. No threads, no asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    OverQuota,
    Owner,
    Page,
    PageQuery,
)
from antwort.storage.sqlite.database import Rows
from antwort.storage.sqlite.paging import Listing, page_of_rows

_FIELDS = ContainerRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FILE_FIELDS = tuple(name for name in ContainerFileRecord.__struct_fields__ if name != "container_id")
_FILE_COLUMNS = ", ".join(_FILE_FIELDS)

_MINE = "tenant = :tenant AND id = :id"
_LIVING = "status = 'running' AND last_active_at + expires_after > :now"
_DUE = "status = 'running' AND last_active_at + expires_after <= :now"


def create(rows: Rows, record: ContainerRecord, most: ContainerUse, now: float) -> None:
    """Write a new one, unless that is one too many."""
    used = use(rows, now)
    if used.containers + 1 > most.containers:
        raise OverQuota("containers")
    if used.memory + record.memory > most.memory:
        raise OverQuota("memory")
    rows.run(
        f"INSERT INTO containers (tenant, key_id, {_COLUMNS})"  # noqa: S608 — the names of our own fields
        f" VALUES (:tenant, :key_id, {', '.join(':' + name for name in _FIELDS)})",
        **msgspec.structs.asdict(record),
    )


def get(rows: Rows, container_id: str, now: float) -> ContainerRecord | None:
    """One of them."""
    found = rows.one(f"SELECT {_COLUMNS} FROM containers WHERE {_MINE}", id=container_id)  # noqa: S608 — our own constants
    return None if found is None else _record(found, now)


def find(rows: Rows, ids: Sequence[str], now: float) -> dict[str, ContainerRecord]:
    """Some of them."""
    found = rows.run(
        f"SELECT {_COLUMNS} FROM containers"  # noqa: S608 — our own constants
        " WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:ids))",
        ids=msgspec.json.encode(list(ids)).decode(),
    )
    return {record.id: record for record in (_record(row, now) for row in found)}


def container_page(rows: Rows, query: PageQuery, name: str | None, now: float) -> Page:
    """A page of them, by the order of arrival."""
    listing = Listing("containers", "(:name IS NULL OR name = :name)", {"name": name})
    found, more = page_of_rows(rows, listing, _COLUMNS, query)
    return Page([_record(row, now) for row in found], more)


def touch(rows: Rows, container_id: str, now: float) -> ContainerRecord | None:
    """Used now; a clock that goes back takes nothing away."""
    rows.run(
        "UPDATE containers SET last_active_at = max(last_active_at, :now)"  # noqa: S608 — our own constants
        f" WHERE {_MINE} AND {_LIVING}",
        id=container_id,
        now=now,
    )
    return get(rows, container_id, now)


def give_sandbox(rows: Rows, container_id: str, sandbox: str) -> bool:
    """A fresh sandbox, so there are no files."""
    key = _running(rows, container_id)
    if key is None:
        return False
    rows.run("UPDATE containers SET sandbox = :sandbox WHERE tenant = :tenant AND key = :key", key=key, sandbox=sandbox)
    _empty(rows, key)
    return True


def lose_sandbox(rows: Rows, container_id: str, why: str) -> None:
    """Without a sandbox, and without files."""
    key = _running(rows, container_id)
    if key is None:
        return
    rows.run(
        "UPDATE containers SET sandbox = NULL, lost = :why WHERE tenant = :tenant AND key = :key", key=key, why=why
    )
    _empty(rows, key)


def lose_sandboxes(connection: sqlite3.Connection, why: str) -> list[tuple[Owner, ContainerRecord]]:
    """Everybody's at once."""
    having = "status = 'running' AND sandbox IS NOT NULL"
    connection.execute(f"DELETE FROM container_files WHERE container IN (SELECT key FROM containers WHERE {having})")  # noqa: S608 — a constant
    return _changed(connection, f"SET sandbox = NULL, lost = :why, disk = 0 WHERE {having}", why=why)


def delete(rows: Rows, container_id: str) -> bool:
    """The records of its files go with it: they refer to it."""
    return rows.run(f"DELETE FROM containers WHERE {_MINE}", id=container_id).rowcount > 0  # noqa: S608 — a constant


def use(rows: Rows, now: float) -> ContainerUse:
    """What the owner's running containers take."""
    count, memory, disk = rows.run(
        "SELECT count(*), coalesce(sum(memory), 0), coalesce(sum(disk), 0)"  # noqa: S608 — our own constants
        f" FROM containers WHERE tenant = :tenant AND {_LIVING}",
        now=now,
    ).fetchone()
    return ContainerUse(count, memory, disk)


def expire(connection: sqlite3.Connection, now: float) -> list[tuple[Owner, ContainerRecord]]:
    """Everybody's that are due. Their sandboxes are nobody's any more."""
    return _changed(connection, f"SET status = 'expired', sandbox = NULL WHERE {_DUE}", now=now)


def expire_idlest(rows: Rows, name: str, now: float, spared: Sequence[str]) -> ContainerRecord | None:
    """One of the owner's, before it is due. Not one that was used since `now`: then the caller could not know."""
    found = rows.one(
        "UPDATE containers SET status = 'expired', sandbox = NULL WHERE tenant = :tenant AND key ="  # noqa: S608 — our own constants
        " (SELECT key FROM containers"
        f" WHERE tenant = :tenant AND name = :name AND {_LIVING} AND last_active_at <= :now"
        " AND id NOT IN (SELECT value FROM json_each(:spared))"
        f" ORDER BY last_active_at, key LIMIT 1) RETURNING {_COLUMNS}",
        name=name,
        now=now,
        spared=msgspec.json.encode(list(spared)).decode(),
    )
    return None if found is None else _as_written(found)


def _changed(connection: sqlite3.Connection, change: str, **values: object) -> list[tuple[Owner, ContainerRecord]]:
    """Change everybody's, and say whose and which they were."""
    changed = connection.execute(f"UPDATE containers {change} RETURNING tenant, key_id, {_COLUMNS}", values)
    return [(Owner(tenant, key_id), _as_written(row)) for tenant, key_id, *row in changed.fetchall()]


def forget(connection: sqlite3.Connection, before: float) -> int:
    """Everybody's that expired before."""
    return connection.execute(
        "DELETE FROM containers WHERE status = 'expired' AND last_active_at + expires_after < :before",
        {"before": before},
    ).rowcount


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_files(rows: Rows, container_id: str, put: Sequence[ContainerFileRecord], dropped: Sequence[str]) -> bool:
    """Drop, replace and add."""
    key = _running(rows, container_id)
    if key is None:
        return False
    rows.run_each(
        "DELETE FROM container_files WHERE tenant = :tenant AND container = :container AND id = :id",
        ({"container": key, "id": identifier} for identifier in dropped),
    )
    rows.run_each(
        "DELETE FROM container_files WHERE tenant = :tenant AND container = :container AND path = :path",
        ({"container": key, "path": record.path} for record in put),
    )
    rows.run_each(
        f"INSERT INTO container_files (tenant, container, {_FILE_COLUMNS})"  # noqa: S608 — the names of our own fields
        f" VALUES (:tenant, :container, {', '.join(':' + name for name in _FILE_FIELDS)})",
        ({**msgspec.structs.asdict(record), "container": key} for record in put),
    )
    rows.run(
        "UPDATE containers SET disk ="
        " (SELECT coalesce(sum(bytes), 0) FROM container_files WHERE tenant = :tenant AND container = :key)"
        " WHERE tenant = :tenant AND key = :key",
        key=key,
    )
    return True


def file_page(rows: Rows, container_id: str, query: PageQuery) -> Page | None:
    """A page of the files of one container, by the order in which they came or were changed."""
    key = _key(rows, container_id)
    if key is None:
        return None
    listing = Listing("container_files", "container = :container", {"container": key})
    found, more = page_of_rows(rows, listing, _FILE_COLUMNS, query)
    return Page([_file(row, container_id) for row in found], more)


def get_file(rows: Rows, container_id: str, file_id: str) -> ContainerFileRecord | None:
    """One file of one container."""
    found = rows.one(
        f"SELECT {_FILE_COLUMNS} FROM container_files"  # noqa: S608 — the names of our own fields
        " WHERE tenant = :tenant AND container = :key AND id = :id",
        key=_key(rows, container_id),
        id=file_id,
    )
    return None if found is None else _file(found, container_id)


def _file(row: tuple[Any, ...], container_id: str) -> ContainerFileRecord:
    return ContainerFileRecord(container_id=container_id, **dict(zip(_FILE_FIELDS, row, strict=True)))


def _as_written(row: Sequence[Any]) -> ContainerRecord:
    return ContainerRecord(**dict(zip(_FIELDS, row, strict=True)))


def _record(row: tuple[Any, ...], now: float) -> ContainerRecord:
    record = _as_written(row)
    if record.status == "running" and record.last_active_at + record.expires_after <= now:
        return msgspec.structs.replace(record, status="expired", sandbox=None)
    return record


def _empty(rows: Rows, key: int) -> None:
    rows.run("DELETE FROM container_files WHERE tenant = :tenant AND container = :key", key=key)
    rows.run("UPDATE containers SET disk = 0 WHERE tenant = :tenant AND key = :key", key=key)


def _key(rows: Rows, container_id: str) -> int | None:
    found = rows.one(f"SELECT key FROM containers WHERE {_MINE}", id=container_id)  # noqa: S608 — a constant
    return None if found is None else int(found[0])


def _running(rows: Rows, container_id: str) -> int | None:
    found = rows.one(f"SELECT key FROM containers WHERE {_MINE} AND status = 'running'", id=container_id)  # noqa: S608 — a constant
    return None if found is None else int(found[0])
