"""Conformance suite of the `Model` port. Needs no test framework.

A subclass defines how to make a model that gives a certain answer. pytest collects the tests of the subclass; with
`unittest.TestCase` as a second base, so does unittest.

    from antwort.testing.model import ModelConformance, ModelAnswer

    class TestMyModel(ModelConformance):
        def make(self, reply):
            return MyModel(an_upstream_with(reply))

Each test has its own event loop; `make` is called before the loop runs, as at the start of a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from antwort.api.items import read
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    FREE_TEXT,
    CallPiece,
    EncryptedReasoning,
    Finished,
    FunctionSpec,
    ItemPiece,
    Model,
    ModelFault,
    ModelRequest,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)

T = TypeVar("T")

_TIMEOUT_SECONDS = 20.0
LONG_TEXT = "".join(f'Line {number} of a long answer: grüße, 世界 🎈 "quoted" \\ {{}}\n' for number in range(200))
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER_TOOL = FunctionSpec("get_weather", "The weather.", _CITY)
FREE_TEXT_TOOL = FunctionSpec("run_sql", "Runs a query.", FREE_TEXT, free_text=True)


class AnswerCall(Struct, frozen=True):
    """A complete tool call."""

    name: str
    arguments: str
    call_id: str = ""


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """A complete answer: the one that a model is made to give, and the result of `fold`."""

    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[AnswerCall, ...] = ()
    reason: Literal["stop", "length", "content_filter", "calls"] = "stop"
    usage: Usage = field(default_factory=Usage)
    summary: str = ""
    sealed: tuple[str, ...] = ()


class InvalidPieces(AssertionError):
    """The pieces violate the `Model` port."""


def fold(pieces: list[Piece]) -> ModelAnswer:
    """Fold pieces into an answer; `InvalidPieces` if they violate the port."""
    if not pieces or not isinstance(pieces[-1], Finished):
        raise InvalidPieces("the last piece must be Finished")
    if sum(isinstance(piece, Finished) for piece in pieces) != 1:
        raise InvalidPieces("only one piece may be Finished")
    calls: list[AnswerCall] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            _fold_call(piece, calls)
    if len({call.call_id for call in calls}) != len(calls):
        raise InvalidPieces("call ids must be unique")
    finished = pieces[-1]
    return ModelAnswer(
        reasoning=_join_text(pieces, ReasoningPiece),
        text=_join_text(pieces, TextPiece),
        refusal=_join_text(pieces, RefusalPiece),
        summary=_join_text(pieces, SummaryPiece),
        sealed=tuple(piece.encrypted_content for piece in pieces if isinstance(piece, EncryptedReasoning)),
        calls=tuple(calls),
        reason=finished.reason,
        usage=finished.usage,
    )


def _fold_call(piece: CallPiece, calls: list[AnswerCall]) -> None:
    if piece.index == len(calls):
        if not piece.name or not piece.call_id:
            raise InvalidPieces("the first piece of a call must have its name and its id")
        calls.append(AnswerCall(piece.name, piece.arguments, piece.call_id))
    elif 0 <= piece.index < len(calls):
        if piece.name or piece.call_id:
            raise InvalidPieces("only the first piece of a call has its name and its id")
        before = calls[piece.index]
        calls[piece.index] = AnswerCall(before.name, before.arguments + piece.arguments, before.call_id)
    else:
        raise InvalidPieces(f"call indexes must start at 0 without gaps, but one is {piece.index}")


def _join_text(pieces: list[Piece], kind: type[TextPiece | RefusalPiece | ReasoningPiece | SummaryPiece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def make_request(text: str = "Hello", *tools: FunctionSpec) -> ModelRequest:
    """A request with one message."""
    return ModelRequest(model="any", items=[read({"role": "user", "content": text})], tools=tools)


async def collect(model: Model, request: ModelRequest) -> list[Piece]:
    """Collect all pieces of an answer."""
    async with aclosing(model.generate(request)) as pieces:
        return [piece async for piece in pieces]


class ModelConformance:
    """Base class of the tests. A subclass defines `make` and `make_failing`."""

    has_usage: bool = True
    """Whether `make` can set the usage of the answer."""
    is_minimal: bool = False
    """Whether the model supports only text and single calls: no reasoning, refusal, content filter, parallel calls."""

    def make(self, reply: ModelAnswer) -> Model:
        """A new model that gives this reply to every request, also to concurrent ones."""
        raise NotImplementedError("define make() so that it returns a Model that gives this reply")

    def make_failing(self, text: str) -> Model:
        """A new model that fails during its answer, after this text."""
        raise NotImplementedError("define make_failing() so that it returns a Model that fails after this text")

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_text_is_complete(self) -> None:
        for text in ("Hello", "  spaced \n\n", LONG_TEXT):
            check_equal(self._answer(ModelAnswer(text=text)).text, text)

    def test_a_text_answer_finishes_with_stop(self) -> None:
        answer = self._answer(ModelAnswer(text="Done."))
        check_equal((answer.reason, answer.calls, answer.refusal), ("stop", (), ""))

    def test_reasoning_precedes_text(self) -> None:
        if self.is_minimal:
            return
        pieces = self._pieces(ModelAnswer(reasoning="First I think.", text="Then I speak."))
        answer = fold(pieces)
        check_equal((answer.reasoning + answer.summary, answer.text), ("First I think.", "Then I speak."))
        ordered = [piece for piece in pieces[:-1] if not isinstance(piece, (EncryptedReasoning, ItemPiece))]
        kinds = [isinstance(piece, TextPiece) for piece in ordered]
        check_equal(kinds, sorted(kinds))

    def test_a_refusal_is_not_text(self) -> None:
        if self.is_minimal:
            return
        answer = self._answer(ModelAnswer(refusal="I will not."))
        check_equal((answer.refusal, answer.text), ("I will not.", ""))

    def test_a_truncated_answer_has_its_reason(self) -> None:
        for reason in ("length",) if self.is_minimal else ("length", "content_filter"):
            check_equal(self._answer(ModelAnswer(text="Once upon a", reason=reason)).reason, reason)

    def test_an_empty_answer_is_valid(self) -> None:
        answer = self._answer(ModelAnswer())
        check_equal((answer.text, answer.calls, answer.reason), ("", (), "stop"))

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_call_is_complete(self) -> None:
        called = AnswerCall("get_weather", '{"city": "Zürich", "days": [1, 2], "note": "\\"a\\\\b\\"\\n"}')
        answer = self._answer(ModelAnswer(calls=(called,), reason="calls"), WEATHER_TOOL)
        check_equal(_decoded_calls(answer), [(called.name, msgspec.json.decode(called.arguments))])
        check_equal(answer.reason, "calls")

    def test_parallel_calls_are_separate(self) -> None:
        if self.is_minimal:
            return
        calls = tuple(AnswerCall("get_weather", f'{{"city": "{city}"}}') for city in ("Rome", "Oslo", "Rome"))
        answer = self._answer(ModelAnswer(text="I look.", calls=calls, reason="calls"), WEATHER_TOOL)
        check_equal(_decoded_calls(answer), [("get_weather", {"city": city}) for city in ("Rome", "Oslo", "Rome")])
        check_equal((answer.text, answer.reason), ("I look.", "calls"))

    def test_a_free_text_call_is_json_with_an_input(self) -> None:
        query = 'SELECT "a"\nFROM b -- ü \\ 🎈'
        called = AnswerCall("run_sql", msgspec.json.encode({"input": query}).decode())
        answer = self._answer(ModelAnswer(calls=(called,), reason="calls"), FREE_TEXT_TOOL)
        check_equal(_decoded_calls(answer), [("run_sql", {"input": query})])

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_usage_is_reported(self) -> None:
        if not self.has_usage:
            return
        usage = Usage(120, InputDetails(100), 30, OutputDetails(20), 150)
        check_equal(self._answer(ModelAnswer(text="Hello", usage=usage)).usage, usage)

    def test_longer_input_has_more_tokens(self) -> None:
        async def count(model: Model) -> None:
            short, long = make_request("Hello"), make_request("Hello " * 500)
            fewer, more = await model.count_tokens(short), await model.count_tokens(long)
            check_true(0 < fewer < more, f"counted {fewer} tokens for one word and {more} for 500")

        _run_with(self.make(ModelAnswer(text="Hi")), count)

    # ── faults and closing ───────────────────────────────────────────────────────────────────────────────────────────

    def test_a_failure_during_the_answer_is_a_fault(self) -> None:
        async def fail(model: Model) -> None:
            received: list[Piece] = []
            try:
                async with aclosing(model.generate(make_request())) as pieces:
                    async for piece in pieces:
                        received.append(piece)  # noqa: PERF401 - the pieces before the fault are needed
            except ModelFault as fault:
                check_true(bool(fault.message and fault.code), "a fault needs a message and a code")
                is_error = 400 <= fault.status < 600
                check_true(is_error, f"the status of a fault must be an HTTP error, not {fault.status}")
                check_equal(_join_text(received, TextPiece), "So far ")
                has_finished = any(isinstance(piece, Finished) for piece in received)
                check_true(not has_finished, "a failed answer must not yield Finished")
                return
            raise AssertionError("the answer failed, but no ModelFault was raised")

        _run_with(self.make_failing("So far "), fail)

    def test_an_answer_may_be_closed_early(self) -> None:
        async def close_early(model: Model) -> None:
            for _ in range(3):
                async with aclosing(model.generate(make_request())) as pieces:
                    first = [await anext(pieces), await anext(pieces)]
                    is_text = any(isinstance(piece, TextPiece) for piece in first)  # an `ItemPiece` may precede it
                    check_true(is_text, f"expected text first, not {first!r}")
            check_equal(fold(await collect(model, make_request())).text, LONG_TEXT)

        _run_with(self.make(ModelAnswer(text=LONG_TEXT)), close_early)

    def test_an_answer_may_be_cancelled(self) -> None:
        async def cancel(model: Model) -> None:
            started = asyncio.Event()

            async def read() -> None:
                async with aclosing(model.generate(make_request())) as pieces:
                    async for _ in pieces:
                        started.set()
                        await asyncio.sleep(_TIMEOUT_SECONDS)

            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            await asyncio.wait([task])
            check_true(task.cancelled(), "a cancelled answer must raise CancelledError")
            check_equal(fold(await collect(model, make_request())).text, LONG_TEXT)

        _run_with(self.make(ModelAnswer(text=LONG_TEXT)), cancel)

    def test_concurrent_answers_are_separate(self) -> None:
        async def concurrently(model: Model) -> None:
            answers = await asyncio.gather(*(collect(model, make_request()) for _ in range(8)))
            check_equal([fold(pieces).text for pieces in answers], [LONG_TEXT] * 8)

        _run_with(self.make(ModelAnswer(text=LONG_TEXT)), concurrently)

    def test_the_request_is_not_modified(self) -> None:
        async def twice(model: Model) -> None:
            request = make_request("Hello", WEATHER_TOOL)
            before = msgspec.json.encode([request.items, request.tools])
            await collect(model, request)
            await model.count_tokens(request)
            check_equal(msgspec.json.encode([request.items, request.tools]), before)

        _run_with(self.make(ModelAnswer(text="Hi")), twice)

    def test_aclose_twice_is_allowed(self) -> None:
        async def close(model: Model) -> None:
            await collect(model, make_request())
            await model.aclose()

        _run_with(self.make(ModelAnswer(text="Hi")), close)

    # ── implementation ───────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, reply: ModelAnswer, *tools: FunctionSpec) -> ModelAnswer:
        return fold(self._pieces(reply, *tools))

    def _pieces(self, reply: ModelAnswer, *tools: FunctionSpec) -> list[Piece]:
        request = make_request("Hello", *tools)
        return _run_with(self.make(reply), lambda model: collect(model, request))


def _run_with(model: Model, use: Callable[[Model], Coroutine[Any, Any, T]]) -> T:
    """Run `use` in a new event loop, with a timeout, and close the model."""

    async def run() -> T:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await use(model)
        finally:
            await model.aclose()

    return asyncio.run(run())


def _decoded_calls(answer: ModelAnswer) -> list[tuple[str, object]]:
    return [(call.name, msgspec.json.decode(call.arguments)) for call in answer.calls]


def check_true(condition: bool, message: str) -> None:  # noqa: FBT001 - an assertion that optimization does not remove
    """Fail with a message unless the condition is true."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, expected: object) -> None:
    """Fail with both values unless they are equal."""
    check_true(actual == expected, f"expected {expected!r}, got {actual!r}")
