"""Calls and results in the types that somebody declared a tool with, made from those that we read. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast, get_origin

from weakincentives.adapters.openai.native_tools.capability import Ran
from weakincentives.adapters.openai.wire import Wire
from weakincentives.errors import SerdeError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.serde import dump, parse


def params_as(wanted: Any, ours: object, item: Wire) -> object:  # noqa: ANN401 - any type form
    """A call's parameters as `wanted`: fields are filled by name. Raises `SerdeError` where they cannot be."""
    return _project(wanted, ours, lambda: {**item, **_plain(ours), "payload": item})


def result_as(wanted: Any, result: ToolResult[Any], item: Wire) -> ToolResult[Any]:  # noqa: ANN401 - any type form
    """A result whose value is a `wanted`. `payload` is the provider's item, `output_text` the text of the result.

    A result without a value, which is a failure, stays as it is. Raises `SerdeError`.
    """
    if result.value is None:
        return result
    text = result.render()
    known = {**item, **_plain(result.value), "payload": item, "output_text": text, "message": text}
    return ToolResult(result.message, _project(wanted, result.value, lambda: known), result.success)


def misfit(tool: Tool[Any, Any], example: Ran) -> str | None:
    """What of a tool's types cannot hold a call such as this one; None where all can."""
    for what, wanted, attempt in (
        ("params", tool.params_type, lambda: params_as(tool.params_type, example.params, {})),
        ("result", tool.result_type, lambda: result_as(tool.result_type, example.result, {})),
    ):
        try:
            attempt()
        except SerdeError as error:
            ours = example.params if what == "params" else example.result.value
            known = [field.name for field in dataclasses.fields(cast("Any", ours))]
            known += ["payload"] if what == "params" else ["payload", "output_text"]
            name = getattr(wanted, "__name__", wanted)
            return f"{what} {name} does not fit what the provider sends: {error}. There are: {', '.join(known)}"
    return None


def _project(wanted: Any, ours: object, known: Any) -> object:  # noqa: ANN401 - any type form
    plain = get_origin(wanted) or wanted
    if wanted is None or wanted is type(None):
        return None
    if wanted is Any or (isinstance(plain, type) and isinstance(ours, plain)):
        return ours
    if plain in (dict, Mapping):
        return {key: value for key, value in known().items() if key != "payload"}
    return parse(known()["output_text"] if wanted is str and "output_text" in known() else known(), wanted)


def _plain(ours: object) -> Wire:
    return cast("Wire", dump(ours))
