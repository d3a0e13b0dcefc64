"""Records of uploaded files, as statements about one tenant's rows. Their content is in `blobs`."""

from __future__ import annotations

import sqlite3

import msgspec

from antwort.engine.stores import FileRecord, Page, PageQuery
from antwort.storage.sqlite.database import Rows
from antwort.storage.sqlite.paging import Listing, page

_LIVING = "(expires_at IS NULL OR expires_at > :now)"

_record = msgspec.json.Decoder(FileRecord).decode


def insert(rows: Rows, record: FileRecord, blob: str) -> None:
    """Write a record whose content is there."""
    rows.run(
        "INSERT INTO files (tenant, key_id, id, blob, expires_at, purpose, body)"
        " VALUES (:tenant, :key_id, :id, :blob, :expires_at, :purpose, :body)",
        id=record.id,
        blob=blob,
        expires_at=record.expires_at,
        purpose=record.purpose,
        body=msgspec.json.encode(record),
    )


def get(rows: Rows, file_id: str, now: int) -> tuple[FileRecord, str] | None:
    """A record, and the name of its content."""
    found = rows.one(
        f"SELECT body, blob FROM files WHERE tenant = :tenant AND id = :id AND {_LIVING}",  # noqa: S608 — a constant
        id=file_id,
        now=now,
    )
    return None if found is None else (_record(found[0]), found[1])


def file_page(rows: Rows, query: PageQuery, purpose: str | None, now: int) -> Page:
    """A page of the records, by the order of arrival."""
    listing = Listing(
        "files", f"{_LIVING} AND (:purpose IS NULL OR purpose = :purpose)", {"now": now, "purpose": purpose}
    )
    bodies, more = page(rows, listing, "body", query)
    return Page([_record(body) for body in bodies], more)


def delete(rows: Rows, file_id: str, now: int) -> list[str]:
    """The name of the content that nobody needs any more; none where there was no such file."""
    found = get(rows, file_id, now)
    if found is None:
        return []
    rows.run("DELETE FROM files WHERE tenant = :tenant AND id = :id", id=file_id)
    return [found[1]]


def delete_expired(connection: sqlite3.Connection, now: int) -> list[str]:
    """Forget everybody's expired files; the names of their contents."""
    blobs = [name for (name,) in connection.execute("SELECT blob FROM files WHERE expires_at <= :now", {"now": now})]
    connection.execute("DELETE FROM files WHERE expires_at <= :now", {"now": now})
    return blobs


def is_needed(connection: sqlite3.Connection, blob: str) -> bool:
    """Whether somebody's file has this content."""
    return connection.execute("SELECT 1 FROM files WHERE blob = :blob", {"blob": blob}).fetchone() is not None
