"""Converts a plain JSON schema to the strict subset that model providers enforce. Pure.

In the strict subset objects are closed and all their properties required, `$ref` has no siblings, an enum has a type,
and there are no defaults, tuples or arbitrary keys. Other keywords become text in the description, or are an error.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

from weakincentives.dbc import pure
from weakincentives.errors import SchemaError

Schema: TypeAlias = dict[str, Any]

_SUPPORTED_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_UNSUPPORTED_KEYWORDS = frozenset({"default", "discriminator", "title", "uniqueItems", "contentEncoding", "examples"})
_TYPE_KEYWORDS = frozenset({"type", "anyOf", "$ref", "enum", "const"})
_TYPE_NAMES: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


@pure  # schemas are cached by type
def to_strict(schema: Schema) -> Schema:
    """The strict form of `schema`; `SchemaError` names the path of what cannot be expressed."""
    if schema.get("type") != "object":
        raise SchemaError("the root of a strict schema must be an object: use a dataclass")
    definitions: dict[str, Schema] = schema.get("$defs", {})
    root = _to_strict_node({key: value for key, value in schema.items() if key != "$defs"}, "$")
    if definitions:
        root["$defs"] = {name: _to_strict_node(node, name) for name, node in definitions.items()}
    return root


def _to_strict_node(node: Schema, path: str) -> Schema:
    _check_supported(node, path)
    if "$ref" in node:
        reference = {"$ref": node["$ref"]}
        return _append_description({"anyOf": [reference]}, node["description"]) if "description" in node else reference
    result: Schema = {key: value for key, value in node.items() if key not in _UNSUPPORTED_KEYWORDS}
    if node.get("contentEncoding"):
        result = _append_description(result, f"Encoded as {node['contentEncoding']}.")
    if result.get("format") not in _SUPPORTED_FORMATS:
        result.pop("format", None)
    if "type" not in result and (values := result.get("enum", [result["const"]] if "const" in result else None)):
        result["type"] = _type_of(cast("list[object]", values))
    if "anyOf" in result:
        result["anyOf"] = [_to_strict_node(member, path) for member in result["anyOf"]]
    if isinstance(result.get("items"), dict):
        result["items"] = _to_strict_node(result["items"], f"{path}[]")
    if result.get("type") == "object":
        result |= _close_object(node, path)
    return result


def _check_supported(node: Schema, path: str) -> None:
    if not node.keys() & _TYPE_KEYWORDS:
        raise SchemaError(f"{path} accepts any value; a strict schema needs a type")
    if isinstance(node.get("additionalProperties"), dict) or "patternProperties" in node:
        raise SchemaError(f"{path} is a mapping with arbitrary keys; use a dataclass, or a list of pairs")
    if node.get("type") == "object" and "properties" not in node:
        raise SchemaError(f"{path} is a mapping with arbitrary keys; use a dataclass, or a list of pairs")
    if "prefixItems" in node:
        raise SchemaError(f"{path} is a tuple of fixed length; use a dataclass, or a list of one type")


def _close_object(node: Schema, path: str) -> Schema:
    required = set(cast("list[str]", node.get("required", [])))
    properties: dict[str, Schema] = {}
    for key, plain in cast("dict[str, Schema]", node["properties"]).items():
        inner = _to_strict_node(plain, f"{path}.{key}")
        properties[key] = inner if key in required else _make_nullable(inner, plain)
    return {"properties": properties, "required": list(properties), "additionalProperties": False}


def _make_nullable(inner: Schema, plain: Schema) -> Schema:
    """Make a property nullable: null stands for the default, which the description names."""
    default = json.dumps(plain["default"]) if plain.get("default") is not None else None
    if _is_nullable(inner):  # null is a value of its own, not the default
        return _append_description(inner, f"The default is {default}.") if default else inner
    text = inner.get("description", "")
    members = inner.get("anyOf") or [{key: value for key, value in inner.items() if key != "description"}]
    members = [*members, {"type": "null"}]
    result: Schema = {"description": text, "anyOf": members} if text else {"anyOf": members}
    return _append_description(result, f"Null means {default}.") if default else result


def _is_nullable(node: Schema) -> bool:
    return "null" in node.get("type", ()) or any(_is_nullable(member) for member in node.get("anyOf", ()))


def _append_description(node: Schema, text: str) -> Schema:
    description = str(node.get("description", "")).rstrip()
    if description and description[-1].isalnum():
        description += "."
    return {**node, "description": f"{description} {text}".lstrip()}


def _type_of(values: list[object]) -> str | list[str]:
    names = list(dict.fromkeys(_TYPE_NAMES[type(value)] for value in values))
    return names[0] if len(names) == 1 else names
