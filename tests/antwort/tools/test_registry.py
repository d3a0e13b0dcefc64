from __future__ import annotations

import pytest
from echo_stage import EchoProvider

from antwort.api.errors import ApiError
from antwort.api.tools import AutoContainer, CodeInterpreterTool, FileSearchTool
from antwort.engine.ports import Owner, ToolContext, ToolDone
from antwort.tools.registry import ProviderCollision, Registry

pytestmark = pytest.mark.anyio

SEARCH = FileSearchTool(["vs_1"])
CODE = CodeInterpreterTool(AutoContainer())
CONTEXT = ToolContext(owner=Owner("t", "k"), response_id="resp_1", history=[], given=[], include=frozenset())


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Another(EchoProvider):
    @property
    def name(self) -> str:
        return "another"


async def test_a_tool_is_offered_by_whoever_has_it():
    registry = Registry([EchoProvider()])

    assert [spec.name for spec in registry.offer(SEARCH) or ()] == ["file_search"]
    assert registry.offer(CODE) is None


async def test_what_nobody_offers_cannot_be_made_ready():
    with pytest.raises(ApiError) as caught:
        await Registry([EchoProvider()]).prepare(CODE, "tools[3]", CONTEXT)
    assert (caught.value.status, caught.value.param) == (400, "tools[3].type")


async def test_two_of_one_name_or_for_one_tool_are_an_error():
    with pytest.raises(ProviderCollision, match="two tool providers"):
        Registry([EchoProvider(), EchoProvider()])
    with pytest.raises(ProviderCollision, match="both 'echo' and 'another'"):
        Registry([EchoProvider(), Another()]).offer(SEARCH)


async def test_a_call_that_cannot_be_begun_is_one_that_fails():
    bench = await Registry([EchoProvider()]).prepare(FileSearchTool(["vs_broken"]), "tools[0]", CONTEXT)
    call = await bench.open("file_search", "call_1")
    call.write("{}")
    (done,) = [step async for step in call.run()]

    assert isinstance(done, ToolDone)
    assert (done.item["type"], done.item["status"]) == ("file_search_call", "failed")
    assert "secret" not in done.text


async def test_a_bench_says_what_its_provider_does():
    bench = await Registry([EchoProvider()]).prepare(SEARCH, "tools[0]", CONTEXT)
    offered = EchoProvider().offer(SEARCH)
    assert offered is not None

    assert bench.describe(offered[0]) == offered[0]
    assert bench.takes_files is False
    assert bench.annotate("[1]") == []
