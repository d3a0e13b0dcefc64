"""Parses a chat completions stream into pieces. Pure: chunks in, pieces out.

A server that does not stream sends one complete answer; it is parsed as a stream of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import Finished, Piece, ReasoningPiece, RefusalPiece, TextPiece
from antwort.models import upstream_errors
from antwort.models.calls import CallAssembler, CallDelta, CallWithoutName, FunctionDelta
from antwort.models.logprobs import Logprob, parse_logprobs
from antwort.models.upstream_errors import ToFault
from antwort.net.sse import ServerEvent

DONE = b"[DONE]"
FinishReason: TypeAlias = Literal["stop", "length", "content_filter", "calls"]

_TRUNCATION_REASONS = {"length": "length", "max_tokens": "length", "content_filter": "content_filter"}
_ERROR_REASONS = {"error", "abort", "aborted"}


class _Delta(Struct):
    """The delta of a chunk. `reasoning` contains text only if it is a string."""

    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class _Choice(Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    logprobs: Any = None
    stop_reason: Any = None
    """vLLM: the stop sequence that ended the answer, or the id of a token."""
    matched_stop: Any = None
    """The same of SGLang."""


class _PromptTokensDetails(Struct):
    cached_tokens: int | None = None


class _CompletionTokensDetails(Struct):
    reasoning_tokens: int | None = None


class _ChatUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptTokensDetails | None = None
    completion_tokens_details: _CompletionTokensDetails | None = None


class _ChatChunk(Struct):
    choices: list[_Choice] | None = None
    usage: _ChatUsage | None = None
    error: Any = None
    object: str | None = None


_decoder = msgspec.json.Decoder(_ChatChunk)


class ChatStream:
    """Parser of one answer. `top_logprobs` is the requested number of alternatives; None means no logprobs.

    `stop` are the stop sequences of the request.

    `to_fault` maps an error in the stream to the fault to raise.
    """

    def __init__(
        self,
        *,
        to_fault: ToFault,
        top_logprobs: int | None = None,
        stop: Sequence[str] = (),
        used_call_ids: Iterable[str] = (),
        new_call_id: Callable[[], str] = lambda: new_id("call_"),
    ) -> None:
        self._to_fault = to_fault
        self._top_logprobs = top_logprobs
        self._calls = CallAssembler(used_ids=used_call_ids, new_call_id=new_call_id)
        self._reason: str | None = None
        self._stop = stop
        self._stop_sequence: str | None = None
        self.usage: Usage | None = None
        self.is_done = False

    @property
    def is_complete(self) -> bool:
        """Whether only the usage numbers can be missing, so that a broken connection loses nothing else."""
        return self._reason is not None or self.is_done

    def read(self, event: ServerEvent) -> Iterator[Piece]:
        """The pieces of one event; `ModelFault` if it is an error or malformed."""
        if event.data.strip() == DONE:
            self.is_done = True
            return
        try:
            chunk = _decoder.decode(event.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise upstream_errors.malformed_answer() from error
        if event.name == "error" or chunk.error or chunk.object == "error":
            raise self._to_fault(upstream_errors.parse_error_body(event.data))
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            if not choice.index:
                yield from self._read_choice(choice)

    def close(self) -> Iterator[Piece]:
        """The pending calls and `Finished`; `ModelFault` if the stream ended early."""
        if not self.is_complete:
            raise upstream_errors.answer_truncated()
        try:
            yield from self._calls.close()
        except CallWithoutName as error:
            raise upstream_errors.malformed_answer() from error
        yield Finished(self._finish_reason(), self.usage or Usage(), self._stop_sequence)

    def _read_choice(self, choice: _Choice) -> Iterator[Piece]:
        delta = choice.delta or choice.message
        if delta is not None:
            yield from _reasoning_pieces(delta)
            yield from _text_pieces(delta, parse_logprobs(_logprob_entries(choice.logprobs), self._top_logprobs))
            for call in _call_deltas(delta):
                yield from self._calls.add(call)
        if choice.finish_reason:
            self._reason = _finish_reason_text(choice.finish_reason)
            said = choice.stop_reason or choice.matched_stop
            self._stop_sequence = said if said in self._stop else None
            if self._reason in _ERROR_REASONS:
                raise upstream_errors.upstream_failed()

    def _finish_reason(self) -> FinishReason:
        match _TRUNCATION_REASONS.get(self._reason or ""):
            case "length":
                return "length"
            case "content_filter":
                return "content_filter"
            case _:
                return "calls" if self._calls else "stop"


def _reasoning_pieces(delta: _Delta) -> Iterator[Piece]:
    """The reasoning, from the older or the newer field; some servers send both."""
    text = delta.reasoning_content or delta.reasoning
    if text and isinstance(text, str):
        yield ReasoningPiece(text)


def _logprob_entries(logprobs: object) -> object:
    return cast("dict[str, object]", logprobs).get("content") if isinstance(logprobs, dict) else None


def _text_pieces(delta: _Delta, logprobs: tuple[Logprob, ...]) -> Iterator[Piece]:
    content = delta.content
    text = content if isinstance(content, str) else "".join(_texts(content or ()))
    if text or (logprobs and content is not None):
        yield TextPiece(text, logprobs)
    if delta.refusal:
        yield RefusalPiece(delta.refusal)


def _texts(parts: Iterable[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        if isinstance(text := part.get("text"), str):
            yield text


def _call_deltas(delta: _Delta) -> list[CallDelta]:
    """The call fragments, including the legacy `function_call`."""
    calls = list(delta.tool_calls or ())
    if delta.function_call is not None:
        calls.append(CallDelta(index=0, function=delta.function_call))
    return calls


def _finish_reason_text(given: object) -> str:
    """A string; some servers send an object with a `type`."""
    if isinstance(given, dict):
        return str(given.get("type"))  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType] - any JSON
    return str(given)


def _usage(given: _ChatUsage) -> Usage:
    input_tokens, output_tokens = given.prompt_tokens or 0, given.completion_tokens or 0
    cached = given.prompt_tokens_details.cached_tokens if given.prompt_tokens_details else 0
    reasoning = given.completion_tokens_details.reasoning_tokens if given.completion_tokens_details else 0
    return Usage(
        input_tokens,
        InputDetails(cached or 0),
        output_tokens,
        OutputDetails(reasoning or 0),
        input_tokens + output_tokens,
    )
