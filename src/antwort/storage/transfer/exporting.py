"""Export: writes one snapshot of a store to a file, in bounded memory. For a program of its own: it blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import msgspec

from antwort.engine.stores import FileRecord, StoreFault
from antwort.storage.blobs import BlobStore
from antwort.storage.transfer.archive import ExportWriter, TransferError, Value
from antwort.storage.transfer.port import RowProgress, TransferDatabase
from antwort.storage.transfer.tables import FILES, TABLES, Table

_ROWS_PER_QUERY = 64
"""Bounds the memory of one query: an event or an item may hold images."""

_record = msgspec.json.Decoder(FileRecord).decode


async def export_store(database: TransferDatabase, blobs: BlobStore, file: IO[bytes], progress: RowProgress) -> None:
    """Write everything in the database, and the contents of its files."""
    columns = {table.name: _exported(database, table) for table in TABLES}
    writer = ExportWriter(file, columns)
    for table in TABLES:
        if table is FILES:
            await _export_files(database, blobs, writer, columns[table.name], progress)
            continue
        for rows in _pages(database, table, columns[table.name]):
            writer.rows(table.name, rows)
            progress.count(table.name, len(rows))
    writer.end()


async def _export_files(
    database: TransferDatabase,
    blobs: BlobStore,
    writer: ExportWriter,
    columns: Sequence[str],
    progress: RowProgress,
) -> None:
    for rows in _pages(database, FILES, [*columns, "blob"]):
        for row in rows:
            *values, blob = row
            body = values[columns.index("body")]
            record = _record(body if isinstance(body, bytes) else b"")
            if await _export_content(blobs, str(blob), record, writer, progress):
                writer.rows(FILES.name, [values])
                progress.count(FILES.name, 1)
            else:
                progress.skipped_files += 1


async def _export_content(
    blobs: BlobStore, blob: str, record: FileRecord, writer: ExportWriter, progress: RowProgress
) -> bool:
    """Whether the content is complete. If not, its file was deleted since the snapshot, or the store is damaged."""
    content = await blobs.open(blob)
    if content is None:
        return False
    member = writer.content(record.bytes)
    try:
        async for chunk in content:
            member.write(chunk)
            progress.add_content(len(chunk))
    except StoreFault as fault:
        if await blobs.open(blob) is not None:
            raise TransferError(f"The content of {record.id} cannot be read. {fault}") from fault
        member.end()
        return False
    if not member.end():
        raise TransferError(f"The content of {record.id} is shorter than its record says. The store is damaged.")
    return True


def _exported(database: TransferDatabase, table: Table) -> list[str]:
    return [name for name in database.columns(table.name) if name not in table.left_out]


def _pages(database: TransferDatabase, table: Table, columns: Sequence[str]) -> Iterator[list[tuple[Value, ...]]]:
    """All rows of a table, in order, a few at a time."""
    order = ", ".join(table.order)
    selected = ", ".join([*(table.replaced.get(name, name) for name in columns), *table.order])
    first = f"SELECT {selected} FROM {table.name} WHERE {table.condition}"  # noqa: S608 - constants and names of columns
    last = ", ".join(f":after_{name}" for name in table.order)
    following = f"{first} AND ({order}) > ({last})"
    rest = f" ORDER BY {order} LIMIT :limit"
    after: dict[str, object] = {}
    while found := database.rows.execute(
        (following if after else first) + rest, limit=_ROWS_PER_QUERY, **after
    ).fetchall():
        yield [tuple(row[: len(columns)]) for row in found]
        keys = found[-1][len(columns) :]
        after = {f"after_{name}": key for name, key in zip(table.order, keys, strict=True)}
