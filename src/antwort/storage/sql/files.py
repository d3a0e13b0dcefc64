"""SQL statements for records of uploaded files, scoped to one tenant. Their content is in `blobs`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antwort.engine.stores import FileRecord, PageQuery, RecordPage
from antwort.storage.sql.paging import PagedQuery, read_page
from antwort.storage.sql.rows import Rows, TenantRows

_NOT_EXPIRED = "(expires_at IS NULL OR expires_at > :now)"

_record = msgspec.json.Decoder(FileRecord).decode


def insert(rows: TenantRows, record: FileRecord, blob: str) -> None:
    """Insert the record of a stored blob."""
    rows.execute(
        "INSERT INTO files (tenant, key_id, id, blob, expires_at, purpose, body)"
        " VALUES (:tenant, :key_id, :id, :blob, :expires_at, :purpose, :body)",
        id=record.id,
        blob=blob,
        expires_at=record.expires_at,
        purpose=record.purpose,
        body=msgspec.json.encode(record),
    )


def get(rows: TenantRows, file_id: str, now: int) -> tuple[FileRecord, str] | None:
    """A record, and the name of its blob."""
    found = rows.fetchone(
        f"SELECT body, blob FROM files WHERE tenant = :tenant AND id = :id AND {_NOT_EXPIRED}",  # noqa: S608 - a constant condition
        id=file_id,
        now=now,
    )
    return None if found is None else (_record(found[0]), found[1])


def file_page(rows: TenantRows, query: PageQuery, purpose: str | None, now: int) -> RecordPage:
    """A page of the records, in order of creation."""
    condition = f"{_NOT_EXPIRED} AND (CAST(:purpose AS text) IS NULL OR purpose = :purpose)"
    listing = PagedQuery("files", condition, {"now": now, "purpose": purpose})
    return read_page(rows, listing, "body", query, lambda found: [_record(body) for (body,) in found])


def delete(rows: TenantRows, file_id: str, now: int) -> list[str]:
    """Delete a record. Returns the name of its blob; empty if there was no such file."""
    deleted = rows.execute(
        f"DELETE FROM files WHERE tenant = :tenant AND id = :id AND {_NOT_EXPIRED} RETURNING blob",  # noqa: S608 - a constant condition
        id=file_id,
        now=now,
    )
    return [name for (name,) in deleted.fetchall()]


def delete_expired(rows: Rows, now: int) -> list[str]:
    """Delete expired records of all tenants. Returns the names of their blobs."""
    deleted = rows.execute("DELETE FROM files WHERE expires_at <= :now RETURNING blob", now=now)
    return [name for (name,) in deleted.fetchall()]


def referenced(rows: Rows, blobs: Sequence[str]) -> set[str]:
    """Those of the blobs that any record refers to."""
    found = rows.execute(
        f"SELECT blob FROM files WHERE blob {rows.member_of('blobs')}",  # noqa: S608 - a constant condition
        blobs=rows.dialect.as_list(blobs),
    )
    return {name for (name,) in found}
