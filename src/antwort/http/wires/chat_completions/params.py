"""Parameter names in errors: those of chat completions in place of those of the Responses API. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from antwort.api.errors import ApiError

Kind: TypeAlias = Literal["message", "call", "custom_call", "output", "function", "custom", "same"]

_PATH_RE = re.compile(r"(?P<list>input|tools)\[(?P<index>\d{1,6})\](?P<rest>(?:\.[\w:]+|\[\d+\])*)")
_PART_RE = re.compile(r"\.(?:content|output)(\[\d+\])(?:\.(\w+))?$")
_PARTS_OF_FIELDS = {"image_url": "image_url.url", "file_data": "file.file_data", "file_id": "file.file_id"}
_INNER = {"call": "function", "custom_call": "custom", "function": "function", "custom": "custom"}
_RENAMED = {
    "input": "messages",
    "max_output_tokens": "max_completion_tokens",
    "text.format.schema": "response_format.json_schema.schema",
    "reasoning.effort": "reasoning_effort",
    "text.verbosity": "verbosity",
}


class Place(NamedTuple):
    """Where the client gave an item or a tool, and the form that it has there."""

    path: str
    kind: Kind = "same"

    def field(self, rest: str) -> str:
        """The path of a field of it."""
        match self.kind:
            case "message" | "output":
                if rest == ".call_id":
                    return f"{self.path}.tool_call_id"
                if (part := _PART_RE.fullmatch(rest)) is not None:
                    inner = _PARTS_OF_FIELDS.get(part[2] or "", part[2])
                    return f"{self.path}.content{part[1]}" + (f".{inner}" if inner else "")
                return self.path + re.sub(r"^\.output\b", ".content", rest)
            case "same":
                return self.path + rest
            case _:
                if rest == ".call_id":
                    return f"{self.path}.id"
                return self.path + (rest if rest in ("", ".type") else f".{_INNER[self.kind]}{rest}")


class ParamNames(NamedTuple):
    """The places of the items and tools of one request, by their indexes."""

    items: Sequence[Place] = ()
    tools: Sequence[Place] = ()

    def translate(self, error: ApiError) -> ApiError:
        """The error in the names of the client's request, in its `param` and in its message."""
        old = error.param
        if old is None:
            return error
        new = self.path(old)
        message = _PATH_RE.sub(self._path, error.message)
        if old in _RENAMED:
            message = message.replace(f"'{old}'", f"'{new}'")
        return ApiError(
            error.status,
            message,
            kind=error.kind,
            code=error.code,
            param=new,
            retry_after=error.retry_after,
            should_retry=error.should_retry,
        )

    def path(self, param: str) -> str:
        """The client's name of a parameter."""
        return _RENAMED.get(param) or _PATH_RE.sub(self._path, param)

    def _path(self, found: re.Match[str]) -> str:
        places = self.items if found["list"] == "input" else self.tools
        at = int(found["index"])
        return places[at].field(found["rest"]) if at < len(places) else found[0]
