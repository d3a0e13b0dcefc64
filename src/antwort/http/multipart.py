"""Uploads, read as they come: fields are small and kept, the one file goes through in chunks.

The fields may come before the file or after it, so `fields` is whole only when `content`
has been read to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from antwort.api.errors import ApiError, invalid
from antwort.http.bodies import check_announced, receive, too_large

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_LONGEST_FIELD = 64 * 1024
_MOST_PARTS = 32
_OVERHEAD = 64 * 1024  # boundaries, headers and fields around the file


class Upload:
    """A form with one file. Made by `receive_upload`, which reads as far as the file's beginning."""

    def __init__(self, request: Request, limit: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._request = request
        self._limit = limit
        self._size = 0
        self._chunks: deque[bytes] = deque()
        self._form = _Form(self, _boundary(request))
        self._over = False

    async def begin(self) -> None:
        """Read until the file begins, or to the end where there is none."""
        while self.filename is None and not self._over:
            await self._more()

    async def content(self) -> AsyncIterator[bytes]:
        """The file's bytes. Afterwards all fields are there."""
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._over:
                return
            await self._more()

    def take(self, chunk: bytes) -> None:
        """Some more of the file."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise too_large(self._limit)
        self._chunks.append(chunk)

    async def _more(self) -> None:
        message = await receive(self._request)
        self._form.write(message.get("body", b""))
        if not message.get("more_body", False):
            self._over = True
            self._form.check_ended()


class _Form:
    """The parser's callbacks: what a part is called, and where its data goes."""

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
            raise _broken() from error

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken() from error

    def check_ended(self) -> None:
        if not self._ended:
            raise _broken()

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise invalid(f"The form has more than {_MOST_PARTS} parts.", code="invalid_form")
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
            self._upload.take(data[start:end])
            return
        self._data += data[start:end]
        if len(self._data) > _LONGEST_FIELD:
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


def _broken() -> ApiError:
    return invalid("We could not parse the multipart body of your request.", code="invalid_form")


async def receive_upload(request: Request, limit: int) -> Upload:
    """Begin to read a form with a file of at most so many bytes."""
    check_announced(request, limit + _OVERHEAD)
    upload = Upload(request, limit)
    await upload.begin()
    return upload
