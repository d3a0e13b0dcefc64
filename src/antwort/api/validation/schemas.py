"""Validation of JSON schemas, of functions and of the output text: what OpenAI refuses. The messages are OpenAI's.

- A `$ref` with a JSON pointer must have a target. Recursive schemas are valid.
- A strict schema is of type `object`. In it every object has `additionalProperties: false`, and `required` with all its
  properties; a `$ref` points to a definition at the top level, or to the whole schema.

Only positions of schemas are searched, so a property may be called `$ref`. Values that are no schemas, such as a list
in place of an object, are left to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from msgspec import Struct

from antwort.api.errors import ApiError, ErrorCode, invalid

Schema: TypeAlias = dict[str, Any]

_STEP: Final = 1_000
_MAX_CONTEXT_STEPS: Final = 16
_MAX_KEY_CHARS: Final = 64
_MAX_REF_CHARS: Final = 4_096
"""A longer `$ref` is not parsed: one that fills a request takes seconds."""
_SCHEMA_KEYWORDS: Final = (
    "items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_MAP_KEYWORDS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LIST_KEYWORDS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NO_DEFINITION: Final = "reference can only point to definitions defined at the top level of the schema."


class GivenSchema(Struct, frozen=True):
    """A schema of a request. `name` is what the error calls it."""

    schema: Schema
    name: str
    param: str
    code: ErrorCode
    strict: bool


class _Node(NamedTuple):
    """A schema inside another, and its keys there. Paths are linked: copies of them would take quadratic space."""

    schema: Schema
    keys: tuple[str, ...] = ()
    parent: _Node | None = None


def _context(node: _Node) -> str:
    """The path of a schema in OpenAI's format, as in `('properties', 'a')`; of a long one the beginning."""
    steps: list[tuple[str, ...]] = [node.keys]
    while node.parent is not None:
        node = node.parent
        steps.append(node.keys)
    return str(tuple(_shortened(key) for keys in reversed(steps[-_MAX_CONTEXT_STEPS:]) for key in keys))


def check_schemas(given: Iterable[GivenSchema]) -> Iterator[None]:
    """`ApiError` 400 for a schema that OpenAI refuses. Yields after every thousand nodes: schemas may be large."""
    work = 0
    for schema in given:
        if schema.strict and (kind := schema.schema.get("type")) != "object":
            got = _shortened(kind if isinstance(kind, str) else str(kind))
            problem = f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{got}"'."""
            raise _refused(schema, problem)
        for node in _nodes(schema.schema):
            problem = _ref_problem(node.schema, schema) or (_strict_problem(node.schema) if schema.strict else None)
            if problem is not None:
                raise _refused(schema, f"In context={_context(node)}, {problem}")
            work += _work(node.schema)
            if work >= _STEP:
                work = 0
                yield


def _nodes(schema: Schema) -> Iterator[_Node]:
    """The schema and all schemas in it, outer ones first."""
    pending: list[Iterator[_Node]] = [iter([_Node(schema)])]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
        else:
            yield node
            pending.append(_inner_schemas(node))


def _refused(given: GivenSchema, problem: str) -> ApiError:
    return invalid(f"Invalid schema for {given.name}: {problem}", param=given.param, code=given.code)


def _work(schema: Schema) -> int:
    """What a node costs. A `$ref` may have many keys, so a long one costs as much as many nodes."""
    ref = schema.get("$ref")
    return 1 + len(ref) // 64 if isinstance(ref, str) else 1


def _inner_schemas(node: _Node) -> Iterator[_Node]:
    for keys, inner in _inner_values(node.schema):
        if isinstance(inner, dict):
            yield _Node(cast("Schema", inner), keys, node)


def _inner_values(schema: Schema) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values at the positions of schemas, with their keys."""
    for keyword in _SCHEMA_KEYWORDS:
        yield (keyword,), schema.get(keyword)
    for keyword in _MAP_KEYWORDS:
        if isinstance(named := schema.get(keyword), dict):
            yield from (((keyword, name), inner) for name, inner in cast("dict[str, object]", named).items())
    for keyword in _LIST_KEYWORDS:
        if isinstance(several := schema.get(keyword), list):
            yield from (((keyword, str(at)), inner) for at, inner in enumerate(cast("list[object]", several)))


def _ref_problem(schema: Schema, given: GivenSchema) -> str | None:
    if "$ref" not in schema:
        return None
    ref = schema["$ref"]
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return _NO_DEFINITION if given.strict else None
    if len(ref) > _MAX_REF_CHARS or not _has_target(given.schema, keys := _keys(ref)):
        return f"reference to component '{_shortened(ref)}' which was not found in the schema."
    match keys:
        case [] | ["$defs" | "definitions", _]:
            return None
        case _:
            return _NO_DEFINITION if given.strict else None


def _keys(ref: str) -> list[str]:
    return [unquote(key).replace("~1", "/").replace("~0", "~") for key in ref.split("/")[1:]]


def _has_target(root: Schema, keys: list[str]) -> bool:
    value: object = root
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = cast("dict[str, object]", value)[key]
        elif isinstance(value, list) and key.isdecimal() and len(key) < 7 and int(key) < len(cast("Any", value)):  # noqa: PLR2004 - more than a list has entries
            value = cast("list[object]", value)[int(key)]
        else:
            return False
    return isinstance(value, dict | bool)


def _strict_problem(schema: Schema) -> str | None:
    properties = schema.get("properties")
    kind = schema.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind) or isinstance(properties, dict)
    if not is_object:
        return None
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    names = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    given = cast("list[object]", schema["required"]) if isinstance(schema.get("required"), list) else []
    required = {name for name in given if isinstance(name, str)}
    rule = "'required' is required to be supplied and to be an array including every key in properties."
    if (missing := next((name for name in names if name not in required), None)) is not None:
        return f"{rule} Missing '{_shortened(missing)}'."
    if (extra := next((name for name in given if not (isinstance(name, str) and name in names)), None)) is not None:
        return f"{rule} Extra required key '{_shortened(str(extra))}' supplied."
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_KEY_CHARS else f"{text[:_MAX_KEY_CHARS]}…"
