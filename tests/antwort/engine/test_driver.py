from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from fake_echo_provider import EchoProvider
from fixtures_turn import EchoToolbox, check_grammar

from antwort.api.events import AnyEvent, ResponseFailed, kind_of
from antwort.api.requests import CreateResponse
from antwort.api.tools import FileSearchTool
from antwort.engine.engine import Engine, Work
from antwort.engine.ports import CallPiece, ChosenModel, Finished, ModelFault, Owner, TextPiece, Toolbox
from antwort.models.registry import ModelRegistry
from antwort.storage import open_store
from antwort.tools import Registry

pytestmark = pytest.mark.anyio

US = Owner("us", "key")
SEARCH = FileSearchTool(vector_store_ids=["vs_1"])


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Speaker:
    """A model that says what it is given, one list for each time that it is asked; an exception is raised."""

    def __init__(self, *says: list[Any]) -> None:
        self._says = list(says)
        self.asked = 0
        self.stopped = 0

    async def generate(self, request):
        self.asked += 1
        try:
            for said in self._says.pop(0):
                if isinstance(said, BaseException):
                    raise said
                if said is WAIT:
                    await asyncio.Event().wait()
                yield said
        finally:
            self.stopped += 1

    async def count_tokens(self, request) -> int:
        return 1

    async def aclose(self) -> None:
        pass


WAIT = object()


@asynccontextmanager
async def working(place, speaker: Speaker, toolbox: Toolbox | None = None, **request):
    """The engine with this model, and a response that it has begun to work on."""
    store = await open_store(f"sqlite:///{place}/antwort.db", place / "blobs")
    models = ModelRegistry({"m": ChosenModel("m", speaker, "m")}, default="m", default_for_unknown=False)
    engine = Engine(models, toolbox or Registry([EchoProvider()]), store)
    try:
        yield await engine.start(US, CreateResponse(input="go", tools=[SEARCH], **request))
    finally:
        await engine.late.aclose()
        await store.aclose()


async def told(work: Work) -> list[AnyEvent]:
    return [event async for event in work.events()]


def search(query: str, index: int = 0) -> CallPiece:
    return CallPiece(index, "file_search", f"call_{index}", f'{{"query": "{query}"}}')


async def test_events_are_numbered_and_the_response_is_how_it_ended(tmp_path):
    async with working(tmp_path, Speaker([TextPiece("Hel"), TextPiece("lo"), Finished()])) as work:
        events = await told(work)

    check_grammar(events)
    assert work.response.status == "completed"
    assert work.response.output[0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    "failure, message",
    [
        ([ModelFault("The model is busy.", code="rate_limit_exceeded")], "The model is busy."),
        ([ValueError("a secret of the model's")], "The model failed."),
        ([], "The model stopped in the middle of its answer."),
    ],
)
async def test_a_model_that_fails_ends_the_response_and_not_the_server(tmp_path, failure, message):
    async with working(tmp_path, Speaker([TextPiece("Half"), *failure])) as work:
        events = await told(work)

    assert [kind_of(event) for event in events[-2:]] == ["error", "response.failed"]
    last = events[-1]
    assert isinstance(last, ResponseFailed)
    assert last.response.error is not None
    assert last.response.error.message == message
    assert work.fault is not None


async def test_a_model_is_stopped_when_it_has_finished(tmp_path):
    speaker = Speaker([TextPiece("x"), Finished(), TextPiece("said to nobody")])
    async with working(tmp_path, speaker) as work:
        await told(work)

    assert speaker.stopped == 1


async def test_a_call_is_run_and_the_model_is_asked_again(tmp_path):
    speaker = Speaker([search("apples"), Finished("calls")], [TextPiece("Found."), Finished()])
    async with working(tmp_path, speaker) as work:
        check_grammar(await told(work))

    assert (speaker.asked, speaker.stopped) == (2, 2)
    assert [item["status"] for item in work.response.output] == ["completed", "completed"]


@pytest.mark.parametrize("query", ["raise", "end"])
async def test_a_tool_that_fails_is_a_failed_call_and_the_model_goes_on(tmp_path, query):
    speaker = Speaker([search(query), Finished("calls")], [TextPiece("Well."), Finished()])
    async with working(tmp_path, speaker) as work:
        check_grammar(await told(work))

    assert [(item["type"], item["status"]) for item in work.response.output] == [
        ("file_search_call", "failed"),
        ("message", "completed"),
    ]


@pytest.mark.parametrize(
    "says, last",
    [
        ([TextPiece("Half"), WAIT], "response.output_text.delta"),
        ([search("wait"), Finished("calls")], "response.file_search_call.searching"),
    ],
)
async def test_whoever_is_cancelled_stops_model_and_tool_and_keeps_what_there_was(tmp_path, says, last):
    speaker, seen = Speaker(says), asyncio.Event()

    async def listen() -> None:
        async for event in work.events():
            if kind_of(event) == last:
                seen.set()

    async with working(tmp_path, speaker) as work:
        listening = asyncio.create_task(listen())
        await asyncio.wait_for(seen.wait(), 10)
        listening.cancel()
        await asyncio.wait([listening])

        assert listening.cancelled()
        assert speaker.stopped == 1
        assert work.response.status == "cancelled"
        assert [item["status"] for item in work.response.output] == ["incomplete"]


async def test_whoever_stops_listening_gets_no_more_done(tmp_path):
    speaker = Speaker([TextPiece("a"), TextPiece("b"), Finished()])
    async with working(tmp_path, speaker) as work:
        async with aclosing(work.events()) as events:
            async for event in events:
                if kind_of(event) == "response.output_text.delta":
                    break

        assert speaker.stopped == 1
        assert work.response.status == "cancelled"


async def test_tools_are_at_work_until_the_last_event_however_that_comes(tmp_path):
    for ends in (True, False):
        toolbox = EchoToolbox()
        speaker = Speaker([search("a"), Finished("calls")], [TextPiece("half"), Finished() if ends else WAIT])
        async with working(tmp_path / str(ends), speaker, toolbox) as work:
            assert toolbox.at_works == 0
            async with aclosing(work.events()) as events:
                async for event in events:
                    assert toolbox.at_works == 1
                    if not ends and kind_of(event) == "response.output_text.delta":
                        break
            assert toolbox.at_works == 0


async def test_nothing_is_done_before_the_event_before_was_taken(tmp_path):
    speaker = Speaker([TextPiece("a"), Finished()])
    async with working(tmp_path, speaker) as work, aclosing(work.events()) as events:
        await anext(events)
        await anext(events)
        await asyncio.sleep(0.02)
        assert speaker.asked == 0
        await anext(events)
        assert speaker.asked == 1


class BrokenToolbox(EchoToolbox):
    """A toolbox that raises where a registry never does."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def annotate(self, text):
        if self._where == "annotate":
            raise RuntimeError("a secret of the tool's")
        return []

    async def open(self, name, call_id):
        if self._where == "open":
            raise RuntimeError("a secret of the tool's")
        return await super().open(name, call_id)


@pytest.mark.parametrize("where", ["open", "annotate"])
@pytest.mark.parametrize("background", [False, True])
async def test_whatever_breaks_the_response_has_failed_and_its_last_event_says_so(tmp_path, where, background):
    speaker = Speaker([TextPiece("Let me see."), search("apples"), Finished("calls")])
    async with working(tmp_path, speaker, BrokenToolbox(where), background=background) as work:
        events = await told(work)

        assert [kind_of(event) for event in events[-2:]] == ["error", "response.failed"]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        stored = await work._store.get_response(US, work.response.id)
        assert stored is not None
        assert stored.response == work.response
        assert work.response.status == "failed"
        assert work.response.error is not None
        assert "secret" not in work.response.error.message
        assert [item["status"] for item in work.response.output] in (["completed"], ["incomplete"])
        assert work.fault is not None
        assert work.fault.status == 500
        kept = await work._store.read_events(US, work.response.id, -1)
        assert (b"response.failed" in b"".join(frame for _, frame in kept)) is background
        assert speaker.stopped == 1


async def test_a_model_that_cannot_be_let_go_does_not_spoil_its_answer(tmp_path):
    class Clinging(Speaker):
        async def generate(self, request):
            try:
                async for said in super().generate(request):
                    yield said
            finally:
                raise RuntimeError("a secret of the model's")

    async with working(tmp_path, Clinging([TextPiece("Hello"), Finished(), TextPiece("more")])) as work:
        assert (await work.finish()).status == "completed"
