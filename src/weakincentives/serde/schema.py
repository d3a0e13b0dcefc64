"""JSON schemas of dataclasses: plain ones, and the strict kind that model providers enforce.

Descriptions come from `Annotated[int, "how many"]`, from `msgspec.Meta(description=…)`,
or from `field(metadata={"description": …})`, at every depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect as shapes

from weakincentives.errors import SchemaError
from weakincentives.serde.shape import shape_of
from weakincentives.serde.strict import strict

Schema: TypeAlias = dict[str, Any]

_ANYTHING = "x-anything"  # msgspec refuses an empty schema from its hook, so "any value" travels as this mark


def schema(as_type: type, *, descriptions: Mapping[str, str] | None = None) -> Schema:
    """The JSON schema of a dataclass. `descriptions` replaces those of top-level fields."""
    root = _generate(as_type)
    properties: dict[str, Schema] = root.get("properties", {})
    for name, text in (descriptions or {}).items():
        if name not in properties:
            raise SchemaError(f"{as_type.__name__} has no field {name!r} to describe")
        properties = {**properties, name: {**properties[name], "description": text}}
    return _without_marks({**root, "properties": properties} if descriptions else root)


def strict_schema(as_type: type, *, descriptions: Mapping[str, str] | None = None) -> Schema:
    """The schema with closed objects and all properties required; what may be left out becomes nullable.

    Raises `SchemaError` for what the strict kind cannot say, such as a mapping with free keys.
    """
    return strict(schema(as_type, descriptions=descriptions))


@lru_cache(maxsize=1024)
def _generate(as_type: type) -> Schema:
    """The schema with `$defs`; its root is written out rather than referred to. Callers must not change it."""
    try:
        dataclass_types = list(_dataclasses_in(shape_of(as_type), set()))
        roots, components = msgspec.json.schema_components(
            [as_type, *dataclass_types], ref_template="#/$defs/{name}", schema_hook=_anything
        )
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(
            f"{getattr(as_type, '__name__', as_type)!r} has no JSON schema: {error}. Use JSON-like types, "
            f"and define dataclasses at module level where their annotations are strings"
        ) from error
    for reference, dataclass_type in zip(roots[1:], dataclass_types, strict=True):
        _describe_fields(components[reference["$ref"].rpartition("/")[2]], dataclass_type)
    for component in components.values():
        component.pop("title", None)  # a class name is ours to change and costs tokens
    root = roots[0]
    if "$ref" in root:
        name = root["$ref"].rpartition("/")[2]
        root = dict(components[name])
        if not _refers(components, f"#/$defs/{name}"):
            del components[name]
    return {**root, "$defs": components} if components else root


def _anything(custom: type) -> Schema:
    if custom is object:
        return {_ANYTHING: True}
    raise NotImplementedError


def _dataclasses_in(shape: object, seen: set[int]) -> Iterator[type]:
    """Every dataclass type that a shape reaches."""
    if id(shape) in seen:
        return
    seen.add(id(shape))
    if isinstance(shape, shapes.DataclassType):
        yield shape.cls
    for member in _members(shape):
        yield from _dataclasses_in(member, seen)


def _members(shape: object) -> tuple[object, ...]:
    if isinstance(shape, tuple):
        return cast("tuple[object, ...]", shape)
    if isinstance(shape, (shapes.Type, shapes.Field)):
        return tuple(getattr(shape, name) for name in shape.__struct_fields__)
    return ()


def _describe_fields(component: Schema, dataclass_type: type) -> None:
    origin = cast("type", get_origin(dataclass_type) or dataclass_type)
    hints = get_type_hints(origin, include_extras=True)
    for field in dataclasses.fields(origin):
        node: Schema = component["properties"].get(field.name, {})
        text = field.metadata.get("description") or _documented(hints.get(field.name))
        if text and "description" not in node:
            component["properties"][field.name] = {"description": text, **node}


def _documented(hint: object) -> str | None:
    """The text in `Annotated[…, "text"]`, or in an object with `.documentation` as PEP 727 proposed."""
    if get_origin(hint) is not Annotated:
        return None
    for extra in get_args(hint)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(text, str):
            return text
    return None


def _refers(node: object, reference: str) -> bool:
    if isinstance(node, dict):
        mapping = cast("Schema", node)
        return mapping.get("$ref") == reference or any(_refers(value, reference) for value in mapping.values())
    if isinstance(node, list):
        return any(_refers(value, reference) for value in cast("list[object]", node))
    return False


def _without_marks(node: Any) -> Any:  # noqa: ANN401 - JSON has no narrower type
    if isinstance(node, dict):
        mapping = cast("Schema", node)
        return {key: _without_marks(value) for key, value in mapping.items() if key != _ANYTHING}
    if isinstance(node, list):
        return [_without_marks(value) for value in cast("list[object]", node)]
    return node
