"""Streaming tar archives: a writer, and a reader with bounded memory for untrusted archives. No disk access.

The reader does not use `tarfile`, whose extension headers can take unbounded memory and quadratic time. It yields
files and directories; members of other types are reported as "other", without interpretation.

The server has a tar module of its own, because the two packages share no code; `tests/together/test_tar.py` checks that
both read the same archives.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeAlias

from weakincentives.errors import FilesystemError

Kind: TypeAlias = Literal["file", "directory", "other"]

_BLOCK_BYTES = 512
_CHUNK_BYTES = 1 << 18
_MAX_EXTENSION_BYTES = 1 << 20  # of an extension header, which holds the path of the next member
_FILES = frozenset({b"0", b"\0", b"7"})
_DIRECTORY = b"5"
_PAX = frozenset({b"x", b"g"})
_LONG_NAME, _LONG_LINK = b"L", b"K"
_BASE_256 = 0x80
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TarEntry:
    """An entry to pack: a file, or a directory if `open` is None."""

    name: str
    size: int = 0
    open: Callable[[], AbstractContextManager[BinaryIO]] | None = None


@dataclass(frozen=True, slots=True)
class TarMember:
    """A member of an archive. Unread `content` is skipped when the next member is requested."""

    name: str
    kind: Kind
    size: int
    content: Iterator[bytes]


def pack(files: Iterable[TarEntry], on_packed: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """The archive in chunks. `on_packed` is called after each file, with its size."""
    buffer = bytearray()
    for file in files:
        buffer += _header(file)
        for chunk in _padded_content(file):
            buffer += chunk
            if len(buffer) >= _CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
        if on_packed is not None and file.open is not None:
            on_packed(file.size)
    buffer += bytes(2 * _BLOCK_BYTES)
    yield bytes(buffer)


def _header(file: TarEntry) -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = file.size
    info.mode = 0o644
    if file.open is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded_content(file: TarEntry) -> Iterator[bytes]:
    """The content with padding: exactly the size in the header, also if the file has grown meanwhile."""
    if file.open is None:
        return
    remaining = file.size
    with file.open() as opened:
        while remaining and (chunk := opened.read(min(remaining, _CHUNK_BYTES))):
            remaining -= len(chunk)
            yield chunk
    if remaining:
        raise FilesystemError(f"{file.name!r} shrank while it was packed; try again", path=file.name)
    yield bytes(-file.size % _BLOCK_BYTES)


def unpack(chunks: Iterable[bytes]) -> Iterator[TarMember]:
    """The members of an archive that arrives in chunks. A malformed or truncated archive is a `FilesystemError`."""
    source = _BlockReader(chunks)
    extension: dict[str, bytes] = {}
    while block := source.block():
        kind, size = block[156:157], _parse_number(block[124:136])
        if kind in _PAX or kind in (_LONG_NAME, _LONG_LINK):
            extension |= _parse_extension(kind, source.extension(size))
            continue
        member_size = _parse_decimal(extension["size"]) if "size" in extension else size
        name, member_kind = _name_and_kind(block, kind, extension)
        extension = {}
        content = source.content(0 if member_kind == "directory" else member_size)
        yield TarMember(name, member_kind, 0 if member_kind == "directory" else member_size, content)
        for _ in content:
            pass


def _name_and_kind(block: bytes, kind: bytes, extension: dict[str, bytes]) -> tuple[str, Kind]:
    prefix = _until_nul(block[345:500]) if block[257:263] == b"ustar\0" else b""
    header_name = b"/".join(part for part in (prefix, _until_nul(block[:100])) if part)
    name = extension.get("path", header_name).decode(errors="surrogateescape")
    if kind == _DIRECTORY or (kind in _FILES and name.endswith("/")):
        return name, "directory"
    return name, "file" if kind in _FILES and not any(key.startswith("GNU.sparse") for key in extension) else "other"


class _BlockReader:
    """Reads from an iterable of chunks as from one file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._remaining = memoryview(b"")

    def block(self) -> bytes:
        """The next header block; empty at the end of the archive, with or without an end marker."""
        block = self._read_exactly(_BLOCK_BYTES, allow_end=True)
        if not block.strip(b"\0"):
            return b""
        if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _parse_number(block[148:156]):
            raise _tar_error("wrong header checksum")
        return block

    def extension(self, size: int) -> bytes:
        if size > _MAX_EXTENSION_BYTES:
            raise _tar_error(f"an extension header has {size} bytes")
        return b"".join(self.content(size))

    def content(self, size: int) -> Generator[bytes]:
        """The next `size` bytes; also consumes the padding after them."""
        remaining = size
        while remaining:
            chunk = self._read_some(remaining)
            remaining -= len(chunk)
            yield chunk
        self._read_exactly(-size % _BLOCK_BYTES)

    def _read_exactly(self, size: int, *, allow_end: bool = False) -> bytes:
        if len(self._remaining) >= size > 0:  # fast path
            return self._read_some(size)
        data = bytearray()
        while len(data) < size:
            if allow_end and not data and not self._fill():
                return b""
            data += self._read_some(size - len(data))
        return bytes(data)

    def _read_some(self, max_bytes: int) -> bytes:
        if not self._fill():
            raise _tar_error("unexpected end")
        data, self._remaining = self._remaining[:max_bytes], self._remaining[max_bytes:]
        return bytes(data)

    def _fill(self) -> bool:
        while not self._remaining:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._remaining = memoryview(chunk)
        return True


def _parse_extension(kind: bytes, data: bytes) -> dict[str, bytes]:
    """The fields for the next member. Global headers (`g`) are ignored."""
    if kind == _LONG_NAME:
        return {"path": _until_nul(data)}
    if kind != b"x":
        return {}
    return {key: value for key, value in _pax_records(data) if key in ("path", "size") or key.startswith("GNU.sparse")}


def _pax_records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse PAX records: `length key=value` and a line feed; the length is that of the whole record."""
    start = 0
    while start < len(data):
        digits, space, _ = data[start : start + _MAX_DIGITS].partition(b" ")
        end = start + _parse_decimal(digits)
        key, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise _tar_error("wrong length of a PAX record")
        yield key.decode(errors="replace"), value
        start = end


def _parse_number(field: bytes) -> int:
    """Parse a numeric field: octal digits, or base 256 after a marker byte."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise _tar_error("invalid numeric field in tar header")
    return int(digits or b"0", 8)


def _parse_decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) >= _MAX_DIGITS:
        raise _tar_error("invalid numeric field in tar header")
    return int(digits)


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _tar_error(problem: str) -> FilesystemError:
    return FilesystemError(f"invalid tar archive: {problem}", path="")
