"""Scripted model: answers from a YAML script, for tests and offline examples. It contains no language model.

`script` documents the file format.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    GivenCustomToolCall,
    GivenFunctionCall,
    GivenMessage,
    GivenReasoning,
    GivenText,
    InputText,
    Item,
    Refusal,
)
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.api.token_estimate import TokenEstimator
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    Finished,
    ModelFault,
    ModelRequest,
    MustCall,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.models.replay_hosted_calls import replay_call, replay_message, replay_output
from antwort.models.scripted.script import (
    MARKER_RE,
    Condition,
    ReplyStep,
    Script,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedUsage,
    find_all,
    pattern_matches,
)
from antwort.models.tokens import estimate_request, estimate_usage, generated_text

_PIECE_TYPES: tuple[tuple[str, Callable[[str], Piece]], ...] = (
    ("text", TextPiece),
    ("refusal", RefusalPiece),
    ("reasoning", ReasoningPiece),
    ("summary", SummaryPiece),
)
_MAX_REQUESTS = 100
_CALL_TYPES = ("function_call", "custom_tool_call")


class Scripted:
    """A model that answers from a script. `requests` contains the last requests, for tests."""

    def __init__(
        self,
        script: Script,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_requests: int = _MAX_REQUESTS,
    ) -> None:
        self.requests: deque[ModelRequest] = deque(maxlen=max_requests)
        self._script = script
        self._sleep = sleep
        self._uses: Counter[int] = Counter()

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """The first answer of the script that matches and has uses left."""
        self.requests.append(request)
        summary = summarize(request)
        answer = self._choose(summary)
        size = self._script.fragment if answer.fragment is None else answer.fragment
        written, calls = TokenEstimator(), 0
        for step in answer.reply:
            if isinstance(step.delay, float | int):
                await self._sleep(step.delay)
            elif not isinstance(step.fault, msgspec.UnsetType):
                raise step.fault.to_model_fault()
            else:
                for piece in _pieces(step, summary, size, calls):
                    written.add(generated_text(piece))
                    yield _with_logprobs(piece, request.top_logprobs)
                    await asyncio.sleep(0)  # as with a real model, other tasks run between pieces
                calls += isinstance(step.call, ScriptedCall)
        usage = _usage(answer.usage) if answer.usage else estimate_usage(request, written.tokens)
        yield Finished(answer.finish or ("calls" if calls else "stop"), usage)

    async def count_tokens(self, request: ModelRequest) -> int:
        """An estimate: a script has no tokenizer."""
        return estimate_request(request)

    async def aclose(self) -> None:
        """Does nothing: there are no resources."""

    def _choose(self, summary: RequestSummary) -> ScriptedAnswer:
        for index, answer in enumerate(self._script.answers):
            if matches(answer.when, summary) and (answer.times is None or self._uses[index] < answer.times):
                self._uses[index] += 1
                return answer
        raise ModelFault("The script of this scripted model has no answer for this request.", status=500)


class RequestSummary(Struct, frozen=True, dict=True):
    """The properties of a request that `when` can match."""

    text: str
    output: str
    turn: int
    tools: frozenset[str]
    request: ModelRequest

    @cached_property
    def visible(self) -> str:
        """Everything that the model sees of the request. Collected on first use: most scripts do not need it."""
        texts = (text for item in self.request.items for text in _visible_texts(item))
        return "\n".join(filter(None, (self.request.instructions, *texts)))


def summarize(request: ModelRequest) -> RequestSummary:
    """The last user text, the last call output, the turn and the tools of a request."""
    start = max((index for index, item in enumerate(request.items) if _is_user_message(item)), default=-1)
    text = _message_text(request.items[start]) if start >= 0 else ""
    output, turn, in_calls = "", 1, False
    for item in request.items[start + 1 :]:
        new_output = _call_output(item)
        hosted = replay_call(item)
        is_call = item.type in _CALL_TYPES or hosted is not None
        turn += is_call and not in_calls
        in_calls = is_call and (hosted is None or hosted.output is None)
        output = output if new_output is None else new_output
    return RequestSummary(text, output, turn, frozenset(tool.name for tool in request.tools), request)


def matches(when: Condition, summary: RequestSummary) -> bool:
    """Whether a request fulfils an answer's condition."""
    return (
        (when.text is None or pattern_matches(when.text, summary.text))
        and (when.output is None or pattern_matches(when.output, summary.output))
        and (when.turn is None or when.turn == summary.turn)
        and (when.tool is None or when.tool in summary.tools)
        and (when.choice is None or when.choice == _choice(summary.request))
        and (when.any is None or pattern_matches(when.any, summary.visible))
    )


def _choice(request: ModelRequest) -> str:
    return request.choice.name if isinstance(request.choice, MustCall) else request.choice


def _is_user_message(item: Item) -> bool:
    return isinstance(item.known, GivenMessage) and item.known.role == "user"


def _message_text(item: Item) -> str:
    content = item.known.content if isinstance(item.known, GivenMessage) else ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, (InputText, GivenText)))


def _visible_texts(item: Item) -> Iterator[str | None]:
    """The texts of an item that a model sees."""
    match item.known:
        case GivenMessage(content=str(text)):
            yield text
        case GivenMessage(content=list(parts)):
            texts = (part.refusal if isinstance(part, Refusal) else getattr(part, "text", None) for part in parts)
            yield from texts  # images and files have none
        case GivenReasoning() as reasoning:
            yield reasoning.text
        case GivenFunctionCall(arguments=arguments):
            yield arguments
        case GivenCustomToolCall(input=text):
            yield text
        case _:
            hosted = replay_call(item)
            yield hosted.arguments if hosted is not None else None
            yield _call_output(item)
            yield replay_message(item)


def _call_output(item: Item) -> str | None:
    if isinstance(item.known, (FunctionCallOutput, CustomToolCallOutput)):
        output = item.known.output
        if isinstance(output, str):
            return output
        return "\n".join(part.text for part in output if isinstance(part, InputText))
    hosted = replay_call(item)
    return hosted.output if hosted is not None else replay_output(item)


def _pieces(step: ReplyStep, summary: RequestSummary, size: int, index: int) -> Iterator[Piece]:
    for name, kind in _PIECE_TYPES:
        text = getattr(step, name)
        if isinstance(text, str):
            yield from map(kind, _split(_substitute(text, summary), size))
    if isinstance(step.sealed, str):
        yield EncryptedReasoning(step.sealed)
    if isinstance(step.call, ScriptedCall):
        first, *rest = list(_split(_arguments(step.call, summary), size)) or [""]
        yield CallPiece(index, step.call.name, step.call.id or new_id("call_"), first)
        yield from (CallPiece(index, arguments=part) for part in rest)


def _with_logprobs(piece: Piece, top_logprobs: int | None) -> Piece:
    """Add logprobs if requested: each fragment is one token with probability 1."""
    if top_logprobs is None or not isinstance(piece, TextPiece):
        return piece
    token: dict[str, Any] = {"token": piece.text, "bytes": list(piece.text.encode()), "logprob": 0.0}
    return TextPiece(piece.text, ({**token, "top_logprobs": [token][:top_logprobs]},))


def _split(text: str, size: int) -> Iterator[str]:
    size = size or max(1, len(text))
    return (text[start : start + size] for start in range(0, len(text), size))


def _arguments(call: ScriptedCall, summary: RequestSummary) -> str:
    if isinstance(call.arguments, str):
        return _substitute(call.arguments, summary)
    return msgspec.json.encode(_substitute_all(call.arguments, summary)).decode()


def _substitute_all(value: Any, summary: RequestSummary) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return _substitute(value, summary)
    if isinstance(value, dict):
        return {name: _substitute_all(inner, summary) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType] - any JSON
    if isinstance(value, list):
        return [_substitute_all(inner, summary) for inner in value]  # pyright: ignore[reportUnknownVariableType] - any JSON
    return value


def _substitute(text: str, summary: RequestSummary) -> str:
    """Replace the markers. What is inserted is not searched for markers again."""

    def replacement(marker: re.Match[str]) -> str:
        if marker["pattern"] is not None:
            return find_all(marker["pattern"], summary.visible)
        return summary.text if marker["name"] == "text" else summary.output

    return MARKER_RE.sub(replacement, text)


def _usage(usage: ScriptedUsage) -> Usage:
    return Usage(
        usage.input_tokens,
        InputDetails(usage.cached_tokens),
        usage.output_tokens,
        OutputDetails(usage.reasoning_tokens),
        usage.input_tokens + usage.output_tokens,
    )
