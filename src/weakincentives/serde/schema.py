"""JSON schemas of dataclasses: plain, and the strict subset that model providers enforce.

Descriptions come from `Annotated[int, "how many"]`, from `msgspec.Meta(description=…)`,
or from `field(metadata={"description": …})`, at every depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect as shapes

from weakincentives.errors import SchemaError
from weakincentives.serde.conform import ObjectType, type_info
from weakincentives.serde.strict import to_strict

Schema: TypeAlias = dict[str, Any]

_ANY_VALUE_MARKER = "x-anything"  # msgspec rejects an empty schema from its hook, so this marks "any value"
_EMPTY: Mapping[Any, Any] = {}
_ITEM_KEYWORDS = {"items", "prefixItems"}
_TRANSPARENT_TYPES = (Union, UnionType, Required, NotRequired)


def schema(as_type: type, *, descriptions: Mapping[str, str] | None = None) -> Schema:
    """The JSON schema of a dataclass. `descriptions` overrides the descriptions of top-level fields."""
    root = _generate(as_type)
    properties: dict[str, Schema] = root.get("properties", {})
    for name, text in (descriptions or {}).items():
        if name not in properties:
            raise SchemaError(f"{as_type.__name__} has no field {name!r} to describe")
        properties = {**properties, name: {**properties[name], "description": text}}
    return _without_markers({**root, "properties": properties} if descriptions else root)


def strict_schema(as_type: type, *, descriptions: Mapping[str, str] | None = None) -> Schema:
    """The strict JSON schema: closed objects, all properties required, optional properties nullable.

    Raises `SchemaError` for types that the strict subset cannot express, such as a mapping with arbitrary keys.
    """
    return to_strict(schema(as_type, descriptions=descriptions))


@lru_cache(maxsize=1024)
def _generate(as_type: type) -> Schema:
    """The schema with `$defs` and an inlined root. The result is cached: callers must not change it."""
    try:
        objects = list(_objects_in(type_info(as_type), set()))
        roots, components = msgspec.json.schema_components(
            [as_type, *(shape.cls for shape in objects)], ref_template="#/$defs/{name}", schema_hook=_schema_hook
        )
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(
            f"{getattr(as_type, '__name__', as_type)!r} has no JSON schema: {error}. Use JSON-like types, "
            f"and define dataclasses at module level where their annotations are strings"
        ) from error
    for reference, shape in zip(roots[1:], objects, strict=True):
        _complete_fields(components[reference["$ref"].rpartition("/")[2]], shape)
    for component in components.values():
        component.pop("title", None)  # the class name: may change, and costs tokens
    root = roots[0]
    if "$ref" in root:
        name = root["$ref"].rpartition("/")[2]
        root = dict(components[name])
        if not _has_reference(components, f"#/$defs/{name}"):
            del components[name]
    return {**root, "$defs": components} if components else root


def _schema_hook(custom: type) -> Schema:
    if custom is object:
        return {_ANY_VALUE_MARKER: True}
    raise NotImplementedError


def _objects_in(shape: object, seen: set[int]) -> Iterator[ObjectType]:
    """All object types that are reachable from a msgspec type."""
    if id(shape) in seen:
        return
    seen.add(id(shape))
    if isinstance(shape, ObjectType) and not getattr(shape, "array_like", False):
        yield shape
    for member in _members(shape):
        yield from _objects_in(member, seen)


def _members(shape: object) -> tuple[object, ...]:
    if isinstance(shape, tuple):
        return cast("tuple[object, ...]", shape)
    if isinstance(shape, (shapes.Type, shapes.Field)):
        return tuple(getattr(shape, name) for name in shape.__struct_fields__)
    return ()


def _complete_fields(component: Schema, shape: ObjectType) -> None:
    """Add what msgspec omits: descriptions from `Annotated` and metadata, and time formats."""
    origin = cast("type", get_origin(shape.cls) or shape.cls)
    hints = get_type_hints(origin, include_extras=True)
    declared = {one.name: one.metadata for one in fields(origin)} if is_dataclass(origin) else {}
    properties: dict[str, Schema] = component["properties"]
    for field in shape.fields:
        node = properties[field.encode_name]
        _add_time_format(node, field.type)
        text = declared.get(field.name, _EMPTY).get("description") or _annotated_description(hints.get(field.name))
        if text and "description" not in node:
            properties[field.encode_name] = {"description": text, **node}


def _add_time_format(node: Schema, shape: object) -> None:
    """Add the format of times without a required zone, which msgspec omits."""
    match shape:
        case shapes.DateTimeType(tz=None):
            node["format"] = "date-time"
        case shapes.TimeType(tz=None):
            node["format"] = "time"
        case shapes.Metadata(type=inner):
            _add_time_format(node, inner)
        case shapes.CollectionType(item_type=inner) if "items" in node:
            _add_time_format(node["items"], inner)
        case shapes.DictType(value_type=inner) if "additionalProperties" in node:
            _add_time_format(node["additionalProperties"], inner)
        case shapes.UnionType(types=members):
            # msgspec allows only one member of a union that is encoded as a string, so the option is unambiguous.
            for option in (one for one in node.get("anyOf", ()) if one.get("type") == "string"):
                for member in members:
                    _add_time_format(option, member)
        case _:
            pass


def _annotated_description(hint: object) -> str | None:
    """The text in `Annotated[…, "text"]`, or in an object with `.documentation` as proposed in PEP 727."""
    if get_origin(hint) in _TRANSPARENT_TYPES:
        return next((text for inner in get_args(hint) if (text := _annotated_description(inner))), None)
    if get_origin(hint) is not Annotated:
        return None
    for extra in get_args(hint)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(text, str):
            return text
    return None


def _has_reference(node: object, reference: str) -> bool:
    if isinstance(node, dict):
        mapping = cast("Schema", node)
        return mapping.get("$ref") == reference or any(_has_reference(value, reference) for value in mapping.values())
    if isinstance(node, list):
        return any(_has_reference(value, reference) for value in cast("list[object]", node))
    return False


def _without_markers(node: Any) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """A copy without markers, in which every array has `items`, which providers require."""
    if isinstance(node, dict):
        mapping = cast("Schema", node)
        copy = {key: _without_markers(value) for key, value in mapping.items() if key != _ANY_VALUE_MARKER}
        return {**copy, "items": {}} if copy.get("type") == "array" and not copy.keys() & _ITEM_KEYWORDS else copy
    if isinstance(node, list):
        return [_without_markers(value) for value in cast("list[object]", node)]
    return node
