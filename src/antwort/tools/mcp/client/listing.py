"""Checks of a list of tools: what is not valid, or too large, does not reach a model. Pure.

A backend refuses a whole request for one invalid schema. So a schema is checked against the meta-schema of its dialect
here, and a tool that a model could not be offered is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, cast

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from antwort.tools.mcp.client.content import clean
from antwort.tools.mcp.client.targets import ListedTool, ToolListing

MAX_PAGES: Final = 64
MAX_TOOLS: Final = 1_000
MAX_DESCRIPTION_CHARS: Final = 4_096
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_ALL_SCHEMAS_BYTES: Final = 1024 * 1024
MAX_SCHEMA_DEPTH: Final = 32

_NAME_RE: Final = re.compile(r"[\x21-\x7e]{1,128}")
_MAX_NAMED: Final = 5
_MAX_SHOWN: Final = 64


class _Annotations(Protocol):
    @property
    def read_only_hint(self) -> bool | None: ...


class RawTool(Protocol):
    """A tool as the server lists it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...
    @property
    def annotations(self) -> _Annotations | None: ...


def check_tools(tools: Sequence[RawTool]) -> ToolListing:
    """The tools that can be offered to models, and which could not, with the reason."""
    found: dict[str, ListedTool] = {}
    problems: list[str] = []
    size = 0
    for tool in tools[:MAX_TOOLS]:
        schema, encoded, reason = _checked(tool, found)
        if reason is None and size + encoded > MAX_ALL_SCHEMAS_BYTES:
            reason = f"the schemas of all tools exceed {MAX_ALL_SCHEMAS_BYTES} bytes"
        if reason is not None:
            problems.append(f"'{clean(tool.name)[:_MAX_SHOWN]}' ({reason})")
            continue
        size += encoded
        hints, description = tool.annotations, _description(tool.description)
        is_read_only = bool(hints and hints.read_only_hint)
        total = encoded + len((description or "").encode())
        found[tool.name] = ListedTool(tool.name, description, schema, is_read_only, size=total)
    if len(tools) > MAX_TOOLS:
        problems.append(f"{len(tools) - MAX_TOOLS} tools beyond the first {MAX_TOOLS}")
    shown = ", ".join(problems[:_MAX_NAMED]) + (
        f" and {len(problems) - _MAX_NAMED} more" * (len(problems) > _MAX_NAMED)
    )
    return ToolListing(tuple(found.values()), f"Left out: {shown}." if problems else None)


def _checked(tool: RawTool, found: dict[str, ListedTool]) -> tuple[dict[str, Any], int, str | None]:
    """The schema as it is sent to models, its size, and why the tool is left out."""
    try:
        written = msgspec.json.encode(_normalized(tool.input_schema))
        schema: dict[str, Any] = msgspec.json.decode(written)  # a number that JSON lacks is null now
        return schema, len(written), _problem(tool, schema, len(written), found)
    except (ValueError, RecursionError, OverflowError):  # of a huge number, or a pattern that cannot be compiled
        return {}, 0, "its schema is not a valid JSON schema"


def _normalized(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the arguments. Backends need `type` and `properties`, which some servers leave out."""
    missing = {} if "type" in schema else {"type": "object"}
    return schema | missing | ({} if "properties" in schema else {"properties": {}})


def _problem(tool: RawTool, schema: dict[str, Any], size: int, found: dict[str, ListedTool]) -> str | None:
    if not _NAME_RE.fullmatch(tool.name):
        return "the name is not of 1 to 128 printable ASCII characters"
    if tool.name in found:
        return "the name is not unique"
    if size > MAX_SCHEMA_BYTES:
        return f"its schema exceeds {MAX_SCHEMA_BYTES} bytes"
    if schema["type"] != "object":
        return "its schema is not of type object"
    return _schema_problem(schema)


def _schema_problem(schema: dict[str, Any]) -> str | None:
    refs: list[str] = []
    for node, depth in _values(schema):
        if depth > MAX_SCHEMA_DEPTH:
            return f"its schema is nested deeper than {MAX_SCHEMA_DEPTH} levels"
        if isinstance(node, dict) and isinstance(ref := cast("dict[str, object]", node).get("$ref"), str):
            refs.append(ref)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return "its schema is not a valid JSON schema"
    if not all(_has_target(schema, ref) for ref in refs):
        return "its schema has a reference without a target in it"
    return None


def _values(root: object) -> Iterator[tuple[object, int]]:
    pending = [(root, 0)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        if depth > MAX_SCHEMA_DEPTH:
            return
        if isinstance(node, dict):
            pending += [(value, depth + 1) for value in cast("dict[str, object]", node).values()]
        elif isinstance(node, list):
            pending += [(value, depth + 1) for value in cast("list[object]", node)]


def _has_target(schema: object, ref: str) -> bool:
    """Whether a local JSON pointer has a target. Others would be fetched from somewhere, or resolved by their `$id`."""
    if ref != "#" and not ref.startswith("#/"):
        return False
    for key in ref.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, dict) or name not in schema:
            return False
        schema = cast("dict[str, object]", schema)[name]
    return isinstance(schema, dict | bool)


def _description(text: str | None) -> str | None:
    if text is None:
        return None
    text = clean(text)
    return text if len(text) <= MAX_DESCRIPTION_CHARS else f"{text[:MAX_DESCRIPTION_CHARS]}…"
