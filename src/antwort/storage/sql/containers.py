"""SQL statements for containers and container file records, scoped to one tenant. No threads, no asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.engine.stores import (
    SEVERAL_REPLICAS,
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    OverQuota,
    Owner,
    PageQuery,
    RecordPage,
    ReplicaUse,
    SandboxRef,
)
from antwort.storage.sql.paging import PagedQuery, read_page
from antwort.storage.sql.rows import Rows, TenantRows

OwnedRecord: TypeAlias = tuple[Owner, ContainerRecord]

_FIELDS = ContainerRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FILE_FIELDS = tuple(name for name in ContainerFileRecord.__struct_fields__ if name != "container_id")
_FILE_COLUMNS = ", ".join(_FILE_FIELDS)

_BY_ID = "tenant = :tenant AND id = :id"
_IS_LIVE = "status = 'running' AND last_active_at + expires_after > :now"
_IS_EXPIRED = "status = 'running' AND last_active_at + expires_after <= :now"
_EXPIRE = "SET status = 'expired', sandbox = NULL, replica = NULL"
_LOSE = "sandbox = NULL, replica = NULL, lost = :why"
_IS_UNUSED = "last_active_at <= :now AND (used_by IS NULL OR used_by = :replica OR last_active_at < :since)"
_IS_SANDBOX = "sandbox = :sandbox AND replica = :replica"


def create(rows: TenantRows, record: ContainerRecord, quota: ContainerUse, now: float) -> None:
    """Insert a container; `OverQuota` if it would exceed the quota."""
    rows.lock_tenant()
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
        f" WHERE tenant = :tenant AND id {rows.member_of('ids')}",
        ids=rows.dialect.as_list(ids),
    )
    return {record.id: record for record in (_record(row, now) for row in found)}


def container_page(rows: TenantRows, query: PageQuery, name: str | None, now: float) -> RecordPage:
    """A page of containers, in order of creation."""
    listing = PagedQuery("containers", "(CAST(:name AS text) IS NULL OR name = :name)", {"name": name})
    return read_page(rows, listing, _COLUMNS, query, lambda found: [_record(row, now) for row in found])


def touch(rows: TenantRows, container_id: str, now: float, use: ReplicaUse) -> ContainerRecord | None:
    """Record a use at `now`. A clock that jumps back does not shorten the lifetime."""
    rows.execute(
        "UPDATE containers SET last_active_at = CASE WHEN last_active_at > :now THEN last_active_at ELSE :now END,"  # noqa: S608 - only constant names
        " used_by = CASE WHEN used_by IS NULL OR used_by = :replica OR last_active_at < :since"
        f" THEN CAST(:replica AS text) ELSE '{SEVERAL_REPLICAS}' END WHERE {_BY_ID} AND {_IS_LIVE}",
        id=container_id,
        now=now,
        replica=use.replica,
        since=use.since,
    )
    return get(rows, container_id, now)


def set_sandbox(rows: TenantRows, container_id: str, sandbox: SandboxRef) -> ContainerRecord | None:
    """Assign a new sandbox, which has no files, unless another replica has assigned one."""
    key = _running_key(rows, container_id)
    if key is None:
        return None
    free = "AND (sandbox IS NULL OR replica IS NULL OR replica = :replica)"
    changed = rows.fetchone(
        "UPDATE containers SET sandbox = :sandbox, replica = :replica, disk = 0, uploading = 0"  # noqa: S608 - a constant condition
        f" WHERE tenant = :tenant AND key = :key {free} RETURNING key",
        key=key,
        sandbox=sandbox.sandbox,
        replica=sandbox.replica,
    )
    if changed is not None:
        _delete_files(rows, key)
    found = rows.fetchone(f"SELECT {_COLUMNS} FROM containers WHERE tenant = :tenant AND key = :key", key=key)  # noqa: S608 - only constant names
    return None if found is None else _decode(found)


def mark_sandbox_lost(rows: TenantRows, container_id: str, sandbox: SandboxRef, why: str) -> bool:
    """Record the loss of this sandbox and its files."""
    key = _running_key(rows, container_id)
    changed = rows.fetchone(
        f"UPDATE containers SET {_LOSE}, disk = 0, uploading = 0"  # noqa: S608 - constant conditions
        f" WHERE tenant = :tenant AND key = :key AND {_IS_SANDBOX} RETURNING key",
        key=key,
        why=why,
        sandbox=sandbox.sandbox,
        replica=sandbox.replica,
    )
    if key is None or changed is None:
        return False
    _delete_files(rows, key)
    return True


def mark_all_lost(rows: Rows, replicas: Sequence[str], why: str) -> list[OwnedRecord]:
    """The same for the containers of all tenants whose sandboxes these replicas hold."""
    changed = _update_all_tenants(
        rows,
        f"SET {_LOSE}, disk = 0, uploading = 0 WHERE status = 'running' AND sandbox IS NOT NULL"
        f" AND coalesce(replica, '') {rows.member_of('replicas')}",
        why=why,
        replicas=rows.dialect.as_list(replicas),
    )
    for owner, record in changed:
        tenant_rows = rows.of(owner)
        key = tenant_rows.key("containers", record.id)
        if key is not None:
            _delete_files(tenant_rows, key)
    return changed


def sandbox_replicas(rows: Rows) -> list[str]:
    """The replicas that hold sandboxes, of all tenants."""
    found = rows.execute(
        "SELECT DISTINCT coalesce(replica, '') FROM containers WHERE status = 'running' AND sandbox IS NOT NULL"
    )
    return [replica for (replica,) in found]


def held_sandboxes(rows: Rows, replica: str) -> set[tuple[str, str, str]]:
    """The sandboxes that one replica holds, of all tenants."""
    condition = "status = 'running' AND sandbox IS NOT NULL AND replica = :replica"
    found = rows.execute(f"SELECT tenant, id, sandbox FROM containers WHERE {condition}", replica=replica)  # noqa: S608 - a constant condition
    return {(tenant, container_id, sandbox) for tenant, container_id, sandbox in found}


def reserve_disk(rows: TenantRows, container_id: str, size: int, most: int, now: float) -> bool:
    """Set the bytes of an upload in progress, unless the tenant would use more than `most`."""
    if size:
        rows.lock_tenant()
        found = rows.fetchone(
            "SELECT coalesce(sum(CASE WHEN id = :id THEN disk ELSE disk + uploading END), 0)"  # noqa: S608 - only constant names
            f" FROM containers WHERE tenant = :tenant AND {_IS_LIVE}",
            id=container_id,
            now=now,
        )
        assert found is not None  # noqa: S101 - an aggregate has one row
        if int(found[0]) + size > most:
            return False
    rows.execute(f"UPDATE containers SET uploading = :size WHERE {_BY_ID}", id=container_id, size=size)  # noqa: S608 - a constant condition
    return True


def use(rows: TenantRows, now: float) -> ContainerUse:
    """The resource use of the tenant's running containers, with uploads in progress."""
    found = rows.fetchone(
        "SELECT count(*), coalesce(sum(memory), 0), coalesce(sum(disk + uploading), 0)"  # noqa: S608 - only constant names
        f" FROM containers WHERE tenant = :tenant AND {_IS_LIVE}",
        now=now,
    )
    assert found is not None  # noqa: S101 - an aggregate has one row
    count, memory, disk = found
    return ContainerUse(count, int(memory), int(disk))


def expire(rows: Rows, now: float) -> list[OwnedRecord]:
    """Mark idle containers of all tenants as expired, and detach their sandboxes."""
    return _update_all_tenants(rows, f"{_EXPIRE} WHERE {_IS_EXPIRED}", now=now)


def expire_lru(
    rows: TenantRows, name: str, now: float, use: ReplicaUse, excluded: Sequence[str]
) -> ContainerRecord | None:
    """Expire the least recently used container of the tenant early. One used since `now` is not a candidate."""
    rows.lock_tenant()  # two evictions must not choose the same container
    found = rows.fetchone(
        f"UPDATE containers {_EXPIRE} WHERE tenant = :tenant"  # noqa: S608 - only constant names
        f" AND {_IS_LIVE} AND {_IS_UNUSED} AND key = (SELECT key FROM containers"
        f" WHERE tenant = :tenant AND name = :name AND {_IS_LIVE} AND {_IS_UNUSED}"
        f" AND NOT id {rows.member_of('excluded')}"
        f" ORDER BY last_active_at, key LIMIT 1) RETURNING {_COLUMNS}",
        name=name,
        now=now,
        replica=use.replica,
        since=use.since,
        excluded=rows.dialect.as_list(excluded),
    )
    return None if found is None else _decode(found)


def has_live(rows: TenantRows, name: str, now: float, excluded: Sequence[str]) -> bool:
    """Whether the tenant has a running container of this name that is not excluded."""
    found = rows.fetchone(
        f"SELECT 1 FROM containers WHERE tenant = :tenant AND name = :name AND {_IS_LIVE}"  # noqa: S608 - only constant names
        f" AND NOT id {rows.member_of('excluded')} LIMIT 1",
        name=name,
        now=now,
        excluded=rows.dialect.as_list(excluded),
    )
    return found is not None


def _update_all_tenants(rows: Rows, change: str, **values: object) -> list[OwnedRecord]:
    """Update containers of all tenants; returns the changed ones with their owners."""
    changed = rows.execute(f"UPDATE containers {change} RETURNING tenant, key_id, {_COLUMNS}", **values)
    return [(Owner(tenant, key_id), _decode(row)) for tenant, key_id, *row in changed.fetchall()]


def delete_expired(rows: Rows, before: float) -> int:
    """Delete the records of containers of all tenants that expired before a time."""
    condition = "status = 'expired' AND last_active_at + expires_after < :before"
    return rows.execute(f"DELETE FROM containers WHERE {condition}", before=before).rowcount  # noqa: S608 - a constant condition


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_files(
    rows: TenantRows,
    container_id: str,
    put: Sequence[ContainerFileRecord],
    dropped: Sequence[str],
    sandbox: SandboxRef | None,
) -> bool:
    """Delete, replace and insert file records, and update the disk use."""
    key = _running_key(rows, container_id)
    if key is None or (sandbox is not None and not _has_sandbox(rows, key, sandbox)):
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
        "UPDATE containers SET uploading = 0, disk ="
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
        return msgspec.structs.replace(record, status="expired", sandbox=None, replica=None)
    return record


def _delete_files(rows: TenantRows, key: int) -> None:
    rows.execute("DELETE FROM container_files WHERE tenant = :tenant AND container = :key", key=key)


def _has_sandbox(rows: TenantRows, key: int, sandbox: SandboxRef) -> bool:
    condition = f"tenant = :tenant AND key = :key AND {_IS_SANDBOX}"
    found = rows.fetchone(
        f"SELECT key FROM containers WHERE {condition}",  # noqa: S608 - a constant condition
        key=key,
        sandbox=sandbox.sandbox,
        replica=sandbox.replica,
    )
    return found is not None


def _running_key(rows: TenantRows, container_id: str) -> int | None:
    condition = f"{_BY_ID} AND status = 'running'{rows.dialect.row_lock}"
    found = rows.fetchone(f"SELECT key FROM containers WHERE {condition}", id=container_id)  # noqa: S608 - a constant condition
    return None if found is None else int(found[0])
