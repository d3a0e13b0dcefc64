"""Bounded request bodies: size limit, announced length, stall time-out, minimum rate, and draining of the excess."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from antwort.net.errors import BodyTimeout, SizeLimitExceeded

MIN_BYTES_PER_SECOND: Final = 1024
"""Average rate that a body must have, once its time-out has passed."""

_MAX_LENGTH_DIGITS: Final = 20


async def stream_body(
    request: Request, limit: int | None, *, stall_timeout: float, drain: int = 0, what: str = "the request body"
) -> AsyncGenerator[bytes, None]:
    """The body in chunks, at most `limit` bytes; `SizeLimitExceeded`, `BodyTimeout` or `ClientDisconnect`.

    Up to `drain` bytes beyond the limit are read and discarded before `SizeLimitExceeded` is raised: a client that is
    still sending would not see the response otherwise. A body that announces more than that is rejected at once.
    """
    if limit is not None and _announced_length(request) > limit + drain:
        raise _too_large(limit, what)
    size, finished = 0, False
    deadline = time.monotonic() + stall_timeout
    while not finished:
        try:
            async with asyncio.timeout(min(stall_timeout, deadline - time.monotonic())):
                message = await request.receive()
        except TimeoutError as error:
            raise BodyTimeout(f"{what} did not arrive in time: stalled, or slower than 1 kB/s") from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        finished = not message.get("more_body", False)
        size += len(chunk)
        deadline += len(chunk) / MIN_BYTES_PER_SECOND
        if limit is None or size <= limit:
            if chunk:
                yield chunk
        elif size > limit + drain:
            break
    if limit is not None and size > limit:
        raise _too_large(limit, what)


def _announced_length(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length[:_MAX_LENGTH_DIGITS]) if length.isdecimal() else 0


def _too_large(limit: int, what: str) -> SizeLimitExceeded:
    return SizeLimitExceeded(f"{what} exceeds the limit of {limit} bytes", limit)
