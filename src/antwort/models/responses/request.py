"""Builds the request body for an upstream Responses API. Pure.

The upstream stores nothing, so every request contains the whole history. Item ids are removed and hosted calls become
function calls: ids, containers and vector stores of this server do not exist upstream. Only compaction items are sent
unchanged: their encrypted content is bound to their id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, cast

import msgspec

from antwort.api.items import GivenReasoning, Item, Raw
from antwort.engine.ports import FunctionSpec, ModelRequest, MustCall
from antwort.models.replay_hosted_calls import OUTPUT_NOT_STORED, replay_call, replay_message, replay_output

Body: TypeAlias = dict[str, Any]
ReplayReasoning: TypeAlias = Literal["sealed", "all", "drop"]

_FORWARDED_TYPES = {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
_COMPACTION_TRIGGER = {"type": "compaction_trigger"}
_MIN_OUTPUT_TOKENS = 16  # OpenAI refuses less; other wires than the Responses API allow less
_LOCAL_FIELDS = {"id", "status", "created_by"}


def to_body(request: ModelRequest, *, model: str, reasoning: ReplayReasoning = "sealed", stream: bool = True) -> Body:
    """The body with the fields that the request sets and no others."""
    given: Body = {
        "model": model,
        "input": list(to_input(request.items, reasoning)),
        "instructions": request.instructions,
        "reasoning": _reasoning_options(request),
        "text": _text(request),
    }
    if stream:
        given |= {"stream": True, "store": False, "include": _include(request)} | _sampling(request)
        given |= {"context_management": _context_management(request)}
        given["input"] += [_COMPACTION_TRIGGER] if request.compaction_trigger else []
    return {name: value for name, value in given.items() if value is not None} | _tools(request)


def to_compact_body(request: ModelRequest, *, model: str, reasoning: ReplayReasoning = "sealed") -> Body:
    """The body of a request to compact the history: `POST /responses/compact`."""
    body: Body = {"model": model, "input": list(to_input(request.items, reasoning))}
    return body if request.instructions is None else {**body, "instructions": request.instructions}


def to_input(items: Sequence[Item], reasoning: ReplayReasoning) -> Iterator[Raw]:
    """The history in items that the upstream understands. Stored items that could not be parsed are left out."""
    answered = {str(_call_id(item)) for item in items if item.is_output}
    for item in items:
        if item.known is None:
            continue
        if item.type in _FORWARDED_TYPES:
            fields = {name: value for name, value in item.raw.items() if name not in _LOCAL_FIELDS}
            yield {"type": item.type, **{name: _without_file_ids(value) for name, value in fields.items()}}
        elif item.type == "compaction":
            yield item.raw
        elif isinstance(item.known, GivenReasoning):
            yield from _reasoning(item, item.known, reasoning)
        else:
            yield from _replay(item, answered)


def _without_file_ids(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Content parts without `file_id`: files of this server do not exist upstream."""
    if not isinstance(value, list):
        return value
    return [_without_file_id(part) for part in cast("list[Any]", value)]


def _without_file_id(part: Any) -> Any:  # noqa: ANN401 - any JSON
    if not isinstance(part, dict) or "file_id" not in part:
        return cast("object", part)
    return {name: value for name, value in cast("Raw", part).items() if name != "file_id"}


def _reasoning(item: Item, known: GivenReasoning, replay: ReplayReasoning) -> Iterator[Raw]:
    if replay == "all" or (replay == "sealed" and known.encrypted_content):
        fields = {name: value for name, value in item.raw.items() if name not in _LOCAL_FIELDS and value is not None}
        yield {"summary": [], **fields}


def _call_id(item: Item) -> object:
    return item.raw.get("call_id") or item.raw.get("id")


def _replay(item: Item, answered: AbstractSet[str]) -> Iterator[Raw]:
    """A hosted call with its output. An upstream refuses a call without one, as a call that was cut off leaves it."""
    if (call := replay_call(item)) is not None:
        yield {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        output = call.output
        if output is None and call.call_id not in answered:
            output = OUTPUT_NOT_STORED
        if output is not None:
            yield {"type": "function_call_output", "call_id": call.call_id, "output": output}
    elif (output := replay_output(item)) is not None:
        yield {"type": "function_call_output", "call_id": _call_id(item), "output": output}
    elif (text := replay_message(item)) is not None:
        yield {"type": "message", "role": "user", "content": text}


def _tools(request: ModelRequest) -> Body:
    if not request.tools:
        return {}
    body: Body = {"tools": [_tool(spec) for spec in request.tools]}
    if isinstance(request.choice, MustCall):
        custom = any(spec.free_text for spec in request.tools if spec.name == request.choice.name)
        body["tool_choice"] = {"type": "custom" if custom else "function", "name": request.choice.name}
    elif request.choice != "auto":
        body["tool_choice"] = request.choice
    if not request.parallel:
        body["parallel_tool_calls"] = False
    return body


def _tool(spec: FunctionSpec) -> Body:
    common: Body = {"name": spec.name} | ({"description": spec.full_description} if spec.full_description else {})
    if spec.free_text:
        grammar: Body = {"format": msgspec.to_builtins(spec.grammar)} if spec.grammar else {}
        return {"type": "custom", **common, **grammar}
    return {"type": "function", **common, "parameters": spec.parameters, "strict": spec.strict}


def _sampling(request: ModelRequest) -> Body:
    limit = request.max_output_tokens
    return {
        "max_output_tokens": None if limit is None else max(_MIN_OUTPUT_TOKENS, limit),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_logprobs": request.top_logprobs or None,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "user": request.user,
    }


def _context_management(request: ModelRequest) -> list[Body] | None:
    if request.compact_threshold is None:
        return None
    return [{"type": "compaction", "compact_threshold": request.compact_threshold}]


def _include(request: ModelRequest) -> list[str]:
    sealed = ["reasoning.encrypted_content"]
    return sealed if request.top_logprobs is None else [*sealed, "message.output_text.logprobs"]


def _reasoning_options(request: ModelRequest) -> Body | None:
    given: Body = msgspec.to_builtins(request.reasoning) if request.reasoning else {}
    return {name: value for name, value in given.items() if value is not None} or None


def _text(request: ModelRequest) -> Body | None:
    output_format: Body = msgspec.to_builtins(request.format)
    text: Body = {}
    if output_format["type"] != "text":
        text["format"] = {name: value for name, value in output_format.items() if value is not None}
    if request.verbosity not in (None, "medium"):
        text["verbosity"] = request.verbosity
    return text or None
