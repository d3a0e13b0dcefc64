"""Wire format of the Responses API: field names, builders for parts of a request, and checked access to responses.

What only one tool uses is in the module of that tool. Shapes are checked, because a response may come from any server
that claims to implement this API; `MalformedResponse` names the wrong part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from weakincentives.budget import TokenUsage
from weakincentives.errors import ProviderFault
from weakincentives.prompt import OutputSchema, ToolSpec

Wire: TypeAlias = dict[str, Any]
"""A JSON object of a request or a response."""

Role: TypeAlias = Literal["user", "developer", "system"]

PATH = "/responses"
COMPACT_PATH = "/responses/compact"
COUNT_PATH = "/responses/input_tokens"
MESSAGE = "message"
FUNCTION_CALL = "function_call"
REASONING = "reasoning"
COMPACTION = "compaction"
CONTEXT_MANAGEMENT = "context_management"
OUTPUT_SUFFIX = "_output"
FINAL_PHASE = "final_answer"

_BAD_REQUEST, _FORBIDDEN, _NOT_FOUND, _UNPROCESSABLE = 400, 403, 404, 422

STREAM_HEADERS: Final = {"X-Stainless-Raw-Response": "stream"}
"""Headers that make the SDK return the body unread."""
INCLUDE_REASONING = "reasoning.encrypted_content"
RESERVED_PARAMETERS = frozenset(
    {"model", "input", "tools", "tool_choice", "text", "include", "stream", "background", "store"}
)
"""Request parameters that the adapter sets itself."""


_OPENAI_DOMAINS = ("openai.com", "openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com")


class MalformedResponse(ValueError):
    """A response that does not have the shape of this API."""


def is_openai(base_url: str) -> bool:
    """Whether a base URL is OpenAI's own service, or Azure's."""
    host = urlsplit(base_url).hostname or ""
    return any(host == domain or host.endswith(f".{domain}") for domain in _OPENAI_DOMAINS)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def message(role: Role, text: str) -> Wire:
    """An input message."""
    return {"type": MESSAGE, "role": role, "content": text}


def assistant_message(text: str) -> Wire:
    """An input message in the name of the model."""
    return {"type": MESSAGE, "role": "assistant", "content": text}


def function_tool(spec: ToolSpec) -> Wire:
    """The declaration of a function tool."""
    return {"type": "function", **vars(spec)}


def function_choice(name: str) -> Wire:
    """The `tool_choice` that forces a call of a function tool."""
    return {"type": "function", "name": name}


def function_call_output(call_id: str, text: str) -> Wire:
    """The output of a function tool."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def json_schema(schema: OutputSchema) -> Wire:
    """The `text.format` of structured output."""
    return {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": schema.strict}


def rejected_tool_index(payload: object) -> int | None:
    """The index in `tools` that an error names; None if it names another parameter."""
    param = cast("Wire", payload).get("param") if isinstance(payload, dict) else None
    found = re.match(r"tools\[(\d+)\]", param) if isinstance(param, str) else None
    return int(found[1]) if found else None


def error_code(payload: object) -> str:
    """The `code` of an error; empty if there is none."""
    code = cast("Wire", payload).get("code") if isinstance(payload, dict) else None
    return code if isinstance(code, str) else ""


def rejects_parameter(status: int | None, payload: object, name: str) -> bool:
    """Whether an error refuses a request parameter, by its `param`, or by its message if it has no `param`."""
    if status not in (_BAD_REQUEST, _UNPROCESSABLE) or not isinstance(payload, dict):
        return False
    error = cast("Wire", payload)
    param = error.get("param")
    if isinstance(param, str) and param:
        return re.match(rf"(body\.)?{re.escape(name)}\b", param) is not None
    return re.search(rf"\b{re.escape(name)}\b", str(error.get("message") or error.get("detail") or "")) is not None


def may_reject_include(fault: ProviderFault, values: Iterable[str]) -> bool:
    """Whether an error may be about these values of `include`: it names them, or the parameter, or nothing at all."""
    if fault.status not in (_BAD_REQUEST, _UNPROCESSABLE):
        return False
    error = cast("Wire", fault.payload) if isinstance(fault.payload, dict) else {}
    if not error.get("message"):  # not in the form of this API, so that it names no parameter
        return True
    return rejects_parameter(fault.status, error, "include") or any(value in str(fault) for value in values)


def is_container_expired(status: int | None, text: str, container_id: str) -> bool:
    """Whether an error means that a container expired. The API has no error code for it."""
    lowered = text.lower()
    return (status == _BAD_REQUEST and ("container is expired" in lowered or "expected container_id" in lowered)) or (
        status in (_BAD_REQUEST, _NOT_FOUND) and container_id in text
    )


def is_zero_retention_refusal(status: int | None, text: str) -> bool:
    """Whether an error refuses a container because of zero data retention. The API has no error code for it."""
    lowered = text.lower()
    return status in (_BAD_REQUEST, _FORBIDDEN, _NOT_FOUND) and (
        "zero data retention" in lowered
        or re.search(r"\bzdr\b", lowered) is not None
        or ("container" in lowered and re.search(r"not (available|supported|allowed|enabled)", lowered) is not None)
    )


# ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_json(content: bytes) -> object:
    """Decode JSON. Raises `MalformedResponse`."""
    try:
        return cast("object", msgspec.json.decode(content))
    except (msgspec.DecodeError, UnicodeError):
        pass  # msgspec rejects lone surrogates, which programs do print; the slower json module accepts them
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedResponse(f"it is not JSON: {error}") from error


def as_object(value: object, what: str) -> Wire:
    """Check that a value is a JSON object."""
    if not isinstance(value, dict):
        raise MalformedResponse(f"{what} is not an object but {_excerpt(value)}")
    return cast("Wire", value)


def as_objects(value: object, what: str) -> list[Wire]:
    """Check that a value is a list of JSON objects; null is an empty list."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedResponse(f"{what} is not a list but {_excerpt(value)}")
    return [as_object(one, f"{what}[{at}]") for at, one in enumerate(cast("list[object]", value))]


def get_str(raw: Mapping[str, Any], key: str) -> str:
    """A string field; empty if it is null or missing."""
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedResponse(f"{key!r} is not a string but {_excerpt(value)}")
    return value


def get_strs(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A field with a list of strings; empty if it is null or missing."""
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in cast("list[object]", value)):
        raise MalformedResponse(f"{key!r} is not a list of strings but {_excerpt(cast('object', value))}")
    return tuple(cast("list[str]", value))


def get_count(raw: Mapping[str, Any], key: str) -> int:
    """A non-negative integer field; 0 if it is null or missing."""
    value = raw.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise MalformedResponse(f"{key!r} is not a count but {_excerpt(value)}")
    return value


def get_call_id(item: Wire) -> str:
    """The id of a call: `call_id`, or `id` for provider-run tools, which have no `call_id`."""
    known = get_str(item, "call_id") or get_str(item, "id")
    if not known:
        raise MalformedResponse(f"an item of type {item.get('type')!r} has neither call_id nor id")
    return known


def message_parts(item: Wire) -> Iterator[tuple[Literal["text", "refusal"], str, list[Wire]]]:
    """The parts of a message: kind, text and annotations."""
    for part in as_objects(item.get("content"), "content"):
        if part.get("type") == "output_text":
            yield "text", get_str(part, "text"), as_objects(part.get("annotations"), "annotations")
        elif part.get("type") == "refusal":
            yield "refusal", get_str(part, "refusal"), []


def parse_usage(response: Wire) -> TokenUsage:
    """The token usage of a response; zero if it is missing."""
    usage = as_object(response.get("usage") or {}, "usage")
    cached = as_object(usage.get("input_tokens_details") or {}, "usage.input_tokens_details")
    reasoned = as_object(usage.get("output_tokens_details") or {}, "usage.output_tokens_details")
    return TokenUsage(
        get_count(usage, "input_tokens"),
        get_count(usage, "output_tokens"),
        get_count(cached, "cached_tokens"),
        get_count(reasoned, "reasoning_tokens"),
    )


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - enough to recognise it
