"""Hosted calls of one reply that run at the same time, through the driver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
from engine_runs import US, FakeModel, events_of, running
from fake_echo_provider import EchoProvider
from fixtures_turn import EchoCall, EchoTools, PairCall, check_grammar
from fold import fold
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.events import ToolProgress, kind_of
from antwort.api.tools import ApplyPatchTool
from antwort.engine.hosted.guarded import GuardedCall, NamedCall
from antwort.engine.hosted.running import RunningCalls
from antwort.engine.ports import CallPiece, Finished, NextItem, Progress, TextPiece, ToolDone
from antwort.tools import ToolRegistry
from antwort.tools.client_run import ClientRunProvider

pytestmark = pytest.mark.anyio

OnRun = Callable[[str], Awaitable[None]]


@pytest.fixture
def anyio_backend():
    return "asyncio"


class KeyedCall(EchoCall):
    """A call that tells when it runs. Its arguments are its name, with its key behind a colon."""

    def __init__(self, identifier: str, on_run: OnRun) -> None:
        super().__init__(identifier)
        self._on_run = on_run

    @property
    def serial_key(self) -> str | None:
        return self._arguments.partition(":")[2] or None

    async def run(self) -> AsyncIterator[Progress | NextItem | ToolDone]:
        await self._on_run(self._arguments)
        async for step in super().run():
            yield step


class KeyedTools(EchoTools):
    def __init__(self, on_run: OnRun) -> None:
        super().__init__()
        self._on_run = on_run

    async def open(self, name, call_id, arguments):
        self.opened += 1
        return KeyedCall(f"fs_{self.opened}", self._on_run)


def reply(*arguments: str) -> FakeModel:
    calls = [CallPiece(at, "file_search", f"call_{at}", text) for at, text in enumerate(arguments)]
    return FakeModel([TextPiece("I look."), *calls, Finished("calls")], [TextPiece("Done."), Finished()])


async def test_calls_of_one_reply_run_at_the_same_time_and_their_items_keep_their_order(tmp_path):
    together = asyncio.Barrier(3)

    async def meet(_: str) -> None:
        await together.wait()

    async with running(tmp_path, reply("a", "b", "c"), KeyedTools(meet)) as run:
        events = await asyncio.wait_for(events_of(run), 20)

    check_grammar(events)
    assert fold(events).output == run.response.output
    calls = [item for item in run.response.output if item["type"] == "file_search_call"]
    assert [item["queries"] for item in calls] == [["a"], ["b"], ["c"]]


async def test_calls_with_the_same_key_run_one_after_another(tmp_path):
    at_once: dict[str, int] = {}
    order: list[str] = []
    other = asyncio.Event()

    async def count(arguments: str) -> None:
        name, _, key = arguments.partition(":")
        order.append(name)
        at_once[key] = at_once.get(key, 0) + 1
        assert at_once[key] == 1
        if name == "c":
            other.set()
        await other.wait()  # of another key: it does not wait for the first one
        at_once[key] -= 1

    async with running(tmp_path, reply("a:x", "b:x", "c:y"), KeyedTools(count)) as run:
        check_grammar(await asyncio.wait_for(events_of(run), 20))

    assert order.index("a") < order.index("b")
    assert [item["status"] for item in run.response.output] == ["completed"] * 5


async def test_a_failure_of_one_call_changes_no_other(tmp_path):
    async def fail(arguments: str) -> None:
        if arguments == "b":
            raise RuntimeError("a secret of the tool's")

    async with running(tmp_path, reply("a", "b", "c"), KeyedTools(fail)) as run:
        check_grammar(await events_of(run))

    assert [item["status"] for item in run.response.output[1:4]] == ["completed", "failed", "completed"]


@pytest.mark.parametrize("arguments", [("a",), ("a", "b", "c")])
async def test_a_tool_that_cancels_itself_fails_its_own_call_only(tmp_path, arguments):
    async def cancel(name: str) -> None:
        if name == "a":
            raise asyncio.CancelledError

    async with running(tmp_path, reply(*arguments), KeyedTools(cancel)) as run:
        check_grammar(await asyncio.wait_for(events_of(run), 20))

    others = ["completed"] * len(arguments)
    assert [item["status"] for item in run.response.output] == ["completed", "failed", *others]


async def test_a_tool_that_cancels_itself_while_it_begins_a_call_fails_that_call_only(tmp_path):
    class Tools(EchoTools):
        async def open(self, name, call_id, arguments):
            raise asyncio.CancelledError

    async with running(tmp_path, reply("a"), Tools()) as run:
        check_grammar(await asyncio.wait_for(events_of(run), 20))

    assert [item["status"] for item in run.response.output] == ["completed", "failed", "completed"]


@pytest.mark.parametrize("order", ["sps", "spsp", "spps", "pss", "ssp"])
async def test_calls_of_the_client_between_calls_that_run_at_the_same_time(tmp_path, order):
    """`s` is a search, which runs here, and `p` a patch, which the client applies."""
    kinds = {
        "s": ("file_search", {"query": "q"}, "file_search_call"),
        "p": ("apply_patch", {"type": "delete_file", "path": "x"}, "apply_patch_call"),
    }
    calls = [CallPiece(at, kinds[one][0], f"call_{at}", json.dumps(kinds[one][1])) for at, one in enumerate(order)]
    model = FakeModel([*calls, Finished("calls")])
    tools = ToolRegistry([EchoProvider(), ClientRunProvider()])
    async with running(tmp_path, model, tools, [ApplyPatchTool()]) as run:
        check_grammar(await asyncio.wait_for(events_of(run), 20))

    assert run.response.status == "completed"
    assert [item["type"] for item in run.response.output] == [kinds[one][2] for one in order]


async def test_cancelling_stops_all_calls_and_each_has_an_item(tmp_path):
    running_now: set[str] = set()

    async def wait(arguments: str) -> None:
        running_now.add(arguments)
        try:
            await asyncio.Event().wait()
        finally:
            running_now.discard(arguments)

    async with running(tmp_path, reply("a", "b", "c"), KeyedTools(wait)) as run:
        listening = asyncio.create_task(events_of(run))
        async with asyncio.timeout(20):
            while len(running_now) < 3:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait([listening])

    assert running_now == set()
    assert run.response.status == "cancelled"
    assert [item["status"] for item in run.response.output] == ["completed"] + ["incomplete"] * 3


@pytest.mark.parametrize("arguments", [("a",), ("a", "b")])
async def test_cancelling_twice_stores_the_end(tmp_path, arguments):
    started, stopping = asyncio.Event(), asyncio.Event()

    async def stop_slowly(_: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await asyncio.Event().wait()

    async with running(tmp_path, reply(*arguments), KeyedTools(stop_slowly)) as run:
        listening = asyncio.create_task(events_of(run))
        for reached in (started, stopping):
            await asyncio.wait_for(reached.wait(), 20)
            listening.cancel()
        await asyncio.wait([listening])
        stored = await run.store.get_response(US, run.response.id)

    assert stored is not None
    assert stored.response.status == "cancelled"


async def test_cancelling_ends_the_first_item_of_a_call_whose_second_one_was_not_sent(tmp_path):
    has_second = asyncio.Event()

    class Pair(PairCall):
        def write(self, delta: str) -> list[Progress]:
            super().write(delta)
            return [Progress("response.shell_call_command.delta", {"delta": delta}, has_item_id=False)]

        async def run(self) -> AsyncIterator[Progress | NextItem | ToolDone]:
            if self._arguments == "a":
                await asyncio.Event().wait()
            async for step in super().run():
                if isinstance(step, ToolDone):
                    has_second.set()
                    await asyncio.Event().wait()
                yield step

    class Tools(EchoTools):
        async def open(self, name, call_id, arguments):
            self.opened += 1
            return Pair(f"fs_{self.opened}")

    async with running(tmp_path, reply("a", "b"), Tools()) as run:
        seen = []

        async def listen() -> None:
            async for event in run.events():
                seen.append(event)  # noqa: PERF401 - those before the cancellation, too

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(has_second.wait(), 20)
        listening.cancel()
        await asyncio.wait([listening])

    events = [*seen, *run._final_events]
    check_grammar(events)
    commands = [event for event in events if kind_of(event) == "response.shell_call_command.delta"]
    assert [(event.item_id, event.output_index, event.fields["delta"]) for event in commands] == [
        (None, 1, "a"),
        (None, 2, "b"),
    ]
    assert [item["id"] for item in run.response.output[1:]] == ["fs_1", "fs_2"]
    assert {item["status"] for item in run.response.output[1:]} == {"incomplete"}


async def test_a_reader_that_stops_reads_no_call_further(tmp_path):
    """A call that is not read keeps a number of its steps, and then waits."""
    produced = 0

    class Endless(EchoCall):
        async def run(self):
            nonlocal produced
            for _ in range(10_000):
                produced += 1
                yield Progress("response.file_search_call.searching")
            yield ToolDone({**self.item, "status": "completed"}, "done")

    class Tools(EchoTools):
        async def open(self, name, call_id, arguments):
            self.opened += 1
            return Endless(f"fs_{self.opened}")

    async with running(tmp_path, reply("a", "b"), Tools()) as run, aclosing(run.events()) as events:
        async for event in events:
            if kind_of(event) == "response.file_search_call.searching":
                break
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert produced < 200


class Steps(EchoCall):
    """A call with a number of steps, some of which wait."""

    def __init__(self, name: str, key: str, waits: list[bool]) -> None:
        super().__init__(f"fs_{name}")
        self._key = key
        self._waits = waits

    @property
    def serial_key(self) -> str | None:
        return self._key or None

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        for at, waits in enumerate(self._waits):
            if waits:
                await asyncio.sleep(0)
            yield Progress("response.x", {"step": at})
        yield ToolDone({**self.item, "status": "completed"}, "done")


CALLS = st.lists(
    st.tuples(st.sampled_from(["", "x", "y"]), st.lists(st.booleans(), max_size=90)), min_size=2, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(CALLS)
async def test_any_calls_are_read_whole_in_order(drawn):
    """Whatever keys and numbers of steps: no reader waits for ever, and no step is lost or belongs to another call."""
    guarded = []
    for at, (key, waits) in enumerate(drawn):
        call = Steps(str(at), key, waits)
        guarded.append(GuardedCall("file_search", call.item, call))
    named = [NamedCall(call, "file_search", f"call_{at}") for at, call in enumerate(guarded)]
    keys = [key for key, _ in drawn]
    beside = [one for at, one in enumerate(named) if at and (not keys[at] or keys[at] not in keys[:at])]
    runner = RunningCalls()
    async with asyncio.timeout(20):
        for at, (one, (_, waits)) in enumerate(zip(named, drawn, strict=True)):
            runner.begin(one, beside if at == 0 else ())
            one.call.output_index = at
            seen = []
            while isinstance(step := await runner.next_step(one.call), ToolProgress):
                seen.append((step.item_id, step.output_index, step.fields["step"]))
            assert seen == [(f"fs_{at}", at, number) for number in range(len(waits))]
            assert isinstance(step, ToolDone)
        await runner.aclose()
