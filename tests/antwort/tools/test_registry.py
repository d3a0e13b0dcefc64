from __future__ import annotations

import pytest
from fake_echo_provider import EchoProvider
from prometheus_client import CollectorRegistry

from antwort.api.tools import FileSearchTool, WebSearchTool
from antwort.engine.ports import ToolContext
from antwort.engine.stores import Owner
from antwort.tools import ProviderCollision, ToolRegistry

pytestmark = pytest.mark.anyio

SEARCH = FileSearchTool(vector_store_ids=["vs_1"])
CONTEXT = ToolContext(owner=Owner("us", "key"), response_id="resp_1", history=[], given=[], include=frozenset())


@pytest.fixture
def anyio_backend():
    return "asyncio"


class NamedProvider(EchoProvider):
    """An echo provider of another name."""

    def __init__(self, name: str, *tools: str, closed: list[str] | None = None) -> None:
        super().__init__()
        self._name = name
        self.tools = tools
        self._closed = closed

    @property
    def name(self):
        return self._name

    async def aclose(self):
        if self._closed is None:
            raise RuntimeError("a secret of the provider's")
        self._closed.append(self._name)


async def test_a_tool_is_prepared_by_the_provider_of_its_type():
    registry = ToolRegistry([NamedProvider("other", "web_search"), EchoProvider()])
    prepared = await registry.prepare(SEARCH, "tools[0]", CONTEXT)

    assert [spec.name for spec in prepared.specs] == ["file_search"]


def test_a_tool_type_without_a_provider_is_not_supported():
    registry = ToolRegistry([EchoProvider()])

    assert registry.supports(SEARCH)
    assert "file_search" in registry.tool_types
    assert not registry.supports(WebSearchTool())


def test_two_providers_of_one_name_are_refused():
    with pytest.raises(ProviderCollision, match="two tool providers are called 'echo'"):
        ToolRegistry([EchoProvider(), EchoProvider()])


def test_two_providers_of_one_tool_type_are_refused():
    with pytest.raises(ProviderCollision, match="both 'echo' and 'other' run 'file_search': enable one"):
        ToolRegistry([EchoProvider(), NamedProvider("other", "file_search")])


async def test_metrics_of_providers_are_registered():
    registry, collectors = ToolRegistry([EchoProvider()]), CollectorRegistry()
    registry.register_metrics(collectors)
    await registry.prepare(SEARCH, "tools[0]", CONTEXT)

    assert collectors.get_sample_value("echo_prepared_total") == 1
    with pytest.raises(ProviderCollision, match="metrics of 'echo'"):
        registry.register_metrics(collectors)


async def test_every_provider_is_closed_also_after_one_that_raises():
    closed: list[str] = []
    await ToolRegistry([NamedProvider("first"), NamedProvider("last", closed=closed)]).aclose()

    assert closed == ["last"]
