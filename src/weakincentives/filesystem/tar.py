"""Many files as one tar: written piece by piece, and read within bounds. Touches no disk.

Reading does without `tarfile`: an archive may come from anywhere, and what it says of itself must cost neither memory
nor time. Only files and directories exist here; what else is in an archive is told, and its content passed over.
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
_MAX_EXTENSION_BYTES = 1 << 20  # of one that only says more of the next member: paths are much shorter
_FILES = frozenset({b"0", b"\0", b"7"})
_DIRECTORY = b"5"
_PAX = frozenset({b"x", b"g"})
_LONG_NAME, _LONG_LINK = b"L", b"K"
_BASE_256 = 0x80
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A file to pack, or with no way to open it, a directory."""

    name: str
    size: int = 0
    open: Callable[[], AbstractContextManager[BinaryIO]] | None = None


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of an archive. What `content` has not been read of is passed over when the next one is asked for."""

    name: str
    kind: Kind
    size: int
    content: Iterator[bytes]


def pack(files: Iterable[TarEntry], on_packed: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """A whole tar, in pieces of a good size. `packed` is told of each file, with its size."""
    waiting = bytearray()
    for file in files:
        waiting += _header(file)
        for chunk in _padded_content(file):
            waiting += chunk
            if len(waiting) >= _CHUNK_BYTES:
                yield bytes(waiting)
                waiting.clear()
        if on_packed is not None and file.open is not None:
            on_packed(file.size)
    waiting += bytes(2 * _BLOCK_BYTES)
    yield bytes(waiting)


def _header(file: TarEntry) -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = file.size
    info.mode = 0o644
    if file.open is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded_content(file: TarEntry) -> Iterator[bytes]:
    """As many bytes as the header says, whatever has become of the file meanwhile."""
    if file.open is None:
        return
    left = file.size
    with file.open() as opened:
        while left and (chunk := opened.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk
    if left:
        raise FilesystemError(f"{file.name!r} became shorter while it was packed; try again", path=file.name)
    yield bytes(-file.size % _BLOCK_BYTES)


def unpack(pieces: Iterable[bytes]) -> Iterator[TarMember]:
    """The members of a tar, as it comes. One that is broken or breaks off is a `FilesystemError`."""
    source = _BlockReader(pieces)
    said: dict[str, bytes] = {}
    while block := source.block():
        kind, size = block[156:157], _parse_number(block[124:136])
        if kind in _PAX or kind in (_LONG_NAME, _LONG_LINK):
            said |= _parse_extension(kind, source.extension(size))
            continue
        member_size = _parse_decimal(said["size"]) if "size" in said else size
        name, what = _name_and_kind(block, kind, said)
        said = {}
        content = source.content(0 if what == "directory" else member_size)
        yield TarMember(name, what, 0 if what == "directory" else member_size, content)
        for _ in content:
            pass


def _name_and_kind(block: bytes, kind: bytes, extension: dict[str, bytes]) -> tuple[str, Kind]:
    prefix = _until_nul(block[345:500]) if block[257:263] == b"ustar\0" else b""
    own = b"/".join(part for part in (prefix, _until_nul(block[:100])) if part)
    name = extension.get("path", own).decode(errors="surrogateescape")
    if kind == _DIRECTORY or (kind in _FILES and name.endswith("/")):
        return name, "directory"
    return name, "file" if kind in _FILES and not any(key.startswith("GNU.sparse") for key in extension) else "other"


class _BlockReader:
    """Pieces of any size, read as if they were one file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def block(self) -> bytes:
        """The next header; nothing at the end, with or without the mark that should be there."""
        block = self._read_exactly(_BLOCK_BYTES, allow_end=True)
        if not block.strip(b"\0"):
            return b""
        if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _parse_number(block[148:156]):
            raise _tar_error("the sum of a header is wrong")
        return block

    def extension(self, size: int) -> bytes:
        if size > _MAX_EXTENSION_BYTES:
            raise _tar_error(f"a header has {size} bytes")
        return b"".join(self.content(size))

    def content(self, size: int) -> Generator[bytes]:
        """So many bytes; the padding behind them is read as well."""
        left = size
        while left:
            chunk = self._read_some(left)
            left -= len(chunk)
            yield chunk
        self._read_exactly(-size % _BLOCK_BYTES)

    def _read_exactly(self, size: int, *, allow_end: bool = False) -> bytes:
        if len(self._rest) >= size > 0:  # nearly always, and there are many
            return self._read_some(size)
        taken = bytearray()
        while len(taken) < size:
            if allow_end and not taken and not self._fill():
                return b""
            taken += self._read_some(size - len(taken))
        return bytes(taken)

    def _read_some(self, max_bytes: int) -> bytes:
        if not self._fill():
            raise _tar_error("it ends too early")
        taken, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return bytes(taken)

    def _fill(self) -> bool:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = memoryview(piece)
        return True


def _parse_extension(kind: bytes, data: bytes) -> dict[str, bytes]:
    """What it says of the next member. One that speaks for all of them is nothing that we were asked to trust."""
    if kind == _LONG_NAME:
        return {"path": _until_nul(data)}
    if kind != b"x":
        return {}
    return {key: value for key, value in _pax_records(data) if key in ("path", "size") or key.startswith("GNU.sparse")}


def _pax_records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """`length key=value`, one after the other, each as long as it says."""
    start = 0
    while start < len(data):
        digits, space, _ = data[start : start + _MAX_DIGITS].partition(b" ")
        end = start + _parse_decimal(digits)
        key, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise _tar_error("a record is not as long as it says")
        yield key.decode(errors="replace"), value
        start = end


def _parse_number(field: bytes) -> int:
    """Octal digits; or a mark, and the number itself behind it."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise _tar_error("a number is none")
    return int(digits or b"0", 8)


def _parse_decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) >= _MAX_DIGITS:
        raise _tar_error("a number is none")
    return int(digits)


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _tar_error(problem: str) -> FilesystemError:
    return FilesystemError(f"this is no whole tar archive: {problem}", path="")
