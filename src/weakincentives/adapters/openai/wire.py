"""The Responses API in words: every name that a request or an answer has there. What one tool alone has is in its file.

Functions here build the parts of a request from ours and take the parts of an answer apart. They check shapes, because
an answer may come from any server that says it speaks this API; `Malformed` says what is wrong with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

from weakincentives.budget import TokenUsage
from weakincentives.prompt import OutputSchema, ToolSpec

Wire: TypeAlias = dict[str, Any]
"""A part of a request, or of an answer, as JSON has it."""

Role: TypeAlias = Literal["user", "developer", "system"]

PATH = "/responses"
MESSAGE = "message"
FUNCTION_CALL = "function_call"
REASONING = "reasoning"
OUTPUT_SUFFIX = "_output"
FINAL_PHASE = "final_answer"

_BAD_REQUEST, _NOT_FOUND = 400, 404

INCLUDE_REASONING = "reasoning.encrypted_content"
RESERVED = frozenset({"model", "input", "tools", "tool_choice", "text", "include", "stream", "background", "store"})
"""What the adapter settles itself, so that nobody else does behind its back."""


class Malformed(ValueError):
    """An answer that is none of this API's."""


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def message(role: Role, text: str) -> Wire:
    """Something said to the model."""
    return {"type": MESSAGE, "role": role, "content": text}


def assistant_message(text: str) -> Wire:
    """Something that the model is to believe it has said."""
    return {"type": MESSAGE, "role": "assistant", "content": text}


def function_tool(spec: ToolSpec) -> Wire:
    """One of our tools."""
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": spec.strict,
    }


def function_choice(name: str) -> Wire:
    """The model must call this tool of ours."""
    return {"type": "function", "name": name}


def function_call_output(call_id: str, text: str) -> Wire:
    """What one of our tools answered."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def json_schema(schema: OutputSchema) -> Wire:
    """The shape of the answer."""
    return {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": schema.strict}


def refused_tool(payload: object) -> int | None:
    """Which of the tools, by number, an error is about; None where it is about something else."""
    param = cast("Wire", payload).get("param") if isinstance(payload, dict) else None
    found = re.match(r"tools\[(\d+)\]", param) if isinstance(param, str) else None
    return int(found[1]) if found else None


def is_expiry(status: int | None, text: str, container_id: str) -> bool:
    """Whether a refusal says that a container is gone. The API has no code for it."""
    lowered = text.lower()
    return (status == _BAD_REQUEST and ("container is expired" in lowered or "expected container_id" in lowered)) or (
        status in (_BAD_REQUEST, _NOT_FOUND) and container_id in text
    )


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_object(value: object, what: str) -> Wire:
    """A JSON object, or `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is no object but {_shown(value)}")
    return cast("Wire", value)


def objects_in(value: object, what: str) -> list[Wire]:
    """A list of JSON objects, or `Malformed`; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{what} is no list but {_shown(value)}")
    return [as_object(one, f"{what}[{at}]") for at, one in enumerate(cast("list[object]", value))]


def text_in(holder: Mapping[str, Any], key: str) -> str:
    """A string; what is null or missing is an empty one."""
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"{key!r} is no text but {_shown(value)}")
    return value


def texts_in(holder: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Several strings; what is null or missing is none."""
    value = holder.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in cast("list[object]", value)):
        raise Malformed(f"{key!r} is no list of texts but {_shown(cast('object', value))}")
    return tuple(cast("list[str]", value))


def number_in(holder: Mapping[str, Any], key: str) -> int:
    """A count; what is null or missing is zero."""
    value = holder.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise Malformed(f"{key!r} is no count but {_shown(value)}")
    return value


def call_id_of(item: Wire) -> str:
    """What a call goes by: tools that the provider runs have no `call_id` of their own."""
    known = text_in(item, "call_id") or text_in(item, "id")
    if not known:
        raise Malformed(f"an item of type {item.get('type')!r} has neither call_id nor id")
    return known


def parts_of(item: Wire) -> Iterator[tuple[Literal["text", "refusal"], str, list[Wire]]]:
    """What a message of the model says: kind, text and annotations of each part."""
    for part in objects_in(item.get("content"), "content"):
        if part.get("type") == "output_text":
            yield "text", text_in(part, "text"), objects_in(part.get("annotations"), "annotations")
        elif part.get("type") == "refusal":
            yield "refusal", text_in(part, "refusal"), []


def usage_of(response: Wire) -> TokenUsage:
    """What a request has used; nothing, where the answer does not say."""
    usage = as_object(response.get("usage") or {}, "usage")
    cached = as_object(usage.get("input_tokens_details") or {}, "usage.input_tokens_details")
    reasoned = as_object(usage.get("output_tokens_details") or {}, "usage.output_tokens_details")
    return TokenUsage(
        number_in(usage, "input_tokens"),
        number_in(usage, "output_tokens"),
        number_in(cached, "cached_tokens"),
        number_in(reasoned, "reasoning_tokens"),
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - a glimpse of it
