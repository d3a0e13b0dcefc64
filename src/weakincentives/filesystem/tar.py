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

_BLOCK = 512
_PIECE = 1 << 18
_LONGEST_HEADER = 1 << 20  # of one that only says more of the next member: paths are much shorter
_FILES = frozenset({b"0", b"\0", b"7"})
_DIRECTORY = b"5"
_PAX = frozenset({b"x", b"g"})
_LONG_NAME, _LONG_LINK = b"L", b"K"
_BASE_256 = 0x80
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A file to pack, or with no way to open it, a directory."""

    name: str
    size: int = 0
    open: Callable[[], AbstractContextManager[BinaryIO]] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive. What `content` has not been read of is passed over when the next one is asked for."""

    name: str
    kind: Kind
    size: int
    content: Iterator[bytes]


def pack(files: Iterable[Packed], packed: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """A whole tar, in pieces of a good size. `packed` is told of each file, with its size."""
    waiting = bytearray()
    for file in files:
        waiting += _header(file)
        for chunk in _padded(file):
            waiting += chunk
            if len(waiting) >= _PIECE:
                yield bytes(waiting)
                waiting.clear()
        if packed is not None and file.open is not None:
            packed(file.size)
    waiting += bytes(2 * _BLOCK)
    yield bytes(waiting)


def _header(file: Packed) -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = file.size
    info.mode = 0o644
    if file.open is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded(file: Packed) -> Iterator[bytes]:
    """As many bytes as the header says, whatever has become of the file meanwhile."""
    if file.open is None:
        return
    left = file.size
    with file.open() as opened:
        while left and (chunk := opened.read(min(left, _PIECE))):
            left -= len(chunk)
            yield chunk
    if left:
        raise FilesystemError(f"{file.name!r} became shorter while it was packed; try again", path=file.name)
    yield bytes(-file.size % _BLOCK)


def unpack(pieces: Iterable[bytes]) -> Iterator[Member]:
    """The members of a tar, as it comes. One that is broken or breaks off is a `FilesystemError`."""
    source = _Source(pieces)
    said: dict[str, bytes] = {}
    while block := source.block():
        kind, size = block[156:157], _number(block[124:136])
        if kind in _PAX or kind in (_LONG_NAME, _LONG_LINK):
            said |= _extension(kind, source.header(size))
            continue
        member_size = _decimal(said["size"]) if "size" in said else size
        name, what = _named(block, kind, said)
        said = {}
        content = source.content(0 if what == "directory" else member_size)
        yield Member(name, what, 0 if what == "directory" else member_size, content)
        for _ in content:
            pass


def _named(block: bytes, kind: bytes, said: dict[str, bytes]) -> tuple[str, Kind]:
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else b""
    own = b"/".join(part for part in (prefix, _text(block[:100])) if part)
    name = said.get("path", own).decode(errors="surrogateescape")
    if kind == _DIRECTORY or (kind in _FILES and name.endswith("/")):
        return name, "directory"
    return name, "file" if kind in _FILES and not any(key.startswith("GNU.sparse") for key in said) else "other"


class _Source:
    """Pieces of any size, read as if they were one file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def block(self) -> bytes:
        """The next header; nothing at the end, with or without the mark that should be there."""
        block = self._exactly(_BLOCK, at_the_end=True)
        if not block.strip(b"\0"):
            return b""
        if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _number(block[148:156]):
            raise _broken("the sum of a header is wrong")
        return block

    def header(self, size: int) -> bytes:
        if size > _LONGEST_HEADER:
            raise _broken(f"a header has {size} bytes")
        return b"".join(self.content(size))

    def content(self, size: int) -> Generator[bytes]:
        """So many bytes; the padding behind them is read as well."""
        left = size
        while left:
            chunk = self._some(left)
            left -= len(chunk)
            yield chunk
        self._exactly(-size % _BLOCK)

    def _exactly(self, size: int, *, at_the_end: bool = False) -> bytes:
        if len(self._rest) >= size > 0:  # nearly always, and there are many
            return self._some(size)
        taken = bytearray()
        while len(taken) < size:
            if at_the_end and not taken and not self._fill():
                return b""
            taken += self._some(size - len(taken))
        return bytes(taken)

    def _some(self, most: int) -> bytes:
        if not self._fill():
            raise _broken("it ends too early")
        taken, self._rest = self._rest[:most], self._rest[most:]
        return bytes(taken)

    def _fill(self) -> bool:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = memoryview(piece)
        return True


def _extension(kind: bytes, data: bytes) -> dict[str, bytes]:
    """What it says of the next member. One that speaks for all of them is nothing that we were asked to trust."""
    if kind == _LONG_NAME:
        return {"path": _text(data)}
    if kind != b"x":
        return {}
    return {key: value for key, value in _records(data) if key in ("path", "size") or key.startswith("GNU.sparse")}


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """`length key=value`, one after the other, each as long as it says."""
    start = 0
    while start < len(data):
        digits, space, _ = data[start : start + _MOST_DIGITS].partition(b" ")
        end = start + _decimal(digits)
        key, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise _broken("a record is not as long as it says")
        yield key.decode(errors="replace"), value
        start = end


def _number(field: bytes) -> int:
    """Octal digits; or a mark, and the number itself behind it."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise _broken("a number is none")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) >= _MOST_DIGITS:
        raise _broken("a number is none")
    return int(digits)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _broken(why: str) -> FilesystemError:
    return FilesystemError(f"this is no whole tar archive: {why}", path="")
