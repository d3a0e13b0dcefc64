"""Format of an export: a tar archive, written and read as a stream, with a checksum at its end. No database.

Members, in this order:

- `antwort-export.json`: the version of the format, and the columns of each table: `{"format": 1, "tables": {…}}`.
- `TABLE/NUMBER.jsonl`: rows of a table, one JSON array in a line, in the order of its columns. Tables and rows follow
  in the order in which they can be inserted. Bytes are `{"utf8": TEXT}` or `{"base64": TEXT}`.
- `files/NUMBER.content`: the content of a file; the member behind it is `files/NUMBER.jsonl` with its row. One without
  a row belongs to a file that was deleted during the export.
- `end.json`: `{"sha256": …, "rows": {TABLE: NUMBER}}`. The checksum is that of all members before it: of each name,
  size and content, where the name and the decimal size are each followed by a line break.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, TypeAlias

import msgspec
from msgspec import Struct, field

from antwort.net import tar
from antwort.net.errors import InvalidArchive, SizeLimitExceeded

FORMAT: Final = 1
CHUNK_BYTES: Final = 1024 * 1024
"""Size from which a member of rows is written. It may exceed it by one row."""
MAX_ROWS_BYTES: Final = 512 * 1024 * 1024
"""Size of a member of rows that is read into memory at most."""
HEADER, END, CONTENT = "antwort-export.json", "end.json", ".content"

Value: TypeAlias = str | int | float | bool | bytes | None
Row: TypeAlias = list[Value]


class TransferError(Exception):
    """An export or an import is not possible. The message says what to do."""


class DamagedExport(TransferError):
    """The file is not an export, or was truncated or altered."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The file is not a complete export of antwort: {reason}. Nothing was imported.")


class Header(Struct, kw_only=True):
    """The first member."""

    format: int
    tables: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


class _End(Struct):
    sha256: str
    rows: dict[str, int]


_encode_into = msgspec.json.Encoder().encode_into
_decode_header = msgspec.json.Decoder(Header).decode
_decode_end = msgspec.json.Decoder(_End).decode
_decode_row = msgspec.json.Decoder(list[str | int | float | bool | dict[str, str] | None]).decode


class ExportWriter:
    """Writes an export."""

    def __init__(self, file: IO[bytes], tables: dict[str, list[str]]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._rows: dict[str, int] = {}
        self._members = 0
        self._member(HEADER, msgspec.json.encode(Header(format=FORMAT, tables=tables)))

    def rows(self, table: str, rows: Iterable[Sequence[Value]]) -> None:
        """Write rows of a table."""
        chunk = bytearray()
        for row in rows:
            _encode_into([_encoded(value) for value in row], chunk, -1)  # at its end
            chunk += b"\n"
            self._rows[table] = self._rows.get(table, 0) + 1
            if len(chunk) >= CHUNK_BYTES:
                self._flush(table, chunk)
        self._flush(table, chunk)

    def content(self, size: int) -> ContentWriter:
        """Begin the content of a file, whose row may follow."""
        self._members += 1
        self._write(f"files/{self._members:08d}{CONTENT}", size)
        return ContentWriter(size, self._put, self._file)

    def end(self) -> None:
        """Write the checksum and the end of the archive."""
        end = _End(self._digest.hexdigest(), self._rows)
        self._member(END, msgspec.json.encode(end))
        self._file.write(tar.END)
        self._file.flush()

    def _flush(self, table: str, chunk: bytearray) -> None:
        if chunk:
            self._members += 1
            self._member(f"{table}/{self._members:08d}.jsonl", chunk)
            chunk.clear()

    def _member(self, name: str, content: bytes | bytearray) -> None:
        self._write(name, len(content))
        self._put(content)
        self._file.write(tar.padding(len(content)))

    def _write(self, name: str, size: int) -> None:
        self._digest.update(_digest_head(name, size))
        self._file.write(tar.header(name, "file", size, 0))

    def _put(self, data: bytes | bytearray) -> None:
        self._digest.update(data)
        self._file.write(data)


class ContentWriter:
    """Writes the content of one file, of a size that the archive has announced."""

    def __init__(self, size: int, put: Callable[[bytes], None], file: IO[bytes]) -> None:
        self._missing = size
        self._size = size
        self._put = put
        self._file = file

    def write(self, data: bytes) -> None:
        """Append data; `TransferError` for more than was announced."""
        if len(data) > self._missing:
            raise TransferError("The content of a file is longer than its record says. The store is damaged.")
        self._missing -= len(data)
        self._put(data)

    def end(self) -> bool:
        """Fill the rest with zeros, and end the member; whether the content was complete."""
        is_complete = self._missing == 0
        while self._missing:
            self.write(bytes(min(self._missing, CHUNK_BYTES)))
        self._file.write(tar.padding(self._size))
        return is_complete


class TableRows(Struct):
    """A member with rows."""

    table: str
    rows: list[Row]


class Content(Struct):
    """A member with the content of a file. Its chunks must be read before the next member."""

    size: int
    chunks: Iterator[bytes]


class ExportReader:
    """Reads an export: the header at once, then its members. `DamagedExport` for what is not one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._rows: dict[str, int] = {}
        self._members = tar.members(file)
        member = self._next()
        if member is None or member.name != HEADER:
            raise DamagedExport("it does not begin with the header of one")
        try:
            self.header = _decode_header(self._small(member))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedExport("its header is not valid") from error
        if self.header.format != FORMAT:
            raise TransferError(
                f"The file has version {self.header.format} of the export format, and this antwort reads version "
                f"{FORMAT}. Install the version of antwort that wrote it, or a newer one."
            )

    def members(self) -> Iterator[TableRows | Content]:
        """Every member up to the end, whose checksum is verified before the iterator ends."""
        while (member := self._next()) is not None:
            if member.name == END:
                self._verify(self._read(member, is_hashed=False))
                return
            self._digest.update(_digest_head(member.name, member.size))
            table, _, name = member.name.partition("/")
            if name.endswith(CONTENT):
                content = Content(member.size, self._chunks(member.size))
                yield content
                for _ in content.chunks:  # what the caller has left
                    pass
            else:
                yield self._decode(table, self._read(member))
        raise DamagedExport("it ends before its end, so it was truncated")

    def _next(self) -> tar.Member | None:
        with _damage():
            return next(self._members, None)

    def _small(self, member: tar.Member) -> bytes:
        self._digest.update(_digest_head(member.name, member.size))
        return self._read(member)

    def _read(self, member: tar.Member, *, is_hashed: bool = True) -> bytes:
        if member.size > MAX_ROWS_BYTES:
            raise DamagedExport(f"{member.name} is larger than {MAX_ROWS_BYTES} bytes")
        with _damage():
            data = b"".join(tar.content(self._file, member.size))
        if is_hashed:
            self._digest.update(data)
        return data

    def _chunks(self, size: int) -> Iterator[bytes]:
        with _damage():
            for chunk in tar.content(self._file, size):
                self._digest.update(chunk)
                yield chunk

    def _decode(self, table: str, data: bytes) -> TableRows:
        if table not in self.header.tables:
            raise DamagedExport(f"its header does not list the table {table!r}")
        width = len(self.header.tables[table])
        try:
            rows = [[_decoded(value) for value in _decode_row(line)] for line in io.BytesIO(data)]
        except (msgspec.MsgspecError, ValueError) as error:
            raise DamagedExport(f"a row of {table!r} is not valid") from error
        if any(len(row) != width for row in rows):
            raise DamagedExport(f"a row of {table!r} has another number of columns than its header says")
        self._rows[table] = self._rows.get(table, 0) + len(rows)
        return TableRows(table, rows)

    def _verify(self, data: bytes) -> None:
        try:
            end = _decode_end(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedExport("its end is not valid") from error
        if end.sha256 != self._digest.hexdigest() or end.rows != self._rows:
            raise DamagedExport("its checksum does not match its content, so it was altered")


def verify(file: IO[bytes]) -> None:
    """Read an export to its end; `DamagedExport` if it is not complete and unaltered."""
    for _ in ExportReader(file).members():
        pass


class _damage:  # noqa: N801 - a context manager, used like a function
    """Raise errors of the tar reader in the block as `DamagedExport`. Not a generator: the block may yield."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (InvalidArchive, SizeLimitExceeded)):
            raise DamagedExport(str(error)) from error


def _digest_head(name: str, size: int) -> bytes:
    return f"{name}\n{size}\n".encode(errors="surrogateescape")


def _encoded(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    if not isinstance(value, bytes):
        return value
    try:
        return {"utf8": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _decoded(value: str | float | dict[str, str] | None) -> Value:
    if not isinstance(value, dict):
        return value
    match value:
        case {"utf8": text}:
            return text.encode()
        case {"base64": text}:
            return base64.b64decode(text, validate=True)
        case _:
            raise ValueError("neither utf8 nor base64")
