"""Converts params and results of native calls to the types with which a tool was declared. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast, get_origin

from weakincentives.adapters.openai.native_tools.capability import ProviderRan
from weakincentives.adapters.openai.wire import Wire
from weakincentives.errors import SerdeError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.serde import dump, parse


def convert_params(wanted: Any, params: object, item: Wire) -> object:  # noqa: ANN401 - any type form
    """Convert the params of a call to the type `wanted`, field by field. Raises `SerdeError`."""
    return _convert(wanted, params, lambda: {**item, **_fields(params), "payload": item})


def convert_result(wanted: Any, result: ToolResult[Any], item: Wire) -> ToolResult[Any]:  # noqa: ANN401 - any type form
    """Convert the value of a result to the type `wanted`. Raises `SerdeError`.

    The field `payload` is the response item, `output_text` the text of the result. A result without a value, which is a
    failure, is returned unchanged.
    """
    if result.value is None:
        return result
    text = result.render()
    fields = {**item, **_fields(result.value), "payload": item, "output_text": text, "message": text}
    return ToolResult(result.message, _convert(wanted, result.value, lambda: fields), result.success)


def type_mismatch(tool: Tool[Any, Any], example: ProviderRan) -> str | None:
    """Why the types of a tool cannot hold an example call; None if they can."""
    params, result = example.params, example.result
    for what, wanted, value, attempt in (
        ("params", tool.params_type, params, lambda: convert_params(tool.params_type, params, {})),
        ("result", tool.result_type, result.value, lambda: convert_result(tool.result_type, result, {})),
    ):
        try:
            attempt()
        except SerdeError as error:
            known = [field.name for field in dataclasses.fields(cast("Any", value))]
            known += ["payload"] if what == "params" else ["payload", "output_text"]
            name = getattr(wanted, "__name__", wanted)
            return f"{what} {name} does not fit what the provider sends: {error}. There are: {', '.join(known)}"
    return None


def _convert(wanted: Any, value: object, fields: Callable[[], Wire]) -> object:  # noqa: ANN401 - any type form
    plain = get_origin(wanted) or wanted
    if wanted is None or wanted is type(None):
        return None
    if wanted is Any or (isinstance(plain, type) and isinstance(value, plain)):
        return value
    if plain in (dict, Mapping):
        return {key: inner for key, inner in fields().items() if key != "payload"}
    return parse(fields()["output_text"] if wanted is str and "output_text" in fields() else fields(), wanted)


def _fields(value: object) -> Wire:
    return cast("Wire", dump(value))
