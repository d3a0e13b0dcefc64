from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from fixtures_turn import EchoToolbox

from antwort.api.errors import ApiError
from antwort.api.events import FINAL_EVENTS, kind_of
from antwort.api.requests import CreateResponse, decode
from antwort.api.sse import opened
from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel, ConversationRecord, FileRecord, FunctionSpec, Owner, StoreFault
from antwort.models import Scripted, parse_script
from antwort.models.registry import Directory
from antwort.storage import open_store

pytestmark = pytest.mark.anyio

US = Owner("us", "key")
SECRET = "hunter2-in-a-header"
MCP = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://x.example",
    "authorization": SECRET,
    "headers": {"x": SECRET},
}
SCRIPT = """
answers:
  - {when: {turn: 1, tool: remote}, reply: [{call: {name: remote}}]}
  - {when: {text: fail}, reply: [{text: half}, {fault: {}}]}
  - {reply: [{text: hello}]}
"""


class RemoteToolbox(EchoToolbox):
    """MCP's tools are run here, and it is remembered what they were declared with."""

    def __init__(self):
        super().__init__()
        self.declared = []

    def offer(self, tool):
        return [FunctionSpec("remote", None, None)] if isinstance(tool, McpTool) else None

    async def prepare(self, tool, param, context):
        self.declared.append(tool)
        return await super().prepare(tool, param, context)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Refusing:
    """A store that does not take the ends of responses for some time."""

    def __init__(self, store, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def finish_response(self, owner, response, **options) -> None:
        if response.ended and self.times:
            self.times -= 1
            raise StoreFault("The store failed: the disk is full.")
        await self._store.finish_response(owner, response, **options)


@asynccontextmanager
async def engine_at(place, refusals: int = 0):
    store: Any = await open_store(f"sqlite:///{place}/antwort.db", place / "blobs")
    store = Refusing(store, refusals) if refusals else store
    model = ChosenModel("m", Scripted(parse_script(SCRIPT)), "m")
    engine = Engine(Directory({"m": model}, default="m", default_for_unknown=False), RemoteToolbox(), store)
    engine.late.first_wait = 0.01
    try:
        yield engine
    finally:
        await engine.late.aclose()
        await store.aclose()


@pytest.fixture
async def engine(tmp_path):
    async with engine_at(tmp_path) as engine:
        yield engine


def asked(**fields):
    return decode(msgspec.json.encode({"input": "hello", **fields}), CreateResponse)


async def found(engine, work) -> Any:
    return (await engine.store.get_response(US, work.response.id)).response


async def told_end(work) -> None:
    """Listen until the end is told, which must not be."""
    async for event in work.events():
        assert not isinstance(event, FINAL_EVENTS)


def written(place):
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


async def test_the_secrets_of_tools_reach_the_tool_and_nobody_else(engine, tmp_path):
    added = {"type": "additional_tools", "role": "developer", "tools": [MCP]}
    work = await engine.start(US, asked(tools=[MCP], input=[added, {"role": "user", "content": "hello"}]))
    events = [event async for event in work.events()]

    assert [declared.authorization for declared in engine.toolbox.declared] == [SECRET]
    assert work.response.status == "completed"
    assert SECRET not in str(events)
    assert work.response.tools[0].headers == {"x": "<redacted>"}
    assert SECRET.encode() not in written(tmp_path)


async def test_a_background_response_is_done_again_after_a_kill_unless_it_needs_secrets(tmp_path):
    async with engine_at(tmp_path) as engine:
        plain = await engine.start(US, asked(background=True))
        secret = await engine.start(US, asked(background=True, tools=[MCP]))
        attended = await engine.start(US, asked())
    async with engine_at(tmp_path) as engine:
        again = await engine.recover()

        assert [work.response.id for work in again] == [plain.response.id]
        assert (await again[0].finish()).output[0]["content"][0]["text"] == "hello"
        lost = await found(engine, secret)
        assert lost.status == "failed"
        assert "secrets" in lost.error.message
        [(number, frame)] = await engine.store.read_events(US, secret.response.id, -1)
        assert (number, opened(frame)[0]) == (0, "response.failed")
        assert (await found(engine, attended)).status == "failed"
        assert await engine.store.unfinished() == []
    assert SECRET.encode() not in written(tmp_path)


async def test_it_is_written_before_anything_is_done_and_before_the_end_is_told(engine):
    work = await engine.start(US, asked())
    assert (await found(engine, work)).status == "in_progress"
    async for event in work.events():
        if isinstance(event, FINAL_EVENTS):
            assert (await found(engine, work)) == event.response


async def test_whoever_polls_sees_a_background_response_go_on(engine):
    work = await engine.start(US, asked(background=True))
    seen = [(await found(engine, work)).status]
    added = "response.output_item.added"
    seen += [(await found(engine, work)).status async for event in work.events() if kind_of(event) == added]
    seen.append((await found(engine, work)).status)

    assert seen == ["queued", "in_progress", "completed"]


async def test_an_end_that_the_store_refuses_is_written_later_and_nobody_is_told_before(tmp_path):
    async with engine_at(tmp_path, refusals=3) as engine:
        work = await engine.start(US, asked())
        with pytest.raises(StoreFault):
            await told_end(work)
        async with asyncio.timeout(10):
            while (await found(engine, work)).status != "completed":  # noqa: ASYNC110 - the store is looked at, it does not call
                await asyncio.sleep(0.01)


async def test_what_is_still_unwritten_when_the_server_stops_is_found_unfinished(tmp_path):
    async with engine_at(tmp_path, refusals=1_000_000) as engine:
        work = await engine.start(US, asked())
        with pytest.raises(StoreFault):
            await work.finish()
    async with engine_at(tmp_path) as engine:
        assert await engine.recover() == []
        assert (await found(engine, work)).status == "failed"


async def test_one_that_is_given_up_is_cancelled_and_one_that_is_abandoned_is_left(engine):
    for abandoned, status in ((False, "cancelled"), (True, "in_progress")):
        work = await engine.start(US, asked())
        async with aclosing(work.events()) as events:
            await anext(events)
            work.abandoned = abandoned
        assert (await found(engine, work)).status == status


async def test_a_conversation_gains_what_was_said_also_where_the_response_is_not_kept(engine):
    await engine.store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [])
    for store in (True, False):
        await (await engine.start(US, asked(conversation="conv_1", store=store))).finish()
    said = await engine.store.all_items(US, "conv_1")

    assert [item["content"][0]["text"] for item in said] == ["hello"] * 4
    assert [item["role"] for item in said] == ["user", "assistant"] * 2


async def test_a_conversation_gains_nothing_of_what_failed(engine):
    await engine.store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [])
    work = await engine.start(US, asked(conversation="conv_1", input="fail"))

    assert (await work.finish()).status == "failed"
    assert await engine.store.all_items(US, "conv_1") == []


async def test_the_last_events_of_a_background_response_come_with_its_end(engine):
    work = await engine.start(US, asked(background=True))
    await work.finish()
    kept = await engine.store.read_events(US, work.response.id, -1)

    assert opened(kept[-1][1])[0] == "response.completed"


async def test_a_background_response_whose_model_is_gone_fails_and_says_so(tmp_path):
    async with engine_at(tmp_path) as engine:
        work = await engine.start(US, asked(background=True))
    async with engine_at(tmp_path) as engine:
        engine.models = Directory({}, default=None, default_for_unknown=False)
        assert await engine.recover() == []
        assert (await found(engine, work)).status == "failed"


async def uploaded(engine, text: bytes) -> str:
    async def content():
        yield text

    record = FileRecord(id="file-1", bytes=0, created_at=1, filename="a.txt", purpose="user_data")
    return (await engine.store.create_file(US, record, content())).id


async def test_one_that_cannot_be_resumed_keeps_no_other_from_it(tmp_path):
    async with engine_at(tmp_path) as engine:
        file_id = await uploaded(engine, b"hello")
        part = {"type": "input_file", "file_id": file_id}
        lost = await engine.start(US, asked(background=True, input=[{"role": "user", "content": [part]}]))
        plain = await engine.start(US, asked(background=True))
    for blob in (tmp_path / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    async with engine_at(tmp_path) as engine:
        again = await engine.recover()

        assert [work.response.id for work in again] == [plain.response.id]
        ended = await found(engine, lost)
        assert (ended.status, ended.error.code) == ("failed", "server_error")
        assert str(tmp_path) not in ended.error.message
        [(_, frame)] = await engine.store.read_events(US, lost.response.id, -1)
        assert opened(frame)[0] == "response.failed"


async def test_a_tool_that_breaks_keeps_nobody_from_starting(tmp_path):
    class Broken(RemoteToolbox):
        def offer(self, tool):
            raise RuntimeError("a secret of the tool's")

    async with engine_at(tmp_path) as engine:
        work = await engine.start(US, asked(background=True, tools=[{**MCP, "authorization": None, "headers": None}]))
    async with engine_at(tmp_path) as engine:
        engine.toolbox = Broken()
        assert await engine.recover() == []
        ended = await found(engine, work)
        assert ended.status == "failed"
        assert "secret" not in ended.error.message


async def test_one_that_ends_every_process_is_not_begun_for_ever(tmp_path):
    async with engine_at(tmp_path) as engine:
        work = await engine.start(US, asked(background=True))
    for _ in range(3):
        async with engine_at(tmp_path) as engine:
            assert [again.response.id for again in await engine.recover()] == [work.response.id]
    async with engine_at(tmp_path) as engine:
        assert await engine.recover() == []
        ended = await found(engine, work)
        assert ended.status == "failed"
        assert "begun 4 times" in ended.error.message


async def test_a_store_that_takes_nothing_stops_the_start(tmp_path):
    async with engine_at(tmp_path) as engine:
        await engine.start(US, asked())
    async with engine_at(tmp_path, refusals=1_000_000) as engine:
        with pytest.raises(StoreFault):
            await engine.recover()


async def test_what_cannot_be_is_refused_before_anything_is_written(engine):
    for fields in ({"model": "other"}, {"tools": [{"type": "web_search"}]}, {"previous_response_id": "resp_0"}):
        with pytest.raises(ApiError):
            await engine.start(US, asked(**fields))
    assert await engine.store.unfinished() == []


async def test_counting_tokens_writes_nothing(engine):
    assert await engine.count_tokens(US, asked()) > 0
    assert await engine.store.unfinished() == []
