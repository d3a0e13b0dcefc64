"""Content decoding of HTTP bodies, with a limit on the decompressed size. Pure."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

ACCEPTED: Final = "gzip, deflate"
"""The value of `accept-encoding`."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8


class BodyTooLarge(ValueError):
    """The decompressed body exceeds its limit."""


class UndecodableBody(ValueError):
    """The body is not in the encoding that its header names, or that encoding is not supported."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class BodyDecoder:
    """Decodes a body chunk by chunk. Never holds more than `limit` bytes and one chunk."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UndecodableBody(f"the content encoding {self._encoding[:40]!r} is not supported")
        self._limit = limit
        self._received = 0
        self._body = bytearray()
        self._decompressor: _Decompressor | None = None

    @property
    def is_compressed(self) -> bool:
        return self._encoding not in ("", "identity")

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk of the encoded body, which the same limit applies to."""
        self._received += len(chunk)
        if self._received > self._limit:
            raise self._too_large()
        if not self.is_compressed:
            self._append(chunk)
            return
        if self._decompressor is None and chunk:
            self._decompressor = zlib.decompressobj(self._window_bits(chunk[0]))
        decompressor = self._decompressor
        try:
            while chunk and decompressor is not None and not decompressor.eof:
                self._append(decompressor.decompress(chunk, self._limit + 1 - len(self._body)))
                chunk = decompressor.unconsumed_tail
        except zlib.error as error:
            raise UndecodableBody(f"the body is not valid {self._encoding}") from error

    def finish(self) -> bytes:
        """The decoded body."""
        if self._decompressor is not None and not self._decompressor.eof:
            raise UndecodableBody("the compressed body is incomplete")
        return bytes(self._body)

    def _append(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit:
            raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body exceeds {self._limit} bytes")

    def _window_bits(self, first: int) -> int:
        """The format of `deflate`: most servers send zlib, some the raw form."""
        if self._encoding != "deflate":
            return _GZIP
        return zlib.MAX_WBITS if first & 0x0F == _ZLIB_METHOD else -zlib.MAX_WBITS
