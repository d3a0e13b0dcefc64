"""Folds the messages of the Claude Agent SDK into replies, tool results and the final result. No I/O.

The SDK's message classes are distinguished by name and read by attribute, so that this module needs no SDK. One reply
of the model arrives as stream events (usage, deltas) and as one `AssistantMessage` per content block, all with the same
message id. The CLI also writes messages of its own; what is neither a reply nor the result of a known call is ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from weakincentives.adapters.turn import ModelReply, ToolCall
from weakincentives.budget import TokenUsage
from weakincentives.runtime.events import DeltaKind

STRUCTURED_OUTPUT = "StructuredOutput"
"""The tool that the CLI adds for `output_format`. Its call is the answer."""

SERVER = "wink"
_PREFIX = f"mcp__{SERVER}__"
_SYNTHETIC_MODEL = "<synthetic>"  # of messages that the CLI writes in place of a reply, after an API error
_DELTA_FIELDS: Mapping[str, tuple[DeltaKind, str]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("reasoning", "thinking"),
    "input_json_delta": ("arguments", "partial_json"),
}
_INPUT_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replied:
    """One reply of the model is complete."""

    reply: ModelReply


@dataclass(frozen=True, slots=True)
class Streamed:
    """A piece of a reply."""

    kind: DeltaKind
    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """The result of a call, as the model reads it. `value` is the structured result, if the CLI gives one."""

    call: ToolCall
    text: str
    is_error: bool
    value: object


@dataclass(frozen=True, slots=True)
class RunResult:
    """The last message of a run. `usage` is that of all requests, with those of the CLI's own, as far as it says."""

    subtype: str
    is_error: bool
    text: str | None
    structured_output: object
    stop_reason: str | None
    api_status: int | None
    errors: tuple[str, ...]
    session_id: str | None
    usage: TokenUsage


Step: TypeAlias = Replied | Streamed | ToolReturned | RunResult


@dataclass(slots=True)
class _OpenReply:
    """A reply whose blocks are arriving."""

    texts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    answer: object = None


@dataclass
class MessageReader:
    """Yields the steps of a run from its messages. `own_calls` are the ids of calls of the prompt's tools."""

    own_calls: set[str] = field(default_factory=set[str])
    _calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    _open: dict[str, _OpenReply] = field(default_factory=dict[str, _OpenReply])
    _streaming_id: str | None = None
    _returned: list[ToolReturned] = field(default_factory=list[ToolReturned])

    def read(self, message: object) -> Iterator[Step]:
        """The steps that a message completes."""
        if getattr(message, "parent_tool_use_id", None) is not None:
            return  # of a sub-agent
        match type(message).__name__:
            case "StreamEvent":
                yield from self._read_event(cast("dict[str, Any]", _get(message, "event", {})))
            case "AssistantMessage":
                self._read_blocks(message)
            case "UserMessage":
                self._returned += self._read_results(message)
                if self._streaming_id is None:  # the CLI runs a call while the rest of its reply arrives
                    yield from self._complete()
            case "ResultMessage":
                yield from self._complete()
                yield run_result(message)
            case "SystemMessage":
                _log_system_message(message)
            case _:
                pass  # such as rate limits and hook events

    def _read_event(self, event: dict[str, Any]) -> Iterator[Step]:
        match event.get("type"):
            case "message_start":
                yield from self._complete()  # a reply that broke off
                started: dict[str, Any] = event.get("message") or {}
                self._streaming_id = started.get("id")
                if self._streaming_id is not None:
                    self._reply(self._streaming_id).usage.update(_given(started.get("usage")))
            case "message_delta" if self._streaming_id is not None:
                self._reply(self._streaming_id).usage.update(_given(event.get("usage")))
            case "message_stop" if self._streaming_id is not None:
                self._streaming_id = None
                yield from self._complete()
            case "content_block_delta":
                delta: dict[str, Any] = event.get("delta") or {}
                if (known := _DELTA_FIELDS.get(delta.get("type", ""))) is not None:
                    item_id = f"{self._streaming_id or 'message'}:{event.get('index', 0)}"
                    yield Streamed(known[0], item_id, str(delta.get(known[1], "")))
            case _:
                pass

    def _read_blocks(self, message: object) -> None:
        if _get(message, "model") == _SYNTHETIC_MODEL or _get(message, "error") is not None:
            return  # the text of an error; the result message has it too
        reply = self._reply(_get(message, "message_id") or "message")
        for name, value in _given(_get(message, "usage")).items():
            reply.usage.setdefault(name, value)
        for block in _get(message, "content") or ():
            match type(block).__name__:
                case "TextBlock":
                    reply.texts.append(block.text)
                case "ToolUseBlock" if block.name == STRUCTURED_OUTPUT:
                    reply.answer = block.input
                case "ToolUseBlock":
                    call = ToolCall(block.id, tool_name(block.name), json.dumps(block.input, ensure_ascii=False))
                    self._calls[call.call_id] = call
                    self.own_calls |= {call.call_id} if is_own_tool(block.name) else set()
                    reply.calls.append(call)
                case _:
                    pass  # thinking

    def _reply(self, message_id: str) -> _OpenReply:
        return self._open.setdefault(message_id, _OpenReply())

    def _complete(self) -> Iterator[Step]:
        """Complete the replies that are open, in order, and usually one; then the results of their calls."""
        opened, self._open = self._open, {}
        for reply in opened.values():
            text = "".join(reply.texts) or None
            if reply.answer is not None:
                text = json.dumps(reply.answer, ensure_ascii=False)
            yield Replied(ModelReply(text=text, calls=tuple(reply.calls), usage=token_usage(reply.usage)))
        returned, self._returned = self._returned, []
        yield from returned

    def _read_results(self, message: object) -> Iterator[ToolReturned]:
        content: object = _get(message, "content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        results = [block for block in blocks if type(block).__name__ == "ToolResultBlock"]
        for block in results:
            call = self._calls.get(block.tool_use_id)
            if call is not None:
                value = _get(message, "tool_use_result") if len(results) == 1 else None
                yield ToolReturned(call, _text_of(block.content), bool(block.is_error), value)


def run_result(message: object) -> RunResult:
    """The result message of a run."""
    return RunResult(
        subtype=str(_get(message, "subtype")),
        is_error=bool(_get(message, "is_error")),
        text=_get(message, "result"),
        structured_output=_get(message, "structured_output"),
        stop_reason=_get(message, "stop_reason"),
        api_status=_get(message, "api_error_status"),
        errors=tuple(str(error) for error in _get(message, "errors") or ()),
        session_id=_get(message, "session_id"),
        usage=_total_usage(_get(message, "model_usage")),
    )


def tool_name(name: str) -> str:
    """The name of a tool in the prompt, for the name under which the model calls it."""
    return name.removeprefix(_PREFIX)


def qualified_name(name: str) -> str:
    """The name under which the model calls a tool of the prompt."""
    return _PREFIX + name


def is_own_tool(name: str) -> bool:
    """Whether this is the qualified name of a tool of the prompt."""
    return name.startswith(_PREFIX)


def token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """The usage of one reply. The wire counts cached tokens apart from `input_tokens`."""
    return TokenUsage(
        input_tokens=sum(_count(usage.get(name)) for name in _INPUT_FIELDS),
        output_tokens=_count(usage.get("output_tokens")),
        cached_tokens=_count(usage.get("cache_read_input_tokens")),
    )


def _total_usage(model_usage: object) -> TokenUsage:
    models = cast("dict[str, Any]", model_usage) if isinstance(model_usage, dict) else {}
    total = TokenUsage()
    for usage in models.values():
        cached = _count(usage.get("cacheReadInputTokens"))
        total += TokenUsage(
            input_tokens=_count(usage.get("inputTokens")) + cached + _count(usage.get("cacheCreationInputTokens")),
            output_tokens=_count(usage.get("outputTokens")),
            cached_tokens=cached,
        )
    return total


def _text_of(content: object) -> str:
    """The text of a tool result; other blocks are named."""
    if isinstance(content, list):
        blocks = cast("Iterable[dict[str, Any]]", content)
        return "\n".join(block.get("text") or f"[{block.get('type', 'unknown')}]" for block in blocks)
    return content if isinstance(content, str) else ""


def _log_system_message(message: object) -> None:
    subtype = _get(message, "subtype")
    data: dict[str, Any] = _get(message, "data") or {}
    if subtype == "api_retry":
        _logger.info("the CLI retries a request: %s", {name: data.get(name) for name in ("attempt", "error")})
    elif subtype == "compact_boundary":
        _logger.info("the CLI compacted its history: %s", data.get("compact_metadata"))


def _given(usage: object) -> dict[str, Any]:
    known = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    return {name: value for name, value in known.items() if value is not None}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _get(message: object, name: str, default: object = None) -> Any:  # noqa: ANN401 - an attribute of an SDK class
    return getattr(message, name, default)
