"""Translates the events of a response to events of this wire, one content block after the other. Pure.

An item of the engine is one content block, or several: a message has one for each of its parts. Items that this wire
has no block for are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from antwort.api import events as wire
from antwort.api.events import AnyEvent, ToolProgress
from antwort.api.items import ReasoningText, UrlCitation
from antwort.api.responses import Response, Usage
from antwort.http.wires.messages import hosted
from antwort.http.wires.messages.events import (
    AnswerMessage,
    CitationsDelta,
    ContainerInfo,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Delta,
    InputJsonDelta,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    ServerToolUsage,
    SignatureDelta,
    StopReason,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)

_PART_SEPARATOR = "\n\n"
_CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
_STOP_REASONS: dict[str, StopReason] = {
    "max_output_tokens": "max_tokens",
    "content_filter": "refusal",
    "max_messages": "max_tokens",  # the client may continue
}


class ResponseFailedError(Exception):
    """The response has failed: its stream has no regular end."""


class MessageWriter:
    """The translation of one response. `stop_sequence` is read at the end.

    Without `shows_thinking` the answer has no thinking blocks: clients that did not ask for them may read the first
    block as the text.
    """

    def __init__(
        self,
        *,
        shows_thinking: bool = False,
        stop_sequence: Callable[[], str | None] = lambda: None,
        container: Callable[[str], ContainerInfo] = lambda identifier: ContainerInfo(identifier, ""),
    ) -> None:
        self._shows_thinking = shows_thinking
        self._stop_sequence = stop_sequence
        self._container = container
        self._container_id: str | None = None
        self._has_code = False
        """Whether some of the code of the open call was sent."""
        self._shell_call: dict[str, Any] = {}
        """The last call of the shell, whose result is an item of its own."""
        self._texts: dict[str, str] = {}
        """The texts of the results of web searches, by URL."""
        self._index = -1
        """Of the last block."""
        self._is_open = False
        self._reasoning_parts = 0
        """Of the open thinking block."""
        self.has_content = False

    def write(self, event: AnyEvent) -> Iterator[StreamEvent]:  # noqa: C901, PLR0912 - one case for each kind of event
        """The events for an event of the engine; `ResponseFailedError` at the end of a response that failed."""
        match event:
            case wire.OutputTextDelta() | wire.RefusalDelta():
                yield self._delta(TextDelta(event.delta))
            case wire.FunctionArgumentsDelta():
                yield self._delta(InputJsonDelta(event.delta))
            case wire.ReasoningTextDelta() | wire.SummaryTextDelta():
                if self._is_open:
                    yield self._delta(ThinkingDelta(event.delta))
            case wire.ContentPartAdded(part=ReasoningText()) | wire.SummaryPartAdded():
                self._reasoning_parts += 1
                if self._is_open and self._reasoning_parts > 1:
                    yield self._delta(ThinkingDelta(_PART_SEPARATOR))
            case wire.ContentPartAdded():
                yield self._start({"type": "text", "text": ""})
            case wire.ContentPartDone(part=ReasoningText()):
                pass
            case wire.ContentPartDone():
                yield from self._stop()
            case ToolProgress(type="response.code_interpreter_call_code.delta"):
                yield self._code_delta(event.fields["delta"])
            case ToolProgress(type="response.code_interpreter_call_code.done"):
                yield from self._end_code(event.fields["code"])
            case wire.OutputTextAnnotationAdded(annotation=UrlCitation() as cited):
                yield self._delta(CitationsDelta(hosted.citation(cited.url, cited.title, self._texts)))
            case wire.OutputItemAdded():
                yield from self._begin_item(event.item)
            case wire.OutputItemDone():
                yield from self._end_item(event.item)
            case wire.ResponseCreated():
                yield MessageStart(AnswerMessage(id=message_id(event.response.id), model=event.response.model))
            case wire.ResponseCompleted() | wire.ResponseIncomplete() | wire.ResponseFailed():
                yield from self._end(event.response)
            case _:
                pass

    def _begin_item(self, item: dict[str, Any]) -> Iterator[StreamEvent]:
        match item["type"]:
            case "function_call":
                yield self._start(tool_use(item))
            case "reasoning" if self._shows_thinking:
                self._reasoning_parts = 0
                yield self._start({"type": "thinking", "thinking": "", "signature": ""})
            case "code_interpreter_call":
                self._has_code = False
                yield self._start(hosted.server_tool_use(item, "code_execution"))
            case "shell_call":
                yield self._start(hosted.server_tool_use(item, "bash_code_execution"))
            case _:
                pass

    def _end_item(self, item: dict[str, Any]) -> Iterator[StreamEvent]:
        match item["type"]:
            case "function_call":
                yield from self._stop()
            case "reasoning" if self._is_open:
                if signature := signature_of(item):
                    yield self._delta(SignatureDelta(signature))
                yield from self._stop()
            case "code_interpreter_call":
                yield from self._end_code(item["code"] or "")
                self._container_id = hosted.container_of(item) or self._container_id
                yield from self._whole(hosted.code_result(item))
            case "shell_call":
                self._shell_call = item
                self._container_id = hosted.container_of(item) or self._container_id
                yield from self._end_call(hosted.command_input(item))
            case "shell_call_output":
                yield from self._whole(hosted.command_result(self._shell_call, item))
            case "web_search_call":
                self._texts |= {result["url"]: result["text"] for result in item.get("results") or ()}
                yield self._start(hosted.server_tool_use(item, hosted.search_name(item)))
                yield from self._end_call(hosted.search_input(item))
                yield from self._whole(hosted.search_result(item))
            case _:
                pass

    def _code_delta(self, code: str) -> StreamEvent:
        """A fragment of code, as a fragment of the JSON of the input."""
        begin, self._has_code = "" if self._has_code else '{"code": "', True
        return self._delta(InputJsonDelta(begin + msgspec.json.encode(code).decode()[1:-1]))

    def _end_code(self, code: str) -> Iterator[StreamEvent]:
        """The end of the input of a code call, once."""
        if not self._is_open:
            return
        if self._has_code:
            yield self._delta(InputJsonDelta('"}'))
            yield from self._stop()
        else:
            yield from self._end_call({"code": code})

    def _end_call(self, given: dict[str, Any]) -> Iterator[StreamEvent]:
        """The whole input of a hosted call."""
        yield self._delta(InputJsonDelta(msgspec.json.encode(given).decode()))
        yield from self._stop()

    def _whole(self, block: dict[str, Any]) -> Iterator[StreamEvent]:
        """A block that has no deltas."""
        yield self._start(block)
        yield from self._stop()

    def _start(self, block: dict[str, Any]) -> StreamEvent:
        self._index += 1
        self._is_open = self.has_content = True
        return ContentBlockStart(self._index, block)

    def _delta(self, delta: Delta) -> StreamEvent:
        return ContentBlockDelta(self._index, delta)

    def _stop(self) -> Iterator[StreamEvent]:
        if self._is_open:
            self._is_open = False
            yield ContentBlockStop(self._index)

    def _end(self, response: Response) -> Iterator[StreamEvent]:
        reason = self._stop_reason(response)
        yield from self._stop()
        sequence = self._stop_sequence() if reason == "stop_sequence" else None
        container = UNSET if self._container_id is None else self._container(self._container_id)
        yield MessageDelta(MessageEnd(reason, sequence, container), usage_of(response))
        yield MessageStop()

    def _stop_reason(self, response: Response) -> StopReason:
        if response.status == "completed":
            if any(item["type"] == "function_call" for item in response.output):
                return "tool_use"
            if any(_is_refusal(item) for item in response.output):
                return "refusal"
            return "end_turn" if self._stop_sequence() is None else "stop_sequence"
        if response.status == "incomplete" and response.incomplete_details is not None:
            return _STOP_REASONS.get(response.incomplete_details.reason, "max_tokens")
        is_full = response.error is not None and response.error.code == _CONTEXT_LENGTH_EXCEEDED
        if is_full and self.has_content:
            return "model_context_window_exceeded"
        raise ResponseFailedError


def message_id(response_id: str) -> str:
    """The id of the message of a response."""
    return "msg_" + response_id.removeprefix("resp_")


def tool_use(item: dict[str, Any]) -> dict[str, Any]:
    """The block of a function call, without its input.

    Its id is that of the item: a model may repeat the ids that it gives its calls, and clients keep one of each.
    """
    return {"type": "tool_use", "id": "toolu_" + item["id"].removeprefix("fc_"), "name": item["name"], "input": {}}


def signature_of(item: dict[str, Any]) -> str:
    """The signature of reasoning: its encrypted content, which the model's backend reads; empty if there is none."""
    encrypted = item.get("encrypted_content")
    return f"{item['id']}.{encrypted}" if isinstance(encrypted, str) and encrypted else ""


def usage_of(response: Response) -> MessageUsage:
    """The usage. Tokens that a cache provided are counted apart."""
    usage = response.usage or Usage()
    read, created = usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens
    tools = response.tool_usage
    return MessageUsage(
        input_tokens=max(0, usage.input_tokens - read - created),
        cache_creation_input_tokens=created,
        cache_read_input_tokens=read,
        output_tokens=usage.output_tokens,
        server_tool_use=UNSET if tools is UNSET else ServerToolUsage(tools.web_search.num_requests),
    )


def _is_refusal(item: dict[str, Any]) -> bool:
    return item["type"] == "message" and any(part["type"] == "refusal" for part in item["content"])
