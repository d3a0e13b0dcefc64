"""SQL statements for containers and container file records, scoped to one tenant. No threads, no asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    OverQuota,
    Owner,
    PageQuery,
    RecordPage,
)
from antwort.storage.sqlite.database import TenantRows
from antwort.storage.sqlite.paging import PagedQuery, read_page

OwnedRecord: TypeAlias = tuple[Owner, ContainerRecord]

_FIELDS = ContainerRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FILE_FIELDS = tuple(name for name in ContainerFileRecord.__struct_fields__ if name != "container_id")
_FILE_COLUMNS = ", ".join(_FILE_FIELDS)

_BY_ID = "tenant = :tenant AND id = :id"
_IS_LIVE = "status = 'running' AND last_active_at + expires_after > :now"
_IS_EXPIRED = "status = 'running' AND last_active_at + expires_after <= :now"


def create(rows: TenantRows, record: ContainerRecord, quota: ContainerUse, now: float) -> None:
    """Insert a container; `OverQuota` if it would exceed the quota."""
    used = use(rows, now)
    if used.containers + 1 > quota.containers:
        raise OverQuota("containers")
    if used.memory + record.memory > quota.memory:
        raise OverQuota("memory")
    rows.execute(
        f"INSERT INTO containers (tenant, key_id, {_COLUMNS})"  # noqa: S608 - constant field names
        f" VALUES (:tenant, :key_id, {', '.join(':' + name for name in _FIELDS)})",
        **msgspec.structs.asdict(record),
    )


def get(rows: TenantRows, container_id: str, now: float) -> ContainerRecord | None:
    """One container."""
    found = rows.fetchone(f"SELECT {_COLUMNS} FROM containers WHERE {_BY_ID}", id=container_id)  # noqa: S608 - only constant names
    return None if found is None else _record(found, now)


def find(rows: TenantRows, ids: Sequence[str], now: float) -> dict[str, ContainerRecord]:
    """The containers with these ids."""
    found = rows.execute(
        f"SELECT {_COLUMNS} FROM containers"  # noqa: S608 - only constant names
        " WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:ids))",
        ids=msgspec.json.encode(list(ids)).decode(),
    )
    return {record.id: record for record in (_record(row, now) for row in found)}


def container_page(rows: TenantRows, query: PageQuery, name: str | None, now: float) -> RecordPage:
    """A page of containers, in order of creation."""
    listing = PagedQuery("containers", "(:name IS NULL OR name = :name)", {"name": name})
    return read_page(rows, listing, _COLUMNS, query, lambda found: [_record(row, now) for row in found])


def touch(rows: TenantRows, container_id: str, now: float) -> ContainerRecord | None:
    """Record a use at `now`. A clock that jumps back does not shorten the lifetime."""
    rows.execute(
        "UPDATE containers SET last_active_at = max(last_active_at, :now)"  # noqa: S608 - only constant names
        f" WHERE {_BY_ID} AND {_IS_LIVE}",
        id=container_id,
        now=now,
    )
    return get(rows, container_id, now)


def set_sandbox(rows: TenantRows, container_id: str, sandbox: str) -> bool:
    """Assign a new sandbox; it has no files."""
    key = _running_key(rows, container_id)
    if key is None:
        return False
    _replace_sandbox(rows, key, "sandbox = :sandbox", sandbox=sandbox)
    return True


def mark_sandbox_lost(rows: TenantRows, container_id: str, why: str) -> None:
    """Record the loss of the sandbox and its files."""
    key = _running_key(rows, container_id)
    if key is not None:
        _replace_sandbox(rows, key, "sandbox = NULL, lost = :why", why=why)


def mark_all_lost(connection: sqlite3.Connection, why: str) -> list[OwnedRecord]:
    """The same for the containers of all tenants."""
    having = "status = 'running' AND sandbox IS NOT NULL"
    connection.execute(f"DELETE FROM container_files WHERE container IN (SELECT key FROM containers WHERE {having})")  # noqa: S608 - a constant condition
    return _update_all_tenants(connection, f"SET sandbox = NULL, lost = :why, disk = 0 WHERE {having}", why=why)


def use(rows: TenantRows, now: float) -> ContainerUse:
    """The resource use of the tenant's running containers."""
    count, memory, disk = rows.execute(
        "SELECT count(*), coalesce(sum(memory), 0), coalesce(sum(disk), 0)"  # noqa: S608 - only constant names
        f" FROM containers WHERE tenant = :tenant AND {_IS_LIVE}",
        now=now,
    ).fetchone()
    return ContainerUse(count, memory, disk)


def expire(connection: sqlite3.Connection, now: float) -> list[OwnedRecord]:
    """Mark idle containers of all tenants as expired, and detach their sandboxes."""
    return _update_all_tenants(connection, f"SET status = 'expired', sandbox = NULL WHERE {_IS_EXPIRED}", now=now)


def expire_lru(rows: TenantRows, name: str, now: float, excluded: Sequence[str]) -> ContainerRecord | None:
    """Expire the least recently used container of the tenant early. One used since `now` is not a candidate."""
    found = rows.fetchone(
        "UPDATE containers SET status = 'expired', sandbox = NULL WHERE tenant = :tenant AND key ="  # noqa: S608 - only constant names
        " (SELECT key FROM containers"
        f" WHERE tenant = :tenant AND name = :name AND {_IS_LIVE} AND last_active_at <= :now"
        " AND id NOT IN (SELECT value FROM json_each(:excluded))"
        f" ORDER BY last_active_at, key LIMIT 1) RETURNING {_COLUMNS}",
        name=name,
        now=now,
        excluded=msgspec.json.encode(list(excluded)).decode(),
    )
    return None if found is None else _decode(found)


def _update_all_tenants(connection: sqlite3.Connection, change: str, **values: object) -> list[OwnedRecord]:
    """Update containers of all tenants; returns the changed ones with their owners."""
    changed = connection.execute(f"UPDATE containers {change} RETURNING tenant, key_id, {_COLUMNS}", values)
    return [(Owner(tenant, key_id), _decode(row)) for tenant, key_id, *row in changed.fetchall()]


def delete_expired(connection: sqlite3.Connection, before: float) -> int:
    """Delete the records of containers of all tenants that expired before a time."""
    condition = "status = 'expired' AND last_active_at + expires_after < :before"
    return connection.execute(f"DELETE FROM containers WHERE {condition}", {"before": before}).rowcount  # noqa: S608 - a constant condition


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_files(
    rows: TenantRows, container_id: str, put: Sequence[ContainerFileRecord], dropped: Sequence[str]
) -> bool:
    """Delete, replace and insert file records, and update the disk use."""
    key = _running_key(rows, container_id)
    if key is None:
        return False
    rows.executemany(
        "DELETE FROM container_files WHERE tenant = :tenant AND container = :container AND id = :id",
        ({"container": key, "id": identifier} for identifier in dropped),
    )
    rows.executemany(
        "DELETE FROM container_files WHERE tenant = :tenant AND container = :container AND path = :path",
        ({"container": key, "path": record.path} for record in put),
    )
    rows.executemany(
        f"INSERT INTO container_files (tenant, container, {_FILE_COLUMNS})"  # noqa: S608 - constant field names
        f" VALUES (:tenant, :container, {', '.join(':' + name for name in _FILE_FIELDS)})",
        ({**msgspec.structs.asdict(record), "container": key} for record in put),
    )
    rows.execute(
        "UPDATE containers SET disk ="
        " (SELECT coalesce(sum(bytes), 0) FROM container_files WHERE tenant = :tenant AND container = :key)"
        " WHERE tenant = :tenant AND key = :key",
        key=key,
    )
    return True


def file_page(rows: TenantRows, container_id: str, query: PageQuery) -> RecordPage | None:
    """A page of the files of one container, in order of their last change."""
    key = rows.key("containers", container_id)
    if key is None:
        return None
    listing = PagedQuery("container_files", "container = :container", {"container": key})
    return read_page(rows, listing, _FILE_COLUMNS, query, lambda found: [_file(row, container_id) for row in found])


def get_file(rows: TenantRows, container_id: str, file_id: str) -> ContainerFileRecord | None:
    """One file of one container."""
    found = rows.fetchone(
        f"SELECT {_FILE_COLUMNS} FROM container_files"  # noqa: S608 - constant field names
        " WHERE tenant = :tenant AND container = :key AND id = :id",
        key=rows.key("containers", container_id),
        id=file_id,
    )
    return None if found is None else _file(found, container_id)


def _file(row: tuple[Any, ...], container_id: str) -> ContainerFileRecord:
    return ContainerFileRecord(container_id=container_id, **dict(zip(_FILE_FIELDS, row, strict=True)))


def _decode(row: Sequence[Any]) -> ContainerRecord:
    return ContainerRecord(**dict(zip(_FIELDS, row, strict=True)))


def _record(row: tuple[Any, ...], now: float) -> ContainerRecord:
    record = _decode(row)
    if record.status == "running" and record.last_active_at + record.expires_after <= now:
        return msgspec.structs.replace(record, status="expired", sandbox=None)
    return record


def _replace_sandbox(rows: TenantRows, key: int, change: str, **values: object) -> None:
    """Change the sandbox columns, and delete the file records."""
    rows.execute(f"UPDATE containers SET {change}, disk = 0 WHERE tenant = :tenant AND key = :key", key=key, **values)  # noqa: S608 - a constant change
    rows.execute("DELETE FROM container_files WHERE tenant = :tenant AND container = :key", key=key)


def _running_key(rows: TenantRows, container_id: str) -> int | None:
    found = rows.fetchone(f"SELECT key FROM containers WHERE {_BY_ID} AND status = 'running'", id=container_id)  # noqa: S608 - a constant condition
    return None if found is None else int(found[0])
