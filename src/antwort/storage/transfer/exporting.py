"""Export: writes one snapshot of a store to a file, in bounded memory. For a program of its own: it blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import msgspec

from antwort.engine.stores import FileRecord, StoreFault
from antwort.storage.blobs import BlobStore
from antwort.storage.transfer.archive import ExportWriter, TransferError, Value
from antwort.storage.transfer.port import RowProgress, TransferDatabase
from antwort.storage.transfer.tables import FILES, TABLES, Table

_ROWS_PER_QUERY = 64
"""Bounds the time of one query. In memory is one row at a time: an event or an item may hold images."""
_NAMED_FILES = 50
"""Files that an error names at most."""

_record = msgspec.json.Decoder(FileRecord).decode


async def export_store(database: TransferDatabase, blobs: BlobStore, file: IO[bytes], progress: RowProgress) -> None:
    """Write everything in the database, and the contents of its files."""
    columns = {table.name: _exported(database, table) for table in TABLES}
    writer = ExportWriter(file, columns)
    for table in TABLES:
        if table is FILES:
            await _FileExport(database, blobs, writer, progress).write(columns[table.name])
        else:
            writer.rows(table.name, _counted(_rows(database, table, columns[table.name]), table, progress))
    writer.end()


class _FileExport:
    """Writes the records of files, each behind its content."""

    def __init__(
        self, database: TransferDatabase, blobs: BlobStore, writer: ExportWriter, progress: RowProgress
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._writer = writer
        self._progress = progress

    async def write(self, columns: Sequence[str]) -> None:
        """Write all of them; `TransferError` if contents are missing whose records still exist."""
        missing: dict[str, str] = {}
        for *values, blob in _rows(self._database, FILES, [*columns, "blob"]):
            body = values[columns.index("body")]
            record = _record(body if isinstance(body, bytes) else b"")
            if await self._write_content(str(blob), record):
                self._writer.rows(FILES.name, [values])
                self._progress.count(FILES.name, 1)
            else:
                missing[str(blob)] = record.id
        if missing:
            # A record is deleted before its content, so one that exists now has lost it.
            lost = self._database.still_referenced(list(missing))
            if lost:
                raise _lost([name for blob, name in missing.items() if blob in lost])
            self._progress.skipped_files += len(missing)

    async def _write_content(self, blob: str, record: FileRecord) -> bool:
        """Whether the content is complete. If not, it does not exist, or was deleted meanwhile."""
        content = await self._blobs.open(blob)
        if content is None:
            return False
        member = self._writer.content(record.bytes)
        try:
            async for chunk in content:
                member.write(chunk)
                self._progress.add_content(len(chunk))
        except StoreFault as fault:
            if await self._blobs.open(blob) is not None:
                raise TransferError(f"The content of {record.id} cannot be read. {fault}") from fault
            member.end()
            return False
        if not member.end():
            raise TransferError(f"The content of {record.id} is shorter than its record says. The store is damaged.")
        return True


def _lost(ids: Sequence[str]) -> TransferError:
    more = f" and {len(ids) - _NAMED_FILES} more" if len(ids) > _NAMED_FILES else ""
    return TransferError(
        f"The contents of {len(ids)} files are missing in `storage.blobs`: {', '.join(ids[:_NAMED_FILES])}{more}. "
        "Check that setting, restore them, or delete these files; then export again."
    )


def _counted(rows: Iterable[Sequence[Value]], table: Table, progress: RowProgress) -> Iterator[Sequence[Value]]:
    for row in rows:
        yield row
        progress.count(table.name, 1)


def _exported(database: TransferDatabase, table: Table) -> list[str]:
    return [name for name in database.columns(table.name) if name not in table.left_out]


def _rows(database: TransferDatabase, table: Table, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
    """All rows of a table, in order, one at a time."""
    order = ", ".join(table.order)
    selected = ", ".join([*(table.replaced.get(name, name) for name in columns), *table.order])
    first = f"SELECT {selected} FROM {table.name} WHERE {table.condition}"  # noqa: S608 - constants and names of columns
    last = ", ".join(f":after_{name}" for name in table.order)
    following = f"{first} AND ({order}) > ({last})"
    rest = f" ORDER BY {order} LIMIT :limit"
    after: dict[str, object] = {}
    is_end = False
    while not is_end:
        is_end = True
        for row in database.stream((following if after else first) + rest, limit=_ROWS_PER_QUERY, **after):
            is_end, keys = False, row[len(columns) :]
            after = {f"after_{name}": key for name, key in zip(table.order, keys, strict=True)}
            yield row[: len(columns)]
