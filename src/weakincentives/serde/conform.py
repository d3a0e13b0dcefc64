"""Preprocessing of data that was written for a strict schema: drops nulls that mean "default", rejects unknown keys.

msgspec validates the data afterwards. It cannot reject unknown keys of dataclasses, and a strict schema turns optional
fields into nullable ones, so both are handled here. So are integers written as 1.0, which msgspec accepts only when it
decodes JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, repeat
from typing import TypeAlias, cast

import msgspec.inspect as shapes

from weakincentives.errors import ParseError

ObjectType: TypeAlias = shapes.DataclassType | shapes.TypedDictType | shapes.StructType

_OBJECTS = (shapes.DataclassType, shapes.TypedDictType, shapes.StructType, shapes.DictType)
_ARRAYS = (shapes.CollectionType, shapes.TupleType)
_NUMBERS = (shapes.IntType, shapes.FloatType)
_KINDS = ((dict, _OBJECTS), (list, _ARRAYS), (float, _NUMBERS))


@lru_cache(maxsize=1024)
def type_info(as_type: type) -> shapes.Type:
    """The msgspec description of a type, cached."""
    return shapes.type_info(as_type)


def conform(data: object, as_type: type, *, allow_extra_keys: bool) -> object:
    """The data without nulls that stand for a default; unknown keys are an error unless allowed."""
    return _conform(data, type_info(as_type), "$", allow_extra_keys)


def _conform(data: object, shape: shapes.Type, path: str, extra: bool) -> object:  # noqa: FBT001 - a parameter of the recursion
    match _select_member(shape, data):
        case (shapes.DataclassType() | shapes.TypedDictType() | shapes.StructType()) as inner if isinstance(data, dict):
            return _object(cast("dict[str, object]", data), inner, path, extra)
        case shapes.DictType(value_type=inner) if isinstance(data, dict):
            pairs = cast("dict[str, object]", data).items()
            return {key: _conform(value, inner, f"{path}.{key}", extra) for key, value in pairs}
        case shapes.CollectionType(item_type=inner) if isinstance(data, list):
            return _array(cast("list[object]", data), repeat(inner), path, extra)
        case shapes.TupleType(item_types=inners) if isinstance(data, list):
            return _array(cast("list[object]", data), chain(inners, repeat(shapes.AnyType())), path, extra)
        case shapes.IntType() if isinstance(data, float) and data.is_integer():
            return int(data)  # for a schema, 1.0 is an integer
        case _:
            return cast("object", data)


def _array(items: list[object], inners: Iterator[shapes.Type], path: str, extra: bool) -> object:  # noqa: FBT001 - a parameter of the recursion
    pairs = enumerate(zip(items, inners, strict=False))  # `inners` is infinite; msgspec checks the length
    return [_conform(item, inner, f"{path}[{index}]", extra) for index, (item, inner) in pairs]


def _object(data: Mapping[str, object], shape: ObjectType, path: str, extra: bool) -> object:  # noqa: FBT001 - a parameter of the recursion
    known = {field.encode_name: field for field in shape.fields}
    tag = {shape.tag_field} if isinstance(shape, shapes.StructType) else set[None]()
    if not extra and (unknown := sorted(data.keys() - known.keys() - tag)):
        raise ParseError(f"unknown key {unknown[0]!r}; known keys: {', '.join(known) or 'none'}", path=path)
    result: dict[str, object] = {}
    for key, value in data.items():
        field = known.get(key)
        if field is None:
            result[key] = value
        elif value is not None or field.required or admits_null(field.type):
            result[key] = _conform(value, field.type, f"{path}.{key}", extra)
    return result


def admits_null(shape: shapes.Type) -> bool:
    """Whether null is a value of this type."""
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


def _select_member(shape: shapes.Type, data: object) -> shapes.Type:
    """Unwrap metadata, and select the member of a union that matches `data`.

    msgspec allows only one object-like, one array-like and one numeric member, except for tagged structs.
    """
    while isinstance(shape, shapes.Metadata):
        shape = shape.type
    if not isinstance(shape, shapes.UnionType):
        return shape
    kinds = next((kinds for python_type, kinds in _KINDS if isinstance(data, python_type)), ())
    members = [member.type if isinstance(member, shapes.Metadata) else member for member in shape.types]
    return next(
        (member for member in members if isinstance(member, kinds) and _has_matching_tag(cast("object", data), member)),
        shape,
    )


def _has_matching_tag(data: object, member: shapes.Type) -> bool:
    if not isinstance(member, shapes.StructType) or member.tag_field is None:
        return True
    return cast("dict[str, object]", data).get(member.tag_field) == member.tag
