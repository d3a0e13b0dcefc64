"""One answer of a small model: what it is asked next, and what its words mean. Pure.

It speaks until it stops, or until it opens a fence; then the words are those of a call. What must be
JSON is held to its schema by a grammar while it is written; what must be a call begins behind
its fence. So nothing that comes out of here can be malformed, however small the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.api.responses import InputDetails, Usage
from antwort.engine.ports import (
    CallPiece,
    Finished,
    ModelRequest,
    MustCall,
    Piece,
    TextPiece,
)
from antwort.models.embedded.prompt import (
    SHOWN,
    Fence,
    failures,
    fences,
    looking,
    must_answer,
    of_code,
    repair_of,
    unfounded,
)
from antwort.models.logprobs import Logprob

_ANSWER: Final = "```json\n"
_CLOSING: Final = ("\n```", "```")
_LONGEST: Final = 2048
_FORCED: Final = "The answer is"
_ANYTHING: Final[dict[str, Any]] = {"type": "object"}
_LARGEST: Final = 2**53 - 1
_VALUES: Final = {"const", "default", "enum", "examples"}

State: TypeAlias = Literal["choose", "speak", "json", "code", "arguments", "over"]


class Ask(Struct, frozen=True, kw_only=True):
    """One completion: what stands there so far, where to stop, and what the words are held to."""

    prompt: str
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    grammar: str | None = None
    limit: int = _LONGEST


class Ended(Struct, frozen=True):
    """How a completion ended, and what it cost."""

    word: str = ""
    cut: bool = False
    read: int = 0
    cached: int = 0
    written: int = 0


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose integers have an end: a grammar would let a small model write digits for ever."""
    limits: dict[str, Any] = {}
    if schema.get("type") == "integer":
        limits |= {} if "exclusiveMinimum" in schema else {"minimum": -_LARGEST}
        limits |= {} if "exclusiveMaximum" in schema else {"maximum": _LARGEST}
    return {**limits, **{name: part if name in _VALUES else _bounded(part) for name, part in schema.items()}}


def _bounded(part: object) -> object:
    match part:
        case dict():
            return bounded(cast("dict[str, Any]", part))
        case list():
            return [_bounded(one) for one in cast("list[object]", part)]
        case _:
            return part


class Turn:
    """An answer under way. Ask what `next` says, `read` the words, tell it how they `end`; then again."""

    def __init__(self, request: ModelRequest, prompt: str, mint: Callable[[], str] = lambda: new_id("call_")) -> None:
        self._request = request
        self._mint = mint
        self._stuck = request.choice == "auto" and must_answer(request)
        self._fences = () if must_answer(request) else fences(request.tools)
        self._prompt = prompt
        self._words: list[str] = []
        self._call: Fence | None = None
        self._lead = ""
        self._left = request.max_output_tokens
        self._usage = Usage()
        self._reason: Literal["stop", "length", "calls"] = "stop"
        names = {fence.spec.name for fence in self._fences} if request.choice == "required" else unfounded(request)
        self._begin = tuple(fence for fence in self._fences if fence.spec.name in names)
        self._state: State = self._first()

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────

    def _first(self) -> State:
        choice = self._request.choice
        if isinstance(choice, MustCall):
            return self._open(next(fence for fence in self._fences if fence.spec.name == choice.name))
        code = of_code(self._fences)
        if code is not None and (state := self._led(code)) is not None:
            return state
        if len(self._begin) == 1:
            return self._open(self._begin[0])
        if self._fences and (self._begin or self._schema() is not None):
            return "choose"
        return self._speak() if self._schema() is None else self._answer()

    def _led(self, code: Fence) -> State | None:
        """What is not left to the model, because it would rather make an answer up: to look, to compute, to repair."""
        look = looking(self._request) if self._request.choice == "auto" else "no"
        if look == "now":
            self._call, self._lead, self._reason = code, SHOWN.look, "calls"
            return "over"
        if failed := failures(self._request):
            self._lead = f"{repair_of(failed[0])}\n"
        return self._open(code) if look == "just" or failed else None

    def _speak(self) -> State:
        if self._stuck:  # else it would write the same block once more
            self._lead = _FORCED
            self._prompt += _FORCED
        return "speak"

    def _open(self, fence: Fence) -> State:
        self._call = fence
        self._prompt += fence.opening + self._lead
        return "code" if fence.code else "arguments"

    def _answer(self) -> State:
        self._prompt += _ANSWER
        return "json"

    def _schema(self) -> dict[str, Any] | None:
        wanted = self._request.format
        if isinstance(wanted, JsonSchemaFormat):
            return wanted.schema
        return _ANYTHING if isinstance(wanted, JsonObjectFormat) else None

    def opening(self) -> Iterator[Piece]:
        """What is certain before anything is asked: a call that is forced."""
        if self._call is not None:
            yield from self._begin_call()
            if self._state == "over":
                yield CallPiece(0, arguments='"}')
        elif self._lead:
            yield TextPiece(self._lead)

    def next(self) -> Ask | None:
        """The next completion; None after the last."""
        limit = _LONGEST if self._left is None else max(1, min(_LONGEST, self._left))
        match self._state:
            case "choose":
                return Ask(prompt=self._prompt, grammar=self._choices(), limit=limit)
            case "speak":
                return Ask(prompt=self._prompt, stop=tuple(fence.opening for fence in self._fences), limit=limit)
            case "json":
                return Ask(prompt=self._prompt, schema=bounded(self._schema() or _ANYTHING), limit=limit)
            case "code":
                return Ask(prompt=self._prompt, stop=_CLOSING, limit=limit)
            case "arguments":
                parameters = self._call.spec.parameters if self._call is not None else None
                return Ask(prompt=self._prompt, schema=bounded(parameters or _ANYTHING), limit=limit)
            case _:
                return None

    def _choices(self) -> str:
        openings = [fence.opening for fence in self._begin or self._fences]
        if not self._begin:
            openings.append(_ANSWER)
        return "root ::= " + " | ".join(json.dumps(opening) for opening in openings)

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> Iterator[Piece]:
        """The pieces of some more words."""
        if self._state == "code" and not self._words:
            text = text.lstrip(" ")  # a space behind the fence would be an indentation
        if not text:
            return
        self._words.append(text)
        if self._state in ("speak", "json"):
            yield TextPiece(text, logprobs)
        elif self._state == "code":
            yield CallPiece(0, arguments=json.dumps(text, ensure_ascii=False)[1:-1])
        elif self._state == "arguments":
            yield CallPiece(0, arguments=text)

    def end(self, ended: Ended) -> Iterator[Piece]:
        """The pieces of the end of a completion; the state moves on."""
        self._count(ended)
        words, self._words = "".join(self._words), []
        self._prompt += words
        if ended.cut and self._state != "choose":
            self._reason, self._state = "length", "over"
        elif self._state == "choose":
            yield from self._chosen(words)
        elif self._state == "speak" and (fence := self._opened_by(ended.word)) is not None:
            self._state = self._open(fence)
            yield from self._begin_call()
        else:
            if self._state == "code":
                yield CallPiece(0, arguments='"}')
            self._reason = "calls" if self._call is not None else "stop"
            self._state = "over"

    def finished(self) -> Finished:
        """The last piece."""
        return Finished(self._reason, self._usage)

    def _chosen(self, words: str) -> Iterator[Piece]:
        self._prompt = self._prompt.removesuffix(words)
        fence = self._opened_by(words)
        if fence is None:
            self._state = self._answer()
        else:
            self._state = self._open(fence)
            yield from self._begin_call()

    def _opened_by(self, word: str) -> Fence | None:
        return next((fence for fence in self._fences if fence.opening == word), None)

    def _begin_call(self) -> Iterator[Piece]:
        assert self._call is not None  # noqa: S101 - for the type checker: whoever asks has just opened it
        begun = '{"code": "' + json.dumps(self._lead, ensure_ascii=False)[1:-1] if self._call.code else ""
        yield CallPiece(0, self._call.spec.name, self._mint(), begun)

    def _count(self, ended: Ended) -> None:
        if not self._usage.input_tokens:
            self._usage.input_tokens = ended.read
            self._usage.input_tokens_details = InputDetails(cached_tokens=min(ended.cached, ended.read))
        self._usage.output_tokens += ended.written
        self._usage.total_tokens = self._usage.input_tokens + self._usage.output_tokens
        if self._left is not None:
            self._left -= ended.written
