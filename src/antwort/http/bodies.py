"""JSON request bodies and responses: size, time, nesting depth and number of objects are bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antwort.api.errors import ApiError, invalid
from antwort.api.requests import decode
from antwort.http.services import services_of
from antwort.net import bodies
from antwort.net.errors import BodyTimeout, SizeLimitExceeded

T = TypeVar("T")

MAX_DEPTH = 128
"""Nesting levels of a JSON body. Code that handles the decoded value may recurse this far."""

MAX_OBJECTS = 100_000
"""Objects and arrays in a JSON body: a decoded one takes many times the memory of its bytes."""

MAX_INLINE_BYTES = 64 * 1024
"""Larger bodies are decoded in a thread, because that would block the event loop noticeably."""

# Strings are skipped whole; possessive quantifiers, so that no input causes backtracking.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


async def read_json(request: Request, into: type[T]) -> T:
    """The body decoded into a struct."""
    tool_types = services_of(request).engine.tool_types
    return await read_body(request, lambda body: decode(body, into, tool_types=tool_types))


async def read_body(request: Request, read: Callable[[bytes], T]) -> T:
    """What `read` makes of a JSON body whose size and nesting are within the limits: in a thread, if it is large."""
    async with aclosing(stream_body(request, services_of(request).config.server.max_body)) as chunks:
        body = b"".join([chunk async for chunk in chunks])
    if len(body) <= MAX_INLINE_BYTES:
        return _read(body, read)
    return await asyncio.to_thread(_read, body, read)


def _read(body: bytes, read: Callable[[bytes], T]) -> T:
    check_nesting(body)
    return read(body)


async def stream_body(request: Request, limit: int | None = None) -> AsyncGenerator[bytes, None]:
    """The body in chunks; `ApiError` 413 above `limit` bytes and 408 for one that stalls or is too slow."""
    try:
        timeout = services_of(request).config.server.body_timeout
        async with aclosing(bodies.stream_body(request, limit, stall_timeout=timeout)) as chunks:
            async for chunk in chunks:
                yield chunk
    except SizeLimitExceeded as error:
        raise too_large(error.limit) from error
    except BodyTimeout as error:
        raise ApiError(408, "The body of your request did not arrive in time.", code="timeout") from error


def too_large(limit: int) -> ApiError:
    """413 that states the limit in bytes."""
    return ApiError(413, f"The request is too large: more than {limit} bytes.", code="request_too_large")


def check_nesting(body: bytes) -> None:
    """Reject a JSON body with too many levels, or too many objects and arrays."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = count = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            count += 1
            if depth > MAX_DEPTH:
                raise invalid(f"The JSON body has more than {MAX_DEPTH} levels.", code="invalid_json")
            if count > MAX_OBJECTS:
                raise invalid(f"The JSON body has more than {MAX_OBJECTS} objects and arrays.", code="invalid_json")
        elif first in b"]}":
            depth -= 1


def json_answer(value: object, status: int = 200) -> Response:
    """A struct or plain data as a JSON response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
