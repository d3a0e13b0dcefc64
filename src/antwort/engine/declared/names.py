"""Function names: models know functions by one name, so that tools in a namespace get a name that includes it. Pure.

The tools of an MCP server have the label of the server in their names, because a server chooses their names itself.

The function `get` in the namespace `crm` is offered as `crm__get`. Where that name is taken or too long, it ends with a
digest instead. `ToolNames.for_model` gives the calls of the history the same names; in the items that the client sees
and the server stores, a call has its namespace and its plain name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable
from typing import Final

import msgspec

from antwort.api import items
from antwort.api.items import (
    FunctionCallOutput,
    GivenCustomToolCall,
    GivenFunctionCall,
    GivenToolSearchCall,
    Item,
    ToolSearchOutput,
)
from antwort.api.tools import NamespaceTool, members, tool_name

TOOL_SEARCH: Final = "tool_search"
_MAX_NAME: Final = 64  # longer function names are refused by most chat servers
_DIGEST_CHARS: Final = 8
_SEPARATOR: Final = "__"
_FUNCTION_NAME_RE: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{_MAX_NAME}}}")
_UNUSABLE_RE: Final = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """The names of the functions of one request. `taken` are the names of functions that are in no namespace."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._names: dict[tuple[str, str], str] = {}

    def name(self, namespace: str | None, name: str) -> str:
        """The name of a function for the model; the same for each call with the same arguments."""
        if not namespace:
            return name
        key = (namespace, name)
        if key not in self._names:
            self._names[key] = self._new_name(namespace, name)
            self._taken.add(self._names[key])
        return self._names[key]

    def _new_name(self, namespace: str, name: str) -> str:
        joined = candidate = f"{namespace}{_SEPARATOR}{name}"
        attempt = 0
        while len(candidate) > _MAX_NAME or candidate in self._taken:
            digest = hashlib.sha256(msgspec.json.encode([namespace, name, attempt])).hexdigest()[:_DIGEST_CHARS]
            candidate = f"{joined[: _MAX_NAME - _DIGEST_CHARS - 1]}_{digest}"
            attempt += 1
        return candidate

    def for_model(self, item: Item) -> Item:
        """An item of the history as a model reads it: a call of a function by the name that the model knows.

        A tool search of the client is a function call. One that a server ran stays as it is, and models do not read it.
        """
        match item.known:
            case GivenFunctionCall(namespace=str(namespace), name=name) if namespace:
                return _changed(item, name=self.name(namespace, name))
            case GivenCustomToolCall(namespace=str(namespace), name=name) if namespace:
                return _changed(item, name=self.name(namespace, name))
            case FunctionCallOutput(namespace=str()):
                return _changed(item)
            case GivenToolSearchCall(call_id=str(call_id), arguments=arguments):
                text = msgspec.json.encode(arguments).decode()
                call = {"type": "function_call", "call_id": call_id, "name": TOOL_SEARCH, "arguments": text}
                return items.read(call)
            case ToolSearchOutput(call_id=str(call_id)) as output:
                return items.read({"type": "function_call_output", "call_id": call_id, "output": self._found(output)})
            case _:
                return item

    def _found(self, output: ToolSearchOutput) -> str:
        names = [
            self.name(tool.name if isinstance(tool, NamespaceTool) else None, tool_name(member))
            for tool in output.tools
            for member in members(tool)
        ]
        return f"These tools can be called from now on: {', '.join(names)}." if names else "No tools were found."


def mcp_function_name(label: str, name: str, taken: Container[str] = ()) -> str:
    """The function name of a tool of an MCP server. No two tools have the same, and none has a `taken` one.

    It does not depend on other tools, so that the calls of a history have the names of the functions that are offered.
    """
    plain = f"{label}{_SEPARATOR}{name}"
    ends = label[-1:] + name[:1]  # `a_` and `b` would have the name of `a` and `_b`
    is_unique = _SEPARATOR not in label and _SEPARATOR not in name and "_" not in ends
    if is_unique and _FUNCTION_NAME_RE.fullmatch(plain) and plain not in taken:
        return plain
    readable = _UNUSABLE_RE.sub("_", plain)[: _MAX_NAME - _DIGEST_CHARS - 1]
    attempt = 0
    while True:
        digest = hashlib.sha256(msgspec.json.encode([label, name, attempt])).hexdigest()[:_DIGEST_CHARS]
        if (found := f"{readable}_{digest}") not in taken:
            return found
        attempt += 1


def _changed(item: Item, **fields: str) -> Item:
    """The item without its namespace. The name of a function's output is removed with it: the call has it."""
    kept = {name: value for name, value in item.raw.items() if name not in ("namespace", "name")}
    return items.read({**kept, **fields})
