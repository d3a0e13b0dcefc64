"""The headers of a tar: read one after the other within bounds, and written.

Not `tarfile`: archives come from strangers, and it takes an extension header into memory however long that says it is,
searches it with expressions whose time is quadratic (and nothing else in the process runs meanwhile), and recurses once
for each of a chain. What it understands beyond this (links, devices, sparse files) is refused here anyhow. And of many
small files it takes longer for the headers than anybody does for the content.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final, Literal

from antwort.sandbox.errors import BadPath, TooLarge

LARGEST_EXTENSION: Final = 64 << 10
"""Of one header that says more of the next member; paths are shorter, and little else is of use."""

END: Final = bytes(1024)
"""What comes behind the last member."""

_BLOCK: Final = 512
_CHUNK: Final = 1 << 20
_FILES: Final = (b"0", b"\0", b"7")
_DIRECTORY: Final = b"5"
_PAX: Final = (b"x", b"X", b"g")
_LONG_NAME: Final = b"L"
_LONG_LINK: Final = b"K"
_LONGEST_PLAIN_NAME: Final = 100
_MOST_IN_OCTAL: Final = 8**11

Kind = Literal["file", "directory", "other"]


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the archive. Its `size` bytes are to be read with `content` before the next is asked for."""

    name: str
    kind: Kind
    size: int
    executable: bool


def members(file: IO[bytes]) -> Iterator[Member]:
    """Every member, up to the mark of the end or, as some writers leave that out, the end itself."""
    extension: dict[str, bytes] = {}
    count = 0
    while (block := file.read(_BLOCK)).strip(b"\0") or (not count and not block):
        _check(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in (*_PAX, _LONG_NAME, _LONG_LINK):
            extension |= _extension(kind, b"".join(content(file, _bounded(size))))
            continue
        member = _member(block, kind, size, extension)
        extension = {}
        count += 1
        yield member


def content(file: IO[bytes], size: int) -> Iterator[bytes]:
    """What follows a header, in pieces, with the padding behind it read as well."""
    odd = -size % _BLOCK
    while size:
        piece = file.read(min(size, _CHUNK))
        if not piece:
            raise _broken("it ends too early")
        size -= len(piece)
        yield piece
    if len(file.read(odd)) < odd:
        raise _broken("it ends too early")


def header(name: str, kind: Literal["file", "directory"], size: int, modified: float) -> bytes:
    """What comes before the content of a member, which `padding` follows. What has no plain form is left to tarfile."""
    is_directory, time = kind == "directory", int(modified)
    full, mode = (f"{name}/", 0o755) if is_directory else (name, 0o644)
    if not full.isascii() or len(full) > _LONGEST_PLAIN_NAME or time < 0 or max(size, time) >= _MOST_IN_OCTAL:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, time, mode
        info.type = tarfile.DIRTYPE if is_directory else tarfile.REGTYPE
        return info.tobuf(tarfile.PAX_FORMAT)
    before = full.encode().ljust(100, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, size, time)
    behind = (_DIRECTORY if is_directory else b"0") + bytes(100) + b"ustar\x0000" + bytes(247)
    return before + b"%06o\0 " % (sum(before) + sum(behind) + 8 * ord(" ")) + behind


def padding(size: int) -> bytes:
    """What fills up the last block of a content."""
    return bytes(-size % _BLOCK)


def _member(block: bytes, kind: bytes, size: int, extension: dict[str, bytes]) -> Member:
    prefix = block[345:500] if block[257:263] == b"ustar\0" else b""
    own = b"/".join(part for part in (_text(prefix), _text(block[:100])) if part)
    name = extension.get("path", own).decode(errors="surrogateescape")
    if "size" in extension:
        size = _decimal(extension["size"])
    if kind == _DIRECTORY or (kind in _FILES and name.endswith("/")):
        return Member(name, "directory", 0, executable=False)
    executable = bool(_number(block[100:108]) & 0o100)
    return Member(name, "file" if kind in _FILES else "other", size, executable)


def _extension(kind: bytes, data: bytes) -> dict[str, bytes]:
    """What it says of the next member that matters here."""
    if kind == _LONG_NAME:
        return {"path": _text(data)}
    if kind == _LONG_LINK:
        return {}
    found = dict(_records(data))
    if any(key.startswith("GNU.sparse") for key in found):
        message = "a sparse file is not taken; pack it as a plain one"
        raise BadPath(message)
    said = {key: value for key, value in found.items() if key in {"path", "size"}}
    if said and kind == b"g":
        message = "one path or size for all members is not taken"
        raise BadPath(message)
    return said


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """`length key=value`, one after the other, each as long as it says."""
    start = 0
    while start < len(data):
        digits, space, _ = data[start : start + 8].partition(b" ")
        end = start + _decimal(digits)
        record = data[start + len(digits) + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if not space or not equals or record[-1:] != b"\n" or end > len(data):
            raise _broken("a record of an extension is not as long as it says")
        yield key.decode(errors="replace"), value
        start = end


def _check(block: bytes) -> None:
    if len(block) < _BLOCK:
        raise _broken("it ends too early")
    if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _number(block[148:156]):
        raise _broken("the sum of a header is wrong")


def _number(field: bytes) -> int:
    """Octal digits, or for what is too large for them the number itself after a byte that says so."""
    if field[0] == 0x80:  # noqa: PLR2004 - the mark
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise _broken("a number is none")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:  # noqa: PLR2004 - more than any file has
        raise _broken("a number is none")
    return int(digits)


def _bounded(size: int) -> int:
    if size > LARGEST_EXTENSION:
        message = f"a header of the archive has {size} bytes, more than the {LARGEST_EXTENSION} allowed"
        raise TooLarge(message)
    return size


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _broken(why: str) -> BadPath:
    return BadPath(f"this is not a whole tar archive: {why}")
