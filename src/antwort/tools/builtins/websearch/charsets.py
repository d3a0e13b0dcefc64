"""Charset detection and decoding of plain text from the web: BOM, then HTTP header, then XML declaration. Pure.

Only charsets of the web are decoded (those of the WHATWG Encoding Standard that Python has). Python's other codecs are
none of text, such as `zlib`, or take quadratic time, such as `punycode`. Text is decoded in parts, so that a thread
that decodes a long one gives way to the event loop.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

PART: Final = 65_536
"""Bytes that are decoded at once."""

_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_XML_RE: Final = re.compile(rb"<\?xml[^>]{1,200}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
_CODECS: Final = frozenset(
    [
        *("utf-8", "utf-16-le", "utf-16-be", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp874"),
        *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
        *(f"cp125{page}" for page in range(9)),
        *("gbk", "gb18030", "big5", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949"),
    ]
)
_WEB_NAMES: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gbk",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "utf-16": "utf-16-le",
    "utf-8-sig": "utf-8",
    "x-sjis": "cp932",
    "x-mac-cyrillic": "mac-cyrillic",
    "windows-874": "cp874",
    "iso-8859-8-i": "iso8859-8",
    "iso-8859-8-e": "iso8859-8",
}
"""What the web means by these names: often a superset of the charset. The last ones Python does not know."""


def decode_text(data: bytes, charset: str, max_chars: int) -> str:
    """The text of a page that is not HTML. Without a known charset it is UTF-8, or else Windows-1252."""
    codec = _codec_of_bom(data) or codec_of(charset) or _codec_of_xml(data)
    if codec is not None:
        return _decode(data, codec, "replace", max_chars)
    try:
        return _decode(data, "utf-8", "strict", max_chars)
    except UnicodeDecodeError:
        return _decode(data, "cp1252", "replace", max_chars)


def codec_of(charset: str) -> str | None:
    """Python's name of a charset; None for an unknown one, and for codecs that are none of the web."""
    name = charset.strip().lower()
    try:
        name = _WEB_NAMES.get(name) or (codecs.lookup(name).name if name else "")
    except (LookupError, ValueError):
        return None
    name = _WEB_NAMES.get(name, name)
    return name if name in _CODECS else None


def _codec_of_bom(data: bytes) -> str | None:
    return next((codec for bom, codec in _BOMS if data.startswith(bom)), None)


def _codec_of_xml(data: bytes) -> str | None:
    found = _XML_RE.match(data)
    return None if found is None else codec_of(found[1].decode("ascii"))


def _decode(data: bytes, codec: str, errors: str, max_chars: int) -> str:
    decoder = codecs.getincrementaldecoder(codec)(errors)
    parts: list[str] = []
    length = 0
    for start in range(0, len(data), PART):
        parts.append(decoder.decode(data[start : start + PART], start + PART >= len(data)))
        length += len(parts[-1])
        if length > max_chars:
            break
    return "".join(parts).removeprefix("\ufeff").strip()[:max_chars]
