"""Request bodies: read with a limit, checked field by field."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from starlette.requests import Request

from antwort.sandbox.errors import Refused, TooLarge

LARGEST_CODE: Final = 5 << 20
"""Written as JSON it may be six times as long, and must still be one frame for the container."""

_MOST_THROWN_AWAY: Final = 256 << 20
_STALLED_SECONDS: Final = 30.0
_LONGEST_TENANT: Final = 200


async def read(request: Request, limit: int) -> bytes:
    """The whole body, or `TooLarge` before more than the limit is kept."""
    parts: list[bytes] = []
    async for part in pieces(request, limit, "the body"):
        parts.append(part)  # noqa: PERF401 - reads as what it is
    return b"".join(parts)


async def pieces(request: Request, limit: int, what: str) -> AsyncIterator[bytes]:
    """The body piece by piece, or `TooLarge` at the piece that goes over the limit."""
    size = 0
    async for part in _flowing(request.stream(), what):
        size += len(part)
        if size <= limit:
            yield part
        elif size > limit + _MOST_THROWN_AWAY:
            break
        # Past the limit the rest is read and thrown away: a client still sending would not see the answer otherwise.
    if size > limit:
        message = f"{what} is over the limit of {limit} bytes"
        raise TooLarge(message)


async def _flowing(stream: AsyncIterator[bytes], what: str) -> AsyncIterator[bytes]:
    """The same, as long as something comes; what a client keeps open without a word takes a place from others."""
    while True:
        try:
            yield await asyncio.wait_for(anext(stream), _STALLED_SECONDS)
        except StopAsyncIteration:
            return
        except TimeoutError:
            message = f"{what} stopped coming: nothing for {_STALLED_SECONDS:.0f} s"
            raise Refused(message) from None


class Fields:
    """A JSON object whose fields are taken one by one, each with its type."""

    def __init__(self, data: bytes) -> None:
        try:
            value: Any = json.loads(data or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            message = "the body must be a JSON object"
            raise Refused(message)
        self._values: dict[str, Any] = value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise Refused(f"{name} must be a string")
        return value

    def code(self) -> str:
        code = self.text("code", "")
        if not code.strip():
            message = "code must be a string that is not empty"
            raise Refused(message)
        try:
            size = len(code.encode())
        except UnicodeEncodeError as error:
            raise Refused(f"code is not valid text: {error}") from error
        if size > LARGEST_CODE:
            message = f"code has {size} bytes, more than the {LARGEST_CODE} allowed; send what is data as a file"
            raise TooLarge(message)
        return code

    def tenant(self) -> str:
        """Whose code it is; those who do not say are one tenant, and share a zygote."""
        name = self.text("tenant", "")
        if len(name) > _LONGEST_TENANT:
            message = f"tenant must be at most {_LONGEST_TENANT} characters"
            raise Refused(message)
        return name

    def number(self, name: str, default: int, most: int) -> int:
        """A positive whole number; absent, null or not positive means the default."""
        value = self._values.get(name)
        if value is None:
            return min(default, most)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(f"{name} must be a whole number")
        return min(value if value > 0 else default, most)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise Refused(f"{name} must be true or false")
        return value

    def texts(self, name: str) -> list[str]:
        values: Any = self._values.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in cast("list[Any]", values)):
            raise Refused(f"{name} must be a list of strings")
        return cast("list[str]", values)

    def files(self) -> dict[str, bytes]:
        """Name to content, from base64."""
        values: Any = self._values.get("files") or {}
        if not isinstance(values, dict):
            message = "files must be an object of name to base64"
            raise Refused(message)
        return {name: _decoded(name, value) for name, value in cast("dict[str, Any]", values).items()}


def _decoded(name: str, value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _no_text(name)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"file {name!r} is not base64: {error}") from error


def _no_text(name: str) -> bytes:
    raise Refused(f"file {name!r} must be a base64 string")
