"""Structured output: the JSON schema that is sent to the model, and the parser of its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

from weakincentives.errors import OutputParseError, ParseError, SchemaError
from weakincentives.prompt.rendering import RenderedPrompt
from weakincentives.serde import parse_strict, schema, strict_schema

OutputT = TypeVar("OutputT")

# Models often wrap JSON in a Markdown code fence.
_CODE_FENCE_RE = re.compile(r"\A\s*```(?:json)?\s*\n(?P<inside>.*)\n\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class OutputSchema:
    """The JSON schema of the output, as sent to a provider."""

    name: str
    schema: dict[str, Any]
    strict: bool


def output_schema(rendered: RenderedPrompt[Any]) -> OutputSchema | None:
    """The JSON schema of the output; None for plain text. An array is sent as `{"items": […]}`."""
    if rendered.output_type is None or rendered.container is None:
        return None
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", rendered.output_type.__name__)[:64]
    carrier = _root_type(rendered)
    if not rendered.allow_extra_keys:
        try:
            return OutputSchema(name, strict_schema(carrier), strict=True)
        except SchemaError:
            pass  # such as a mapping with arbitrary keys: sent as a non-strict schema
    return OutputSchema(name, schema(carrier), strict=False)


def parse_output(text: str, rendered: RenderedPrompt[OutputT]) -> OutputT:
    """Parse the model's answer as the prompt's output type. `OutputParseError` has the reason and the raw text."""
    if rendered.output_type is str:
        return cast("OutputT", text)
    if rendered.output_type is None:
        raise OutputParseError("the prompt declares no output type: use PromptTemplate[Output]", raw=text)
    fenced = _CODE_FENCE_RE.match(text)
    payload = fenced["inside"] if fenced else text
    if rendered.container == "array" and payload.lstrip().startswith("["):
        payload = f'{{"items": {payload}}}'
    try:
        parsed = parse_strict(payload, _root_type(rendered), allow_extra_keys=rendered.allow_extra_keys)
    except ParseError as error:
        raise OutputParseError(f"the answer is not a {rendered.output_type.__name__}: {error}", raw=text) from error
    return cast("OutputT", parsed.items if rendered.container == "array" else parsed)


def _root_type(rendered: RenderedPrompt[Any]) -> type[Any]:
    output_type = cast("type[Any]", rendered.output_type)
    return _array_wrapper(output_type) if rendered.container == "array" else output_type


@lru_cache(maxsize=256)
def _array_wrapper(item_type: type[Any]) -> type[Any]:
    return make_dataclass("Items", [("items", list[item_type])])
