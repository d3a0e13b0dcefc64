"""JSON request bodies of the sandbox server: read with a limit, and validated field by field."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from starlette.requests import Request

from antwort.net import bodies
from antwort.sandbox.errors import Refused, TooLarge

MAX_CODE_BYTES: Final = 5 << 20
"""As JSON it may be six times as long, and must still fit into one frame to the container."""
MAX_COMMAND_BYTES: Final = 100 << 10
"""Less than the 128 KiB that Linux allows for one argument of a program."""

_MAX_DRAINED_BYTES: Final = 256 << 20
_STALL_SECONDS: Final = 30.0
_MAX_TENANT_LENGTH: Final = 200


async def read_json(request: Request, limit: int) -> JsonFields:
    """The body as a JSON object."""
    return JsonFields(b"".join([chunk async for chunk in stream_body(request, limit, "the body")]))


def stream_body(request: Request, limit: int, what: str) -> AsyncIterator[bytes]:
    """The body in chunks; see `antwort.net.bodies`."""
    return bodies.stream_body(request, limit, stall_timeout=_STALL_SECONDS, drain=_MAX_DRAINED_BYTES, what=what)


class JsonFields:
    """A JSON object whose fields are read one by one, each with its type; `Refused` for an invalid one."""

    def __init__(self, data: bytes) -> None:
        try:
            value: Any = json.loads(data or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise Refused("the body must be a JSON object")
        self._values: dict[str, Any] = value

    def string(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise Refused(f"{name} must be a string")
        return value

    def code(self) -> str:
        code = self.string("code", "")
        if not code.strip():
            raise Refused("code must be a non-empty string")
        try:
            size = len(code.encode())
        except UnicodeEncodeError as error:
            raise Refused(f"code is not valid text: {error}") from error
        if size > MAX_CODE_BYTES:
            raise TooLarge(f"code has {size} bytes, more than the limit of {MAX_CODE_BYTES}; send data as a file")
        return code

    def command(self) -> str:
        command = self.string("command", "")
        if not command.strip():
            raise Refused("command must be a non-empty string")
        if "\0" in command:
            raise Refused("command must not have NUL characters")
        try:
            size = len(command.encode())
        except UnicodeEncodeError as error:
            raise Refused(f"command is not valid text: {error}") from error
        if size > MAX_COMMAND_BYTES:
            limit = f"the limit of {MAX_COMMAND_BYTES}; write long files in several parts"
            raise TooLarge(f"command has {size} bytes, more than {limit}")
        return command

    def tenant(self) -> str:
        """The tenant of the code. Requests without one are of the same tenant, and share a zygote."""
        name = self.string("tenant", "")
        if len(name) > _MAX_TENANT_LENGTH:
            raise Refused(f"tenant must be at most {_MAX_TENANT_LENGTH} characters")
        return name

    def integer(self, name: str, default: int, maximum: int) -> int:
        """A positive integer, capped at `maximum`; the default if it is absent, null or not positive."""
        value = self._values.get(name)
        if value is None:
            return min(default, maximum)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(f"{name} must be an integer")
        return min(value if value > 0 else default, maximum)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise Refused(f"{name} must be true or false")
        return value

    def strings(self, name: str) -> list[str]:
        values: Any = self._values.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in cast("list[Any]", values)):
            raise Refused(f"{name} must be a list of strings")
        return cast("list[str]", values)

    def files(self) -> dict[str, bytes]:
        """The field `files`: names and their contents, which are base64 in the JSON."""
        values: Any = self._values.get("files") or {}
        if not isinstance(values, dict):
            raise Refused("files must be an object of name to base64")
        return {name: _decode_base64(name, value) for name, value in cast("dict[str, Any]", values).items()}


def _decode_base64(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise Refused(f"file {name!r} must be a base64 string")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"file {name!r} is not base64: {error}") from error
