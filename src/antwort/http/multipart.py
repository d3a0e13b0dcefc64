"""Multipart file uploads, parsed as a stream: small fields are kept, the one file is passed on in chunks.

Fields may precede or follow the file, so `fields` is complete only after `content` has been read to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from antwort.api.errors import ApiError, invalid
from antwort.http.bodies import stream_body, too_large

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_FIELD_BYTES = 64 * 1024
_MAX_PARTS = 32
_MAX_OVERHEAD = 64 * 1024  # boundaries, headers and fields around the file


class Upload:
    """A form with one file. `receive_upload` creates it and reads up to the start of the file."""

    def __init__(self, request: Request, limit: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._limit = limit
        self._size = 0
        self._chunks: deque[bytes] = deque()
        self._parser = _FormParser(self, _boundary(request))
        self._body = stream_body(request, limit + _MAX_OVERHEAD)
        self._is_complete = False

    async def read_to_file(self) -> None:
        """Read until the file starts, or to the end of a form without a file."""
        while self.filename is None and not self._is_complete:
            await self._parse_next()

    async def content(self) -> AsyncIterator[bytes]:
        """The file's bytes. Afterwards `fields` is complete."""
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._is_complete:
                return
            await self._parse_next()

    def add_chunk(self, chunk: bytes) -> None:
        """Called by the parser with the next part of the file."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise too_large(self._limit)
        self._chunks.append(chunk)

    async def _parse_next(self) -> None:
        chunk = await anext(self._body, None)
        if chunk is not None:
            self._parser.write(chunk)
        else:
            self._is_complete = True
            self._parser.check_ended()


class _FormParser:
    """Callbacks of the multipart parser: collects each part's headers and passes its data on."""

    def __init__(self, upload: Upload, boundary: bytes) -> None:
        self._upload = upload
        self._header, self._value, self._disposition = b"", b"", b""
        self._name, self._is_file, self._ended = "", False, False
        self._data = bytearray()
        self._parts = 0
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise _invalid_form() from error

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _invalid_form() from error

    def check_ended(self) -> None:
        if not self._ended:
            raise _invalid_form()

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise invalid(f"The form has more than {_MAX_PARTS} parts.", code="invalid_form")
        self._header, self._value, self._disposition = b"", b"", b""
        self._data.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file" and b"filename" in options
        if self._is_file:
            if self._upload.filename is not None:
                raise invalid("Give exactly one file.", param="file")
            self._upload.filename = options[b"filename"].decode(errors="replace")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._upload.add_chunk(data[start:end])
            return
        self._data += data[start:end]
        if len(self._data) > _MAX_FIELD_BYTES:
            raise invalid(f"The field '{self._name}' is too long.", param=self._name)

    def _part_end(self) -> None:
        if not self._is_file:
            self._upload.fields[self._name] = self._data.decode(errors="replace")

    def _end(self) -> None:
        self._ended = True


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise invalid("Send the file as 'multipart/form-data'.", code="invalid_content_type")
    return options[b"boundary"]


def _invalid_form() -> ApiError:
    return invalid("We could not parse the multipart body of your request.", code="invalid_form")


async def receive_upload(request: Request, limit: int) -> Upload:
    """Parse a form up to the start of its file, which may have at most `limit` bytes."""
    upload = Upload(request, limit)
    await upload.read_to_file()
    return upload
