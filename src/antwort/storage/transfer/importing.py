"""Import: writes an export into a store, all or nothing, in bounded memory. For a program of its own: it blocks."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import IO

from antwort.storage.blobs import BlobStore
from antwort.storage.sql.database import Committed
from antwort.storage.transfer.archive import Content, DamagedExport, ExportReader, Row, TableRows, TransferError
from antwort.storage.transfer.port import RowProgress, TransferDatabase
from antwort.storage.transfer.tables import FILES, TABLES, Table

_SPOOL_BYTES = 1024 * 1024


async def import_store(
    database: TransferDatabase,
    blobs: BlobStore,
    reader: ExportReader,
    progress: RowProgress,
    *,
    merge: bool = False,
) -> Committed:
    """Insert everything in one transaction, which is committed after the checksum of the file is verified.

    Ids, tenants and API key ids stay. Without `merge` the store must be empty; with it, the imported objects follow
    the existing ones in lists, and an id that exists is a `TransferError`. Returns whether the commit is certain.
    """
    importer = _Importer(database, blobs, reader, progress)
    if not merge:
        importer.check_empty()
    with tempfile.TemporaryFile(buffering=_SPOOL_BYTES) as names:
        committed: Committed = False
        try:
            await importer.insert_all(names)
            committed = None  # until the answer to the commit
            committed = database.commit()
        finally:
            if committed is False:
                await blobs.remove(_lines(names))
    return committed


class _Importer:
    """Inserts the members of an export, in order."""

    def __init__(
        self, database: TransferDatabase, blobs: BlobStore, reader: ExportReader, progress: RowProgress
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._reader = reader
        self._progress = progress
        self._tables = {table.name: table for table in TABLES}
        self._columns = {table.name: database.columns(table.name) for table in TABLES}
        self._check_columns()
        self._offsets = {table.name: self._last_key(table) for table in TABLES}

    def check_empty(self) -> None:
        """`TransferError` if the store has anything."""
        for table in TABLES:
            if self._database.rows.fetchone(f"SELECT 1 FROM {table.name} LIMIT 1") is not None:  # noqa: S608 - a constant table
                raise TransferError(
                    "The store is not empty. Set `storage` to an empty one; or import with --merge, which adds the "
                    "objects of the file to those of the store."
                )

    async def insert_all(self, names: IO[bytes]) -> None:
        """Insert all rows, and write all contents. Notes the names of the blobs in the file `names`."""
        blob: str | None = None
        for member in self._reader.members():
            if isinstance(member, Content):
                await self._drop(blob)
                blob = await self._write(member)
                names.write(f"{blob}\n".encode())
            elif member.table == FILES.name:
                if blob is None or len(member.rows) != 1:
                    raise DamagedExport("a file has no content")
                self._insert(member, extra={"blob": blob})
                blob = None
            else:
                self._insert(member)
        await self._drop(blob)

    async def _write(self, content: Content) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in content.chunks:
                yield chunk
                self._progress.add_content(len(chunk))

        upload = await self._blobs.write(chunks())
        await upload.close(keep=None)
        return upload.name

    async def _drop(self, blob: str | None) -> None:
        """Delete a content whose file was deleted during the export."""
        if blob is not None:
            await self._blobs.remove([blob])

    def _insert(self, member: TableRows, extra: dict[str, str] | None = None) -> None:
        table, extra = self._tables[member.table], extra or {}
        names = self._reader.header.tables[member.table]
        columns = [*names, *extra]
        try:
            self._database.rows.executemany(
                f"INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608 - names of columns, checked
                f" {self._database.insert_clause} VALUES ({', '.join(':' + name for name in columns)})",
                ({**self._values(table, names, row), **extra} for row in member.rows),
            )
        except Exception as error:
            match self._database.rejection(error):
                case "duplicate":
                    message = f"The store already has an object of the file, in {table.name!r}. Nothing was imported."
                    raise TransferError(message) from error
                case "invalid":
                    raise DamagedExport(f"a row of {table.name!r} does not fit its table") from error
                case None:
                    raise
        self._progress.count(table.name, len(member.rows))
        member.rows.clear()  # before the next ones are read, to hold one large row in memory and not two

    def _values(self, table: Table, names: Sequence[str], row: Row) -> dict[str, object]:
        values: dict[str, object] = dict(zip(names, row, strict=True))
        for name, is_boolean in self._columns[table.name].items():
            if is_boolean and values.get(name) is not None:
                values[name] = bool(values[name])
        keys = {column: self._offsets[parent] for column, parent in table.parents.items()}
        if "key" in table.order:
            keys["key"] = self._offsets[table.name]
        for column, offset in keys.items():
            key = values.get(column)
            if not isinstance(key, int):
                raise DamagedExport(f"a row of {table.name!r} has no key")
            values[column] = key + offset
        return values

    def _check_columns(self) -> None:
        for table, names in self._reader.header.tables.items():
            known = self._columns.get(table)
            unknown = [table] if known is None else [f"{table}.{name}" for name in names if name not in known]
            if unknown:
                raise TransferError(
                    f"The file has {unknown[0]!r}, which this antwort does not know. Install the version of antwort "
                    "that wrote it, or a newer one."
                )
            if len({*names}) < len(names) or not self._tables[table].left_out.isdisjoint(names):
                raise DamagedExport(f"its header lists columns of {table!r} that no export has")

    def _last_key(self, table: Table) -> int:
        """Keys of the file are moved behind those of the store, which keeps their order."""
        if "key" not in table.order:
            return 0
        found = self._database.rows.fetchone(f"SELECT coalesce(max(key), 0) FROM {table.name}")  # noqa: S608 - a constant table
        return 0 if found is None else int(found[0])


def _lines(names: IO[bytes]) -> Iterable[str]:
    def read() -> Iterator[str]:
        names.seek(0)
        for line in names:
            yield line.decode().strip()

    return read()
