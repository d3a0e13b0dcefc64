"""What a strict schema changes about the data: nulls that mean "default", and keys nobody asked for.

Validation itself is msgspec's. Dataclasses have no switch there for closed
objects, and a strict schema turns "may be left out" into "may be null", so both
are settled here, before msgspec reads the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

import msgspec.inspect as shapes

from weakincentives.errors import ParseError

_OBJECTS = (shapes.DataclassType, shapes.DictType)
_ARRAYS = (shapes.CollectionType, shapes.TupleType)


@lru_cache(maxsize=1024)
def shape_of(as_type: type) -> shapes.Type:
    """How msgspec sees a type."""
    return shapes.type_info(as_type)


def conform(data: object, as_type: type, *, allow_extra_keys: bool) -> object:
    """The same data without nulls that stand for a default; unknown keys are refused unless allowed."""
    return _conform(data, shape_of(as_type), "$", allow_extra_keys)


def _conform(data: object, shape: shapes.Type, path: str, extra: bool) -> object:  # noqa: FBT001 - a recursion's own state
    match _pick(shape, data):
        case shapes.DataclassType(fields=fields) if isinstance(data, dict):
            return _object(cast("dict[str, object]", data), fields, path, extra)
        case shapes.DictType(value_type=inner) if isinstance(data, dict):
            pairs = cast("dict[str, object]", data).items()
            return {key: _conform(value, inner, f"{path}.{key}", extra) for key, value in pairs}
        case shapes.CollectionType(item_type=inner) if isinstance(data, list):
            items = cast("list[object]", data)
            return [_conform(value, inner, f"{path}[{at}]", extra) for at, value in enumerate(items)]
        case shapes.TupleType(item_types=inners) if isinstance(data, list):
            items = cast("list[object]", data)
            if len(items) != len(inners):
                return items  # msgspec has the better message
            return [
                _conform(value, inner, f"{path}[{at}]", extra)
                for at, (value, inner) in enumerate(zip(items, inners, strict=True))
            ]
        case _:
            return data


def _object(data: Mapping[str, object], fields: tuple[shapes.Field, ...], path: str, extra: bool) -> object:  # noqa: FBT001 - a recursion's own state
    known = {field.encode_name: field for field in fields}
    if not extra and (unknown := sorted(data.keys() - known.keys())):
        raise ParseError(f"unknown key {unknown[0]!r}; known are: {', '.join(known) or 'none'}", path=path)
    kept: dict[str, object] = {}
    for key, value in data.items():
        field = known.get(key)
        if field is None:
            kept[key] = value
        elif value is not None or field.required or admits_null(field.type):
            kept[key] = _conform(value, field.type, f"{path}.{key}", extra)
    return kept


def admits_null(shape: shapes.Type) -> bool:
    """Whether null is a value of this type, rather than the absence of one."""
    match shape:
        case shapes.Metadata(type=inner):
            return admits_null(inner)
        case shapes.UnionType(types=members):
            return any(admits_null(member) for member in members)
        case shapes.NoneType() | shapes.AnyType():
            return True
        case shapes.CustomType(cls=custom):
            return custom is object
        case shapes.LiteralType(values=values):
            return None in values
        case _:
            return False


def _pick(shape: shapes.Type, data: object) -> shapes.Type:
    """See through metadata, and in a union take the one member that `data` can be (msgspec allows no second)."""
    while isinstance(shape, shapes.Metadata):
        shape = shape.type
    if not isinstance(shape, shapes.UnionType):
        return shape
    kinds = _OBJECTS if isinstance(data, dict) else _ARRAYS if isinstance(data, list) else ()
    members = [member.type if isinstance(member, shapes.Metadata) else member for member in shape.types]
    return next((member for member in members if isinstance(member, kinds)), shape)
