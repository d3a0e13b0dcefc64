"""Writes a response as a chat completion. Pure.

A chat completion has one message. The texts of several messages are joined by a blank line, and so are the parts of the
reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from msgspec import UNSET, UnsetType

from antwort.api.projection import ResponseView
from antwort.api.responses import IgnoredTool, Response, Usage
from antwort.http.wires.chat_completions.answer import (
    ChatAnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatToolCall,
    ChatUsage,
    CompletionTokensDetails,
    FinishReason,
    PromptTokensDetails,
    WrittenCustom,
    WrittenFunction,
)
from antwort.http.wires.chat_completions.reader import AnswerForm, ChatRequest

Raw: TypeAlias = dict[str, Any]
SEPARATOR: Final = "\n\n"
CALL_TYPES: Final = ("function_call", "custom_tool_call")
OWN_TYPES: Final = frozenset({"message", "reasoning", *CALL_TYPES})
"""The items that have a form in a chat completion. The others are those of hosted calls."""


def completion(response: Response, chat: ChatRequest, view: ResponseView) -> ChatCompletion:
    """The chat completion of a response that has ended, and not failed."""
    form = chat.form
    calls = [item for item in response.output if item["type"] in CALL_TYPES]
    texts, refusals = _texts(response.output, "text"), _texts(response.output, "refusal")
    text, refusal = SEPARATOR.join(texts), SEPARATOR.join(refusals) or None
    reasoning = SEPARATOR.join(filter(None, _reasoning_texts(response.output)))
    message = ChatAnswerMessage(
        content=text if text or not (calls or refusal) else None,
        refusal=refusal,
        annotations=citations(response.output),
        reasoning_content=reasoning or UNSET,
    )
    if calls and form.has_functions:
        message.function_call = WrittenFunction(calls[0]["name"], calls[0].get("arguments", ""))
    elif calls:
        message.tool_calls = [_tool_call(item) for item in calls]
    if hosted := [view.item(item) for item in response.output if item["type"] not in OWN_TYPES]:
        message.hosted_items = hosted if form.has_hosted_tools else UNSET
    logprobs = ChatLogprobs([*_logprobs(response.output)]) if form.has_logprobs else None
    return ChatCompletion(
        id=completion_id(response),
        created=response.created_at,
        model=response.model,
        choices=[ChatChoice(0, message, logprobs, finish_reason(response, form))],
        usage=usage(response.usage),
        service_tier=response.service_tier,
        ignored_tools=ignored_tools(response, chat),
    )


def completion_id(response: Response) -> str:
    """The id of the completion: that of the response with the prefix of a chat completion."""
    return "chatcmpl-" + response.id.removeprefix("resp_")


def finish_reason(response: Response, form: AnswerForm) -> FinishReason:
    """Why the answer has ended."""
    if response.incomplete_details is not None:
        return "content_filter" if response.incomplete_details.reason == "content_filter" else "length"
    if any(item["type"] in CALL_TYPES for item in response.output):
        return "function_call" if form.has_functions else "tool_calls"
    return "stop"


def ignored_tools(response: Response, chat: ChatRequest) -> list[IgnoredTool] | UnsetType:
    """The declared tools that were left out, by the client's paths."""
    ignored = response.ignored_tools
    return ignored if ignored is UNSET else [IgnoredTool(chat.names.path(one.param), one.type) for one in ignored]


def usage(given: Usage | None) -> ChatUsage:
    """The usage in the names of chat completions."""
    used = given or Usage()
    return ChatUsage(
        used.input_tokens,
        used.output_tokens,
        used.total_tokens,
        PromptTokensDetails(used.input_tokens_details.cached_tokens),
        CompletionTokensDetails(used.output_tokens_details.reasoning_tokens),
    )


def citations(output: Sequence[Raw]) -> list[Raw]:
    """The citations of all texts. Their indexes count from the start of the joined text."""
    found: list[Raw] = []
    offset = 0
    for message in (item for item in output if item["type"] == "message"):
        length = 0
        for part in _parts(message, "output_text"):
            found += [_annotation(one, offset + length) for one in part.get("annotations") or ()]
            length += len(part["text"])
        offset += length + len(SEPARATOR) if length else 0
    return found


def _annotation(given: Raw, offset: int) -> Raw:
    fields = {name: value for name, value in given.items() if name != "type"}
    for name in ("start_index", "end_index"):
        if isinstance(fields.get(name), int):
            fields[name] += offset
    return {"type": given["type"], given["type"]: fields}


def _texts(output: Iterable[Raw], kind: str) -> list[str]:
    """The texts, or refusals, of the messages that have some."""
    part_type = "refusal" if kind == "refusal" else "output_text"
    messages = (item for item in output if item["type"] == "message")
    joined = ("".join(part[kind] for part in _parts(message, part_type)) for message in messages)
    return [text for text in joined if text]


def _parts(message: Raw, kind: str) -> Iterator[Raw]:
    return (part for part in cast("list[Raw]", message["content"]) if part["type"] == kind)


def _reasoning_texts(output: Iterable[Raw]) -> Iterator[str]:
    for item in output:
        if item["type"] == "reasoning":
            yield from (part["text"] for part in item.get("summary") or ())
            yield from (part["text"] for part in item.get("content") or ())


def _logprobs(output: Iterable[Raw]) -> Iterator[Raw]:
    for item in output:
        if item["type"] == "message":
            for part in _parts(item, "output_text"):
                yield from part.get("logprobs") or ()


def _tool_call(item: Raw) -> ChatToolCall:
    if item["type"] == "custom_tool_call":
        custom = WrittenCustom(item["name"], item["input"])
        return ChatToolCall(id=item["call_id"], type="custom", custom=custom)
    function = WrittenFunction(item["name"], item["arguments"])
    return ChatToolCall(id=item["call_id"], type="function", function=function)
