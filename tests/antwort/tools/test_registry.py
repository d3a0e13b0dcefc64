from __future__ import annotations

from contextlib import contextmanager

import pytest
from fake_echo_provider import EchoProvider, RealEchoCall
from prometheus_client import CollectorRegistry

from antwort.api.errors import ApiError
from antwort.api.tools import FileSearchTool, WebSearchTool
from antwort.engine.ports import (
    FunctionSpec,
    Progress,
    ToolContext,
    ToolDone,
)
from antwort.engine.stores import Owner, StoreFault
from antwort.tools import ProviderCollision, Registry

pytestmark = pytest.mark.anyio

SEARCH = FileSearchTool(vector_store_ids=["vs_1"])
SPEC = FunctionSpec("file_search", "Search.", None)
CONTEXT = ToolContext(owner=Owner("us", "key"), response_id="resp_1", history=[], given=[], include=frozenset())
FAILED = "The tool failed. Try another way, or answer without it."


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Bug(Exception):
    """What a provider did not expect."""


class BuggyCall(RealEchoCall):
    """Raises in those of its methods that are named."""

    def __init__(self, *where: str) -> None:
        self._where = where
        super().__init__()
        self.closed = False

    def _maybe(self, where: str) -> None:
        if where in self._where:
            raise Bug

    @property
    def item(self):
        self._maybe("item")
        return {"type": "file_search_call"} if "id" in self._where else super().item

    def opening(self):
        self._maybe("opening")
        return super().opening()

    def write(self, delta):
        self._maybe("write")
        return super().write(delta)

    def run(self):
        self._maybe("begin")
        return self._run()

    async def _run(self):
        try:
            self._maybe("run")
            async for step in super().run():
                yield step
            yield ToolDone({}, "said to nobody")
        finally:
            self.closed = True
            self._maybe("close")

    def failed(self, reason):
        self._maybe("failed")
        return super().failed(reason)


class Buggy(EchoProvider):
    """A provider whose methods raise, and those of its bench and of its calls."""

    def __init__(self, *where: str, error: Exception | None = None, name: str = "echo") -> None:
        super().__init__()
        self._where = where
        self._error = error or Bug()
        self._name = name
        self.calls: list[BuggyCall] = []

    @property
    def name(self):
        return self._name

    def _maybe(self, where: str) -> None:
        if where in self._where:
            raise self._error

    def offer(self, tool):
        self._maybe("offer")
        return super().offer(tool)

    async def prepare(self, tool, param, context):
        self._maybe("prepare")
        return self

    @property
    def takes_files(self):
        self._maybe("takes_files")
        return True

    def describe(self, spec):
        self._maybe("describe")
        return FunctionSpec(spec.name, "Described.", None)

    def annotate(self, text):
        self._maybe("annotate")
        return []

    @contextmanager
    def at_work(self):
        self._maybe("at_work")
        yield
        self._maybe("leave")

    async def open(self, name, call_id):
        self._maybe("open")
        self.calls.append(BuggyCall(*self._where))
        return self.calls[-1]

    async def aclose(self):
        self._maybe("aclose")


async def ran(provider: Buggy):
    """A call from its beginning to its end: the item as it began, the types of its events, and what came of it."""
    bench = await Registry([provider]).prepare(SEARCH, "tools[0]", CONTEXT)
    call = await bench.open("file_search", "call_1")
    progress = [*call.opening(), *call.write('{"query": '), *call.write('"apples"}')]
    *steps, done = [step async for step in call.run()]
    assert isinstance(done, ToolDone)
    progress += [step for step in steps if isinstance(step, Progress)]
    return call.item, [step.type for step in progress], done


async def test_a_call_of_a_good_provider_passes_as_it_is():
    provider = Buggy()
    item, told, done = await ran(provider)

    assert told == [f"response.file_search_call.{step}" for step in ("in_progress", "searching", "completed")]
    assert (done.item["id"], done.item["status"], done.text) == (item["id"], "completed", "echo apples")
    assert provider.calls[0].closed


@pytest.mark.parametrize("where", ["opening", "write", "begin", "run"])
@pytest.mark.parametrize("also", [(), ("failed",)])
async def test_a_call_that_raises_anywhere_has_failed_and_the_model_is_told(where, also):
    item, _, done = await ran(Buggy(where, *also))

    assert done.text == FAILED
    assert done.item == {**item, "status": "failed"}


@pytest.mark.parametrize("where", ["prepare", "open", "item", "id"])
async def test_a_call_that_cannot_begin_has_failed_and_has_an_item_all_the_same(where):
    item, told, done = await ran(Buggy(where))

    assert (item["type"], item["id"][:3], told) == ("file_search_call", "fs_", [])
    assert done.item == {**item, "status": "failed"}
    assert "could not be started" in done.text


async def test_a_call_that_cannot_be_let_go_keeps_its_result():
    _, _, done = await ran(Buggy("close"))

    assert done.text == "echo apples"


async def test_what_a_bench_cannot_say_is_left_out():
    for where in ("prepare", "takes_files", "describe", "annotate"):
        bench = await Registry([Buggy(where)]).prepare(SEARCH, "tools[0]", CONTEXT)
        ready = where != "prepare"

        assert bench.takes_files is (ready and where != "takes_files")
        described = bench.describe(SPEC).description
        assert described == ("Described." if ready and where != "describe" else "Search.")
        assert list(bench.annotate("text")) == []


@pytest.mark.parametrize("where", ["", "prepare", "at_work", "leave"])
async def test_what_a_bench_fails_at_around_its_work_keeps_nobody_from_it(where):
    bench = await Registry([Buggy(where)]).prepare(SEARCH, "tools[0]", CONTEXT)
    with bench.at_work():
        worked = True

    assert worked


@pytest.mark.parametrize("error", [ApiError(400, "No such vector store."), StoreFault("The disk is full.")])
async def test_what_is_wrong_with_a_request_or_the_store_is_said_before_anything_is_sent(error):
    with pytest.raises(type(error)):
        await Registry([Buggy("prepare", error=error)]).prepare(SEARCH, "tools[0]", CONTEXT)


def test_a_provider_that_raises_when_asked_what_it_offers_does_not_break_the_request():
    with pytest.raises(ApiError, match="'file_search' is not available now") as caught:
        Registry([Buggy("offer")]).offer(SEARCH)
    assert caught.value.status == 503


async def test_a_tool_that_nobody_offers_is_refused_by_name():
    registry = Registry([EchoProvider()])

    assert registry.offer(WebSearchTool()) is None
    with pytest.raises(ApiError, match="'web_search' is not available") as caught:
        await registry.prepare(WebSearchTool(), "tools[0]", CONTEXT)
    assert caught.value.param == "tools[0].type"


def test_two_providers_of_one_name_are_refused():
    with pytest.raises(ProviderCollision, match="two tool providers are called 'echo'"):
        Registry([EchoProvider(), EchoProvider()])


def test_two_providers_of_one_tool_are_refused_at_start_and_not_on_a_request():
    with pytest.raises(ProviderCollision, match="both 'echo' and 'other' run 'file_search': enable one"):
        Registry([EchoProvider(), Buggy(name="other")])


async def test_the_numbers_of_providers_are_on_the_page():
    registry, page = Registry([EchoProvider()]), CollectorRegistry()
    registry.show_metrics(page)
    await registry.prepare(SEARCH, "tools[0]", CONTEXT)

    assert page.get_sample_value("echo_prepared_total") == 1
    with pytest.raises(ProviderCollision, match="metrics of 'echo'"):
        registry.show_metrics(page)


async def test_every_provider_is_closed_also_behind_one_that_fails_at_it():
    closed: list[str] = []

    class Last(EchoProvider):
        tools = ()

        @property
        def name(self):
            return "last"

        async def aclose(self):
            closed.append(self.name)

    await Registry([Buggy("aclose"), Last()]).aclose()

    assert closed == ["last"]
