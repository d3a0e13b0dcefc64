"""The stream of a chat server, as pieces. Pure: chunks in, pieces out.

A server that does not stream although it was asked to sends one whole answer; it is
read as a stream of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    Finished,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from antwort.models import upstream_errors
from antwort.models.calls import CallAssembler, CallDelta, FunctionDelta, NamelessCall
from antwort.models.logprobs import Logprob, read_logprobs
from antwort.net.sse import ServerEvent

DONE = b"[DONE]"
Reason: TypeAlias = Literal["stop", "length", "content_filter", "calls"]

_CUT = {"length": "length", "max_tokens": "length", "content_filter": "content_filter"}
_BROKEN = {"error", "abort", "aborted"}


class _Delta(Struct):
    """What a chunk adds to the answer. `reasoning` is a string where it is the reasoning."""

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


class _Cached(Struct):
    cached_tokens: int | None = None


class _Reasoned(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoned | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None


_decoder = msgspec.json.Decoder(_Chunk)


class ChatStream:
    """One answer under way. `logprobs` is how many likely tokens were asked for beside each, if any were."""

    def __init__(
        self,
        *,
        model: str,
        logprobs: int | None = None,
        taken: Iterable[str] = (),
        mint: Callable[[], str] = lambda: new_id("call_"),
    ) -> None:
        self._model = model
        self._logprobs = logprobs
        self._calls = CallAssembler(taken=taken, mint=mint)
        self._reason: str | None = None
        self.usage: Usage | None = None
        self.done = False

    @property
    def complete(self) -> bool:
        """Whether nothing is missing but the numbers: a connection may break now."""
        return self._reason is not None or self.done

    def read(self, event: ServerEvent) -> Iterator[Piece]:
        """The pieces of one event; `ModelFault` where it is an error, or nothing that we know."""
        if event.data.strip() == DONE:
            self.done = True
            return
        try:
            chunk = _decoder.decode(event.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise upstream_errors.garbled() from error
        if event.name == "error" or chunk.error or chunk.object == "error":
            raise upstream_errors.broke_off(upstream_errors.read_body(event.data), model=self._model)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            if not choice.index:
                yield from self._choice(choice)

    def close(self) -> Iterator[Piece]:
        """What was held back, and the end; `ModelFault` where the answer never came to one."""
        if not self.complete:
            raise upstream_errors.cut_off()
        try:
            yield from self._calls.close()
        except NamelessCall as error:
            raise upstream_errors.garbled() from error
        yield Finished(self._finish(), self.usage or Usage())

    def _choice(self, choice: _Choice) -> Iterator[Piece]:
        delta = choice.delta or choice.message
        if delta is not None:
            yield from _thoughts(delta)
            yield from _speech(delta, read_logprobs(_content(choice.logprobs), self._logprobs))
            for call in _call_deltas(delta):
                yield from self._calls.add(call)
        if choice.finish_reason:
            self._reason = _reason(choice.finish_reason)
            if self._reason in _BROKEN:
                raise upstream_errors.broken()

    def _finish(self) -> Reason:
        match _CUT.get(self._reason or ""):
            case "length":
                return "length"
            case "content_filter":
                return "content_filter"
            case _:
                return "calls" if self._calls else "stop"


def _thoughts(delta: _Delta) -> Iterator[Piece]:
    """The reasoning, in the older field or the newer; a server in between sends both."""
    text = delta.reasoning_content or delta.reasoning
    if text and isinstance(text, str):
        yield ReasoningPiece(text)


def _content(logprobs: object) -> object:
    return cast("dict[str, object]", logprobs).get("content") if isinstance(logprobs, dict) else None


def _speech(delta: _Delta, logprobs: tuple[Logprob, ...]) -> Iterator[Piece]:
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
    """The calls; also the one of servers from before there could be several."""
    calls = list(delta.tool_calls or ())
    if delta.function_call is not None:
        calls.append(CallDelta(index=0, function=delta.function_call))
    return calls


def _reason(given: object) -> str:
    """Mostly a word; an object with a `type` on some servers."""
    if isinstance(given, dict):
        return str(given.get("type"))  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType] - any JSON
    return str(given)


def _usage(given: _Usage) -> Usage:
    read, written = given.prompt_tokens or 0, given.completion_tokens or 0
    cached = given.prompt_tokens_details.cached_tokens if given.prompt_tokens_details else 0
    thought = given.completion_tokens_details.reasoning_tokens if given.completion_tokens_details else 0
    return Usage(read, InputDetails(cached or 0), written, OutputDetails(thought or 0), read + written)
