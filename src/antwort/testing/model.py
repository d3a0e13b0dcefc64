"""What every `Model` must do, as tests that any implementation can run. Needs no test framework.

pytest collects them from a subclass that makes a model which gives a certain answer; with
`unittest.TestCase` as a second base, so does unittest.

    from antwort.models.conformance import ModelConformance, WholeAnswer

    class TestMyModel(ModelConformance):
        def make(self, reply):
            return MyModel(an_upstream_that_says(reply))

Each test has an event loop of its own; `make` is called before it runs, as a server does at its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from antwort.api.items import read
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    Finished,
    FunctionSpec,
    Model,
    ModelFault,
    ModelRequest,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)

_PATIENCE = 20.0
LONG = "".join(f'Line {number} of a long answer: grüße, 世界 🎈 "quoted" \\ {{}}\n' for number in range(200))
WEATHER = FunctionSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
FREE = FunctionSpec(
    "run_sql",
    "Runs a query.",
    {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    free_text=True,
)


class Called(Struct, frozen=True):
    """A call, whole."""

    name: str
    arguments: str
    call_id: str = ""


class WholeAnswer(Struct, frozen=True, kw_only=True):
    """An answer, whole. A model is made to give one, and its pieces are folded into one."""

    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[Called, ...] = ()
    reason: Literal["stop", "length", "content_filter", "calls"] = "stop"
    usage: Usage = field(default_factory=Usage)
    summary: str = ""
    sealed: tuple[str, ...] = ()


class BrokenAnswer(AssertionError):
    """Pieces that are no answer."""


def fold(pieces: list[Piece]) -> WholeAnswer:
    """The answer that pieces add up to. What breaks the rules of the port is a `BrokenAnswer`."""
    if not pieces or not isinstance(pieces[-1], Finished):
        raise BrokenAnswer("the last piece must be Finished")
    if sum(isinstance(piece, Finished) for piece in pieces) != 1:
        raise BrokenAnswer("only one piece may be Finished")
    calls: list[Called] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            _fold_call(piece, calls)
    if len({call.call_id for call in calls}) != len(calls):
        raise BrokenAnswer("each call needs an id of its own")
    finished = pieces[-1]
    return WholeAnswer(
        reasoning=_joined(pieces, ReasoningPiece),
        text=_joined(pieces, TextPiece),
        refusal=_joined(pieces, RefusalPiece),
        summary=_joined(pieces, SummaryPiece),
        sealed=tuple(piece.encrypted_content for piece in pieces if isinstance(piece, EncryptedReasoning)),
        calls=tuple(calls),
        reason=finished.reason,
        usage=finished.usage,
    )


def _fold_call(piece: CallPiece, calls: list[Called]) -> None:
    if piece.index == len(calls):
        if not piece.name or not piece.call_id:
            raise BrokenAnswer("the first piece of a call must have its name and its id")
        calls.append(Called(piece.name, piece.arguments, piece.call_id))
    elif 0 <= piece.index < len(calls):
        if piece.name or piece.call_id:
            raise BrokenAnswer("only the first piece of a call has its name and its id")
        before = calls[piece.index]
        calls[piece.index] = Called(before.name, before.arguments + piece.arguments, before.call_id)
    else:
        raise BrokenAnswer(f"calls are counted from 0 without gaps, but one has index {piece.index}")


def _joined(pieces: list[Piece], kind: type[TextPiece | RefusalPiece | ReasoningPiece | SummaryPiece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def asking(text: str = "Hello", *tools: FunctionSpec) -> ModelRequest:
    """A request with one message."""
    return ModelRequest(model="any", items=[read({"role": "user", "content": text})], tools=tools)


async def collect(model: Model, request: ModelRequest) -> list[Piece]:
    """All pieces of an answer."""
    async with aclosing(model.generate(request)) as pieces:
        return [piece async for piece in pieces]


class ModelConformance:
    """Subclass it, and let `make` return a model that gives this reply to whatever it is asked."""

    has_usage: bool = True
    """Whether the model can be made to say a certain usage."""
    plain: bool = False
    """Whether it only speaks and calls, one call at a time: no reasoning, no refusals, nothing that is filtered."""

    def make(self, reply: WholeAnswer) -> Model:
        """A new model; it must give this reply any number of times, also at once."""
        raise NotImplementedError("define make() so that it returns a Model that gives this reply")

    def make_failing(self, text: str) -> Model:
        """A new model; it must fail in the middle of its answer, after this text."""
        raise NotImplementedError("define make_failing() so that it returns a Model that fails after this text")

    # ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────

    def test_text_comes_whole(self) -> None:
        for text in ("Hello", "  spaced \n\n", LONG):
            equal(self._ask(WholeAnswer(text=text)).text, text)

    def test_a_plain_answer_has_stopped(self) -> None:
        answer = self._ask(WholeAnswer(text="Done."))
        equal((answer.reason, answer.calls, answer.refusal), ("stop", (), ""))

    def test_reasoning_comes_before_what_is_said(self) -> None:
        if self.plain:
            return
        pieces = self._pieces(WholeAnswer(reasoning="First I think.", text="Then I speak."))
        answer = fold(pieces)
        equal((answer.reasoning + answer.summary, answer.text), ("First I think.", "Then I speak."))
        kinds = [isinstance(piece, TextPiece) for piece in pieces[:-1] if not isinstance(piece, EncryptedReasoning)]
        equal(kinds, sorted(kinds))

    def test_a_refusal_is_no_text(self) -> None:
        if self.plain:
            return
        answer = self._ask(WholeAnswer(refusal="I will not."))
        equal((answer.refusal, answer.text), ("I will not.", ""))

    def test_an_answer_that_is_cut_short_says_so(self) -> None:
        for reason in ("length",) if self.plain else ("length", "content_filter"):
            equal(self._ask(WholeAnswer(text="Once upon a", reason=reason)).reason, reason)

    def test_an_empty_answer_is_an_answer(self) -> None:
        answer = self._ask(WholeAnswer())
        equal((answer.text, answer.calls, answer.reason), ("", (), "stop"))

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_call_comes_whole(self) -> None:
        called = Called("get_weather", '{"city": "Zürich", "days": [1, 2], "note": "\\"a\\\\b\\"\\n"}')
        answer = self._ask(WholeAnswer(calls=(called,), reason="calls"), WEATHER)
        equal(_as_made(answer), [(called.name, msgspec.json.decode(called.arguments))])
        equal(answer.reason, "calls")

    def test_several_calls_stay_apart(self) -> None:
        if self.plain:
            return
        calls = tuple(Called("get_weather", f'{{"city": "{city}"}}') for city in ("Rome", "Oslo", "Rome"))
        answer = self._ask(WholeAnswer(text="I look.", calls=calls, reason="calls"), WEATHER)
        equal(_as_made(answer), [("get_weather", {"city": city}) for city in ("Rome", "Oslo", "Rome")])
        equal((answer.text, answer.reason), ("I look.", "calls"))

    def test_a_call_of_a_tool_with_free_text_is_json_with_an_input(self) -> None:
        query = 'SELECT "a"\nFROM b -- ü \\ 🎈'
        called = Called("run_sql", msgspec.json.encode({"input": query}).decode())
        answer = self._ask(WholeAnswer(calls=(called,), reason="calls"), FREE)
        equal(_as_made(answer), [("run_sql", {"input": query})])

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_usage_is_passed_on(self) -> None:
        if not self.has_usage:
            return
        usage = Usage(120, InputDetails(100), 30, OutputDetails(20), 150)
        equal(self._ask(WholeAnswer(text="Hello", usage=usage)).usage, usage)

    def test_more_input_has_more_tokens(self) -> None:
        async def count(model: Model) -> None:
            short, long = asking("Hello"), asking("Hello " * 500)
            fewer, more = await model.count_tokens(short), await model.count_tokens(long)
            check(0 < fewer < more, f"counted {fewer} tokens for a word, and {more} for five hundred")

        self._with(lambda: self.make(WholeAnswer(text="Hi")), count)

    # ── faults and lifetimes ─────────────────────────────────────────────────────────────────────────────────────────

    def test_a_failure_in_the_middle_is_a_fault(self) -> None:
        async def fail(model: Model) -> None:
            said: list[Piece] = []
            try:
                async with aclosing(model.generate(asking())) as pieces:
                    async for piece in pieces:
                        said.append(piece)  # noqa: PERF401 - what came before the fault counts
            except ModelFault as fault:
                check(bool(fault.message and fault.code), "a fault needs a message and a code")
                check(400 <= fault.status < 600, f"a fault has a status of an error, not {fault.status}")
                equal("".join(piece.text for piece in said if isinstance(piece, TextPiece)), "So far ")
                check(not any(isinstance(piece, Finished) for piece in said), "what fails is not Finished")
                return
            raise AssertionError("the answer failed, but no ModelFault was raised")

        self._with(lambda: self.make_failing("So far "), fail)

    def test_an_answer_may_be_left_and_another_asked_for(self) -> None:
        async def leave(model: Model) -> None:
            for _ in range(3):
                async with aclosing(model.generate(asking())) as pieces:
                    async for piece in pieces:
                        check(isinstance(piece, TextPiece), f"expected text first, not {piece!r}")
                        break
            equal(fold(await collect(model, asking())).text, LONG)

        self._with(lambda: self.make(WholeAnswer(text=LONG)), leave)

    def test_an_answer_may_be_cancelled(self) -> None:
        async def cancel(model: Model) -> None:
            begun = asyncio.Event()

            async def ask() -> None:
                async with aclosing(model.generate(asking())) as pieces:
                    async for _ in pieces:
                        begun.set()
                        await asyncio.sleep(_PATIENCE)

            task = asyncio.create_task(ask())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            check(task.cancelled(), "a cancelled answer ends cancelled, and in no other way")
            equal(fold(await collect(model, asking())).text, LONG)

        self._with(lambda: self.make(WholeAnswer(text=LONG)), cancel)

    def test_answers_at_once_do_not_mix(self) -> None:
        async def both(model: Model) -> None:
            several = await asyncio.gather(*(collect(model, asking()) for _ in range(8)))
            equal([fold(pieces).text for pieces in several], [LONG] * 8)

        self._with(lambda: self.make(WholeAnswer(text=LONG)), both)

    def test_a_request_is_not_changed(self) -> None:
        async def twice(model: Model) -> None:
            request = asking("Hello", WEATHER)
            before = msgspec.json.encode([request.items, request.tools])
            await collect(model, request)
            await model.count_tokens(request)
            equal(msgspec.json.encode([request.items, request.tools]), before)

        self._with(lambda: self.make(WholeAnswer(text="Hi")), twice)

    def test_closing_twice_is_no_mistake(self) -> None:
        async def close(model: Model) -> None:
            await collect(model, asking())
            await model.aclose()

        self._with(lambda: self.make(WholeAnswer(text="Hi")), close)

    # ── how it is done ───────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, reply: WholeAnswer, *tools: FunctionSpec) -> WholeAnswer:
        return fold(self._pieces(reply, *tools))

    def _pieces(self, reply: WholeAnswer, *tools: FunctionSpec) -> list[Piece]:
        found: list[Piece] = []

        async def ask(model: Model) -> None:
            found.extend(await collect(model, asking("Hello", *tools)))

        self._with(lambda: self.make(reply), ask)
        return found

    def _with(self, make: Callable[[], Model], use: Callable[[Model], Coroutine[Any, Any, None]]) -> None:
        model = make()

        async def run() -> None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await use(model)
            finally:
                await model.aclose()

        asyncio.run(run())


def _as_made(answer: WholeAnswer) -> list[tuple[str, object]]:
    return [(call.name, msgspec.json.decode(call.arguments)) for call in answer.calls]


def check(holds: bool, message: str) -> None:  # noqa: FBT001 - an assertion that optimization does not remove
    """Fail with a message unless something holds."""
    if not holds:
        raise AssertionError(message)


def equal(actual: object, expected: object) -> None:
    """Fail with both sides unless they are the same."""
    check(actual == expected, f"expected {expected!r}, got {actual!r}")
