from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from turn_stage import EchoToolbox

from antwort.api.requests import CreateResponse, decode
from antwort.api.sse import opened
from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel, FunctionSpec, Owner
from antwort.models import Scripted, parse_script
from antwort.models.directory import Directory
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


@asynccontextmanager
async def engine_at(place):
    store = await open_store(f"sqlite:///{place}/antwort.db", place / "blobs")
    model = ChosenModel("m", Scripted(parse_script(SCRIPT)), "m")
    engine = Engine(Directory({"m": model}, default="m", default_for_unknown=False), RemoteToolbox(), store)
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


def written(place):
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


async def test_the_secrets_of_tools_reach_the_tool_and_nobody_else(engine, tmp_path):
    work = await engine.start(US, asked(tools=[MCP]))
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
