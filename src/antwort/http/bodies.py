"""JSON in and out. A body is read as it comes and never further than its limit, in bytes, in depth and in time."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from antwort.api.errors import ApiError, invalid
from antwort.api.requests import decode
from antwort.http.services import services_of

T = TypeVar("T")

DEEPEST = 128
"""Levels of a JSON body. Everything that handles it afterwards may recurse so far."""

MOST = 100_000
"""Objects and arrays in a JSON body: each is made, and costs many times the bytes that it came as."""

AT_ONCE = 64 * 1024
"""Bytes of a body that are read where they came. To read more takes long enough that others would notice."""

SLOWEST = 1024
"""Bytes per second that a body has to come with, once its time is up."""

_PROGRESS = "antwort.body"

# Strings are skipped whole; possessive, so that no input makes it go back.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


async def read_json(request: Request, into: type[T]) -> T:
    """The body, as a struct."""
    body = await read_body(request)
    if len(body) <= AT_ONCE:
        return _read(body, into)
    return await asyncio.to_thread(_read, body, into)


def _read(body: bytes, into: type[T]) -> T:
    check_shape(body)
    return decode(body, into)


async def read_body(request: Request) -> bytes:
    """The body, if it is not too large."""
    limit = services_of(request).config.server.max_body
    check_announced(request, limit)
    body = bytearray()
    while True:
        message = await receive(request)
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


class _Progress:
    """How a body is coming along. It has some time, and more for every part that has come."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._patience = patience

    def came(self, count: int) -> None:
        self._until += count / SLOWEST

    @property
    def left(self) -> float:
        return min(self._patience, self._until - time.monotonic())


async def receive(request: Request) -> Message:
    """The next part of a body. A sender who falls silent or only drips is not waited for for ever."""
    progress: _Progress | None = request.scope.get(_PROGRESS)
    if progress is None:
        progress = request.scope[_PROGRESS] = _Progress(services_of(request).config.server.body_timeout)
    try:
        async with asyncio.timeout(progress.left):
            message = await request.receive()
    except TimeoutError as error:
        raise ApiError(408, "The body of your request did not arrive in time.", code="timeout") from error
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    progress.came(len(message.get("body", b"")))
    return message


def check_announced(request: Request, limit: int) -> None:
    """Refuse a body that says itself that it is too large."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ApiError:
    """413, with the limit."""
    return ApiError(413, f"The request is too large: more than {limit} bytes.", code="request_too_large")


def check_shape(body: bytes) -> None:
    """Refuse a body with too many levels, or too many objects and arrays."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    depth = opened = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            opened += 1
            if depth > DEEPEST:
                raise invalid(f"The JSON body has more than {DEEPEST} levels.", code="invalid_json")
            if opened > MOST:
                raise invalid(f"The JSON body has more than {MOST} objects and arrays.", code="invalid_json")
        elif first in b"]}":
            depth -= 1


def json_answer(value: object, status: int = 200) -> Response:
    """A struct, or plain data, as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
