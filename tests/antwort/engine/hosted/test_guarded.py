from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_echo_provider import PreparedEcho, RealEchoCall

from antwort.api.events import ToolProgress
from antwort.api.items import FileCitation
from antwort.api.tools import FileSearchTool
from antwort.engine.hosted.guarded import GuardedCall, HostedTool, HostedTools, RefusedCall
from antwort.engine.ports import CallRefused, ToolDone, WholeCall

pytestmark = pytest.mark.anyio

FAILED = "The tool failed. Try another way, or answer without it."


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Bug(Exception):
    """An unexpected exception of a provider."""


class BuggyCall(RealEchoCall):
    """Raises in the named methods."""

    def __init__(self, *methods: str) -> None:
        self._methods = methods
        super().__init__()
        self.closed = False

    def _maybe_raise(self, method: str) -> None:
        if method in self._methods:
            raise Bug

    @property
    def item(self):
        self._maybe_raise("item")
        return {"type": "file_search_call"} if "id" in self._methods else super().item

    def started_events(self):
        self._maybe_raise("started_events")
        return super().started_events()

    def write(self, delta):
        self._maybe_raise("write")
        return super().write(delta)

    def run(self):
        self._maybe_raise("run")
        return self._run()

    async def _run(self) -> AsyncGenerator[Any]:
        try:
            self._maybe_raise("first step")
            if "not a step" in self._methods:
                yield "not a step"
            if "no item" in self._methods:
                yield ToolDone(None, "done")  # pyright: ignore[reportArgumentType] - what a provider may do wrong
            async for step in super().run():
                yield step
            yield ToolDone({}, "after the end")
        finally:
            self.closed = True
            self._maybe_raise("close")

    def failed(self, reason):
        self._maybe_raise("failed")
        return super().failed(reason)


class BuggyAnnotator:
    """Cites in each part, and at the end. Raises in the named methods."""

    def __init__(self, *methods: str) -> None:
        self._methods = methods

    def feed(self, delta):
        if "feed" in self._methods:
            raise Bug
        return [FileCitation("file-1", delta, 0)]

    def finish(self, text):
        if "finish" in self._methods:
            raise Bug
        return [FileCitation("file-1", text, 0)]


class BuggyTool(PreparedEcho):
    """A prepared tool that raises in the named methods, as do its calls."""

    def __init__(self, *methods: str) -> None:
        super().__init__(FileSearchTool(vector_store_ids=["vs_1"]))
        self._methods = methods
        self.calls: list[BuggyCall] = []

    def _maybe_raise(self, method: str) -> None:
        if method in self._methods:
            raise Bug

    async def open(self, name, call_id, arguments):
        self._maybe_raise("open")
        self.calls.append(BuggyCall(*self._methods))
        return self.calls[-1]

    def annotator(self):
        self._maybe_raise("annotator")
        return BuggyAnnotator(*self._methods)

    @contextmanager
    def lease(self):
        self._maybe_raise("lease")
        yield
        self._maybe_raise("release")


def hosted(*tools: BuggyTool) -> HostedTools:
    return HostedTools({i: HostedTool("file_search", tool, (), reads_files=False) for i, tool in enumerate(tools)})


class RefusingTool(BuggyTool):
    """Refuses every call, the second one because it is broken."""

    async def open(self, name, call_id, arguments):
        del name, arguments
        raise CallRefused(f"Not {call_id}.", is_broken=call_id == "call_2")


async def test_a_refused_call_has_a_reason_and_no_item():
    tools = hosted(RefusingTool())
    refused = [await tools.open(0, WholeCall("file_search", call_id, "{}")) for call_id in ("call_1", "call_2")]

    assert refused == [RefusedCall("Not call_1.", is_broken=False), RefusedCall("Not call_2.", is_broken=True)]


async def run_call(tool: BuggyTool):
    """Run a call to its end: its first item, the types of its events, and its result."""
    call = await hosted(tool).open(0, WholeCall("file_search", "call_1", ""))
    assert isinstance(call, GuardedCall)
    call.output_index = 3
    events = [*call.started_events(), *call.write('{"query": '), *call.write('"apples"}')]
    while isinstance(step := call.deliver(await call.produce()), ToolProgress):
        events.append(step)
    await call.aclose()
    assert isinstance(step, ToolDone)
    assert {(event.item_id, event.output_index) for event in events} <= {(call.item["id"], 3)}
    return call.item, [event.type for event in events], step


async def test_a_call_without_exceptions_passes_unchanged():
    tool = BuggyTool()
    item, events, done = await run_call(tool)

    assert events == [f"response.file_search_call.{step}" for step in ("in_progress", "searching", "completed")]
    assert (done.item["id"], done.item["status"], done.text) == (item["id"], "completed", "echo apples")
    assert tool.calls[0].closed


@pytest.mark.parametrize("method", ["started_events", "write", "run", "first step", "not a step", "no item"])
@pytest.mark.parametrize("also", [(), ("failed",)])
async def test_a_call_that_raises_in_any_method_is_a_failed_call(method, also):
    item, _, done = await run_call(BuggyTool(method, *also))

    assert done.text == FAILED
    assert done.item == {**item, "status": "failed"}


@pytest.mark.parametrize("method", ["open", "item", "id"])
async def test_a_call_that_cannot_be_opened_has_an_item_and_fails(method):
    item, events, done = await run_call(BuggyTool(method))

    assert (item["type"], item["id"][:3], events) == ("file_search_call", "fs_", [])
    assert done.item == {**item, "status": "failed"}
    assert "could not be started" in done.text


async def test_a_call_that_raises_when_closed_keeps_its_result():
    _, _, done = await run_call(BuggyTool("close"))

    assert done.text == "echo apples"


@pytest.mark.parametrize("method, found", [("annotator", 3), ("feed", 3), ("finish", 5)])
async def test_a_tool_that_raises_annotates_no_more_and_others_do(method, found):
    annotator = hosted(BuggyTool(method), BuggyTool()).annotator()
    annotations = [*annotator.feed("te"), *annotator.feed("xt"), *annotator.finish("text")]

    assert len(annotations) == found
    assert annotations[-1] == FileCitation("file-1", "text", 0)


@pytest.mark.parametrize("method", ["", "lease", "release"])
async def test_a_lease_that_raises_does_not_prevent_the_work(method):
    with hosted(BuggyTool(method), BuggyTool()).lease():
        worked = True

    assert worked
