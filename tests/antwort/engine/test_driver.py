from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing, contextmanager
from typing import Any

import pytest
from engine_runs import US, WAIT, FakeModel, events_of, running, search
from fixtures_turn import EchoCall, EchoTools, check_grammar
from fold import fold
from stream_grammar import check_stream
from waiting import wait_until_async

from antwort.api.events import AnyEvent, ResponseFailed, kind_of
from antwort.api.requests import ContextManagement
from antwort.engine.background import Background
from antwort.engine.checkpoint.state import read_checkpoint
from antwort.engine.event_buffer import EventBuffer
from antwort.engine.ports import (
    Finished,
    ModelFault,
    TextPiece,
)
from antwort.engine.stores import StoreFault
from antwort.net.sse import decode_frame

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_events_are_numbered_and_the_response_is_the_last_one(tmp_path):
    async with running(tmp_path, FakeModel([TextPiece("Hel"), TextPiece("lo"), Finished()])) as run:
        events = await events_of(run)

    check_grammar(events)
    assert run.response.status == "completed"
    assert run.response.output[0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    "failure, message",
    [
        ([ModelFault("The model is busy.", code="rate_limit_exceeded")], "The model is busy."),
        ([ValueError("a secret of the model's")], "The model failed."),
        ([], "The model stopped in the middle of its answer."),
    ],
)
async def test_a_model_that_fails_fails_the_response(tmp_path, failure, message):
    async with running(tmp_path, FakeModel([TextPiece("Half"), *failure])) as run:
        events = await events_of(run)

    assert [kind_of(event) for event in events[-2:]] == ["error", "response.failed"]
    last = events[-1]
    assert isinstance(last, ResponseFailed)
    assert last.response.error is not None
    assert last.response.error.message == message
    assert run.fault is not None


async def test_the_generator_of_the_model_is_closed_after_finished(tmp_path):
    model = FakeModel([TextPiece("x"), Finished(), TextPiece("after the end")])
    async with running(tmp_path, model) as run:
        await events_of(run)

    assert model.stopped == 1


async def test_a_call_is_run_and_the_model_is_asked_again(tmp_path):
    model = FakeModel([search("apples"), Finished("calls")], [TextPiece("Found."), Finished()])
    async with running(tmp_path, model) as run:
        check_grammar(await events_of(run))

    assert (model.requests, model.stopped) == (2, 2)
    assert [item["status"] for item in run.response.output] == ["completed", "completed"]


@pytest.mark.parametrize("query", ["raise", "end"])
async def test_a_tool_that_fails_is_a_failed_call_and_the_model_continues(tmp_path, query):
    model = FakeModel([search(query), Finished("calls")], [TextPiece("Well."), Finished()])
    async with running(tmp_path, model) as run:
        check_grammar(await events_of(run))

    assert [(item["type"], item["status"]) for item in run.response.output] == [
        ("file_search_call", "failed"),
        ("message", "completed"),
    ]


@pytest.mark.parametrize(
    "reply, last",
    [
        ([TextPiece("Half"), WAIT], "response.output_text.delta"),
        ([search("wait"), Finished("calls")], "response.file_search_call.searching"),
    ],
)
async def test_cancelling_stops_the_model_and_the_tool_and_keeps_the_partial_output(tmp_path, reply, last):
    model, seen = FakeModel(reply), asyncio.Event()

    async def listen() -> None:
        async for event in run.events():
            if kind_of(event) == last:
                seen.set()

    async with running(tmp_path, model) as run:
        listening = asyncio.create_task(listen())
        await asyncio.wait_for(seen.wait(), 10)
        listening.cancel()
        await asyncio.wait([listening])

        assert listening.cancelled()
        assert model.stopped == 1
        assert run.response.status == "cancelled"
        assert [item["status"] for item in run.response.output] == ["incomplete"]


async def test_closing_the_generator_cancels_the_response(tmp_path):
    model = FakeModel([TextPiece("a"), TextPiece("b"), Finished()])
    async with running(tmp_path, model) as run:
        async with aclosing(run.events()) as events:
            async for event in events:
                if kind_of(event) == "response.output_text.delta":
                    break

        assert model.stopped == 1
        assert run.response.status == "cancelled"


async def test_tools_are_leased_until_the_last_event(tmp_path):
    for ends in (True, False):
        tools = EchoTools()
        model = FakeModel([search("a"), Finished("calls")], [TextPiece("half"), Finished() if ends else WAIT])
        async with running(tmp_path / str(ends), model, tools) as run:
            assert tools.leases == 0
            async with aclosing(run.events()) as events:
                async for event in events:
                    assert tools.leases == 1
                    if not ends and kind_of(event) == "response.output_text.delta":
                        break
            assert tools.leases == 0


async def test_nothing_runs_before_the_previous_event_was_consumed(tmp_path):
    model = FakeModel([TextPiece("a"), Finished()])
    async with running(tmp_path, model) as run, aclosing(run.events()) as events:
        await anext(events)
        await anext(events)
        await asyncio.sleep(0.02)
        assert model.requests == 0
        await anext(events)
        assert model.requests == 1


class RaisingTools(EchoTools):
    """Raises in the named method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def annotator(self):
        if self._method == "annotator":
            raise RuntimeError("a secret of the tool's")
        return super().annotator()

    @contextmanager
    def lease(self):
        if self._method == "lease":
            raise RuntimeError("a secret of the tool's")
        yield
        if self._method == "release":
            raise RuntimeError("a secret of the tool's")

    async def open(self, name, call_id, arguments):
        if self._method == "open":
            raise RuntimeError("a secret of the tool's")
        return await super().open(name, call_id, arguments)


@pytest.mark.parametrize("method", ["open", "annotator", "lease", "release"])
@pytest.mark.parametrize("background", [False, True])
async def test_a_provider_that_raises_never_fails_the_response(tmp_path, method, background):
    model = FakeModel(
        [TextPiece("Let me see."), search("apples"), Finished("calls")], [TextPiece("Found."), Finished()]
    )
    async with running(tmp_path, model, RaisingTools(method), background=background) as run:
        events = await events_of(run)

        assert kind_of(events[-1]) == "response.completed"
        call = "failed" if method == "open" else "completed"
        assert [item["status"] for item in run.response.output] == ["completed", call, "completed"]
        stored = await run.store.get_response(US, run.response.id)
        assert stored is not None
        assert stored.response == run.response
        assert "secret" not in str(events)
        assert model.stopped == 2


@pytest.mark.parametrize("background", [False, True])
async def test_a_defect_fails_the_response_and_its_last_event_says_so(tmp_path, background):
    model = FakeModel([TextPiece("Hello"), Finished()])
    async with running(tmp_path, model, background=background) as run:
        run.turn._now = lambda: 1 // 0
        events = await events_of(run)

        assert [kind_of(event) for event in events[-2:]] == ["error", "response.failed"]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        stored = await run.store.get_response(US, run.response.id)
        assert stored is not None
        assert stored.response == run.response
        assert run.response.status == "failed"
        assert run.fault is not None
        assert run.fault.status == 500
        frames = await run.store.read_events(US, run.response.id, -1)
        assert (b"response.failed" in b"".join(frame for _, frame in frames)) is background


async def test_the_events_of_a_driven_turn_fold_to_the_response(tmp_path):
    model = FakeModel(
        [TextPiece("Let me see."), search("apples"), Finished("calls")], [TextPiece("Found."), Finished()]
    )
    async with running(tmp_path, model) as run:
        assert fold(await events_of(run)) == run.response


@pytest.mark.parametrize("consumed", range(12))
async def test_a_cancelled_background_response_has_a_complete_event_stream(tmp_path, consumed):
    """Consumed and final events together are one stream, wherever it is cut."""
    model = FakeModel([TextPiece("Hello"), TextPiece("!"), Finished()])
    async with running(tmp_path, model, background=True) as run:
        events: list[AnyEvent] = []
        async with aclosing(run.events()) as stream:
            async for event in stream:
                events.append(event)
                if len(events) > consumed:
                    break
        frames = await run.store.read_events(US, run.response.id, -1)
        ended_by_itself = kind_of(events[-1]) == "response.completed"
        numbers = [*range(len(events) - ended_by_itself), *(number for number, _ in frames)]

        assert numbers == list(range(len(numbers)))
        assert decode_frame(frames[-1][1])[0] == ("response.completed" if ended_by_itself else "response.incomplete")


async def test_a_model_that_raises_when_closed_keeps_its_reply(tmp_path):
    class Clinging(FakeModel):
        async def generate(self, request):
            try:
                async for piece in super().generate(request):
                    yield piece
            finally:
                raise RuntimeError("a secret of the model's")

    async with running(tmp_path, Clinging([TextPiece("Hello"), Finished(), TextPiece("more")])) as run:
        assert (await run.finish()).status == "completed"


class UncountingModel(FakeModel):
    """A model whose tokenizer fails."""

    async def count_tokens(self, request) -> int:
        raise ModelFault("The tokenizer is down.")


async def test_a_tokenizer_that_fails_does_not_fail_a_response_with_compaction(tmp_path):
    managed = [ContextManagement("compaction", 1000)]
    async with running(tmp_path, UncountingModel([TextPiece("Hello"), Finished()]), context_management=managed) as run:
        events = await events_of(run)

    check_grammar(events)
    assert run.response.status == "completed"


# ── durable before effect ────────────────────────────────────────────────────────────────────────────────────────────


class WatchedCall(EchoCall):
    """A call that reports when it runs."""

    def __init__(self, identifier: str, on_run: Callable[[], Awaitable[None]]) -> None:
        super().__init__(identifier)
        self._on_run = on_run

    async def run(self):
        await self._on_run()
        async for step in super().run():
            yield step


class WatchedTools(EchoTools):
    """Tools whose calls report when they run."""

    def __init__(self, on_run: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._on_run = on_run

    async def open(self, name, call_id, arguments):
        return WatchedCall("fs_1", self._on_run)


class RefusingSteps:
    """A store that refuses events and steps while it `is_refusing`."""

    def __init__(self, store) -> None:
        self._store = store
        self.is_refusing = False
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_events(self, owner, response_id, events, steps=()) -> None:
        if self.is_refusing:
            self.refusals += 1
            raise StoreFault("The store failed: the disk is full.")
        await self._store.append_events(owner, response_id, events, steps)


async def test_a_call_is_run_when_its_begin_and_all_events_before_it_are_stored(tmp_path):
    stored: list[Any] = []

    async def on_run():
        frames = await run.store.read_events(US, run.response.id, -1)
        stored.append(
            (await run.store.read_steps(US, run.response.id), [decode_frame(frame)[0] for _, frame in frames])
        )

    model = FakeModel([TextPiece("Hm."), search("apples"), Finished("calls")], [TextPiece("Found."), Finished()])
    async with running(tmp_path, model, WatchedTools(on_run), background=True) as run:
        background = Background(run.store)
        background.launch(run)
        async with aclosing(background.follow(US, run.response.id, -1)) as frames:
            numbers = [decode_frame(frame)[0] async for frame in frames]
        left = await run.store.read_steps(US, run.response.id)

    [(steps, kinds)] = stored
    checkpoint = read_checkpoint(steps)
    assert checkpoint is not None
    assert checkpoint.begun is not None
    assert checkpoint.begun.item["id"] == "fs_1"
    assert [item["type"] for item in checkpoint.items] == ["message"]
    assert kinds[-1] == "response.file_search_call.in_progress"
    assert kinds == numbers[: len(kinds)]
    assert checkpoint.sequence == len(kinds) - 1
    assert left == []


async def test_a_call_whose_begin_the_store_refuses_for_too_long_is_not_run(tmp_path):
    runs: list[str] = []

    async def on_run():
        runs.append("ran")

    model = FakeModel([search("apples"), Finished("calls")])
    async with running(tmp_path, model, WatchedTools(on_run), background=True) as run:
        store: Any = RefusingSteps(run.store)
        run.event_buffer = EventBuffer(store, US, run.response.id)
        run.event_buffer.flush_timeout = 0.05
        store.is_refusing = True
        background = Background(run.store)
        ended = asyncio.Event()
        background.launch(run, on_end=ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        events = [
            json.loads(decode_frame(frame)[1]) for _, frame in await run.store.read_events(US, run.response.id, -1)
        ]
        found = await run.store.get_response(US, run.response.id)

    assert runs == []
    assert store.refusals > 0
    assert found is not None
    response = found.response
    assert (response.status, [item["status"] for item in response.output]) == ("failed", ["incomplete"])
    assert response.error is not None
    assert "could not store that a tool call begins" in response.error.message
    check_stream(events, background=True)


async def test_a_call_waits_for_a_store_that_refuses_for_a_while(tmp_path):
    runs: list[str] = []

    async def on_run():
        runs.append("ran")

    model = FakeModel([search("apples"), Finished("calls")], [TextPiece("Found."), Finished()])
    async with running(tmp_path, model, WatchedTools(on_run), background=True) as run:
        store: Any = RefusingSteps(run.store)
        run.event_buffer = EventBuffer(store, US, run.response.id)
        store.is_refusing = True
        background = Background(run.store)
        ended = asyncio.Event()
        background.launch(run, on_end=ended.set)
        await wait_until_async(lambda: store.refusals > 1)
        assert runs == []
        store.is_refusing = False
        await asyncio.wait_for(ended.wait(), 10)

    assert runs == ["ran"]
    assert run.response.status == "completed"
