"""Sessions with a real MCP server, made with the official SDK, over both transports."""

from __future__ import annotations

import asyncio

import pytest
from waiting import wait_until_async

from antwort.tools.mcp.client import McpFault, SessionLimits, StdioTarget
from antwort.tools.mcp.client.targets import HttpTarget

pytestmark = pytest.mark.anyio
TRANSPORTS = ["url", "sse_url"]


def names(listing) -> list[str]:
    return [tool.name for tool in listing.tools]


@pytest.fixture(params=TRANSPORTS)
def target(request, crm, local):
    return local(getattr(crm, request.param))


async def test_tools_are_listed_and_called(client, target, crm):
    listing = await client.list_tools("t", target)
    customer, rename = listing.tools[:2]

    assert listing.problem is None
    assert (customer.name, customer.description) == ("customer", "The name of the customer with this number.")
    assert customer.input_schema["properties"] == {"number": {"title": "Number", "type": "integer"}}
    assert (customer.is_read_only, rename.is_read_only) == (True, False)
    result = await client.call_tool("t", target, "customer", {"number": 7})
    assert (result.text, result.error_content) == ("Ada Lovelace", None)
    assert crm.calls[-1] == ("customer", {"number": 7})


async def test_an_error_of_a_tool_is_a_result(client, target):
    failed = await client.call_tool("t", target, "fail", {"reason": "no stock"})
    missing = await client.call_tool("t", target, "customer", {"number": "seven"})

    assert failed.error_content == [{"type": "text", "text": failed.text}]
    assert "fail" in failed.text
    assert "validation error" in missing.error_content[0]["text"]


async def test_content_that_is_no_text_is_named(client, target):
    result = await client.call_tool("t", target, "picture", {})

    assert result.text == "a pixel:\n[image image/png, 3 bytes]"


async def test_calls_of_one_session_run_at_the_same_time(client, target, crm):
    crm.release.clear()
    waiting = asyncio.create_task(client.call_tool("t", target, "wait", {}))
    await wait_until_async(lambda: crm.calls and crm.calls[-1][0] == "wait")

    assert (await client.call_tool("t", target, "customer", {"number": 8})).text == "Grace Hopper"
    assert not waiting.done()
    crm.release.set()
    assert (await waiting).text == "waited"


async def test_arguments_that_cannot_be_encoded_end_no_other_call(client, target, crm):
    crm.release.clear()
    before = len(crm.calls)
    waiting = asyncio.create_task(client.call_tool("t", target, "wait", {}))
    await wait_until_async(lambda: len(crm.calls) > before)

    renamed = await client.call_tool("t", target, "rename", {"number": 7, "name": "Ada \ud83d"})
    assert renamed.text == "7 is called Ada \N{REPLACEMENT CHARACTER} now"
    crm.release.set()
    assert (await waiting).text == "waited"


async def test_a_call_that_is_cancelled_ends(client, target, crm):
    crm.release.clear()
    before = len(crm.calls)
    waiting = asyncio.create_task(client.call_tool("t", target, "wait", {}))
    await wait_until_async(lambda: len(crm.calls) > before)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    crm.release.set()

    assert (await client.call_tool("t", target, "customer", {"number": 7})).text == "Ada Lovelace"


async def test_the_list_is_cached_until_the_server_says_that_it_has_changed(open_client, local):
    from fake_mcp_servers import FakeMcpServer  # noqa: PLC0415 - a server of its own, because it changes

    with FakeMcpServer().running() as server:
        target = local(server.sse_url)  # the older protocol: the newer one has an age in its answers
        async with open_client() as client:
            first = await client.list_tools("t", target)
            assert await client.list_tools("t", target) is first
            assert (await client.call_tool("t", target, "grow", {})).text == "grown"
            changed = await client.list_tools("t", target)

    assert names(changed) == [*names(first), "added"]


async def test_tenants_and_credentials_have_sessions_of_their_own(client, crm, local):
    before = len(crm.headers)
    for tenant, token in (("a", "hunter2"), ("b", "hunter2"), ("a", "hunter2")):
        await client.list_tools(tenant, local(crm.private_url, ("authorization", f"Bearer {token}")))
    requests = crm.headers[before:]

    assert {one["authorization"] for one in requests} == {"Bearer hunter2"}
    with pytest.raises(McpFault) as caught:
        await client.list_tools("a", local(crm.private_url, ("authorization", "Bearer other")))
    assert (caught.value.kind, caught.value.code, caught.value.message) == ("http_error", 401, "Unauthorized")
    assert "hunter2" not in repr(local(crm.private_url, ("authorization", "Bearer hunter2")))


async def test_idle_sessions_are_closed_and_opened_again(open_client, target):
    async with open_client(idle_timeout=0.01) as client:
        await client.list_tools("t", target)
        await wait_until_async(lambda: not client._started.result()[1]._entries)

        assert (await client.call_tool("t", target, "customer", {"number": 7})).text == "Ada Lovelace"


async def test_a_tenant_has_a_limited_number_of_sessions(open_client, target, local, crm, monkeypatch):
    from antwort.tools.mcp.client import pool  # noqa: PLC0415 - imports the SDK

    monkeypatch.setattr(pool, "MAX_TENANT_SESSIONS", 2)
    async with open_client() as client:
        for number in range(4):
            await client.list_tools("t", local(crm.url, ("x-number", str(number))))
        await client.list_tools("other", local(crm.url))
        entries = client._started.result()[1]._entries

        assert [tenant for tenant, _ in entries] == ["t", "t", "other"]


async def test_private_addresses_are_refused_unless_they_are_allowed(open_client, crm):
    target = HttpTarget(url=crm.url)
    async with open_client() as client:
        with pytest.raises(McpFault, match=r"127\.0\.0\.1 is not on the public internet"):
            await client.list_tools("t", target)
        assert (await client.list_tools("t", HttpTarget(url=crm.url, is_trusted=True))).tools
    async with open_client(allow_networks=("127.0.0.0/8",)) as client:
        assert (await client.list_tools("t", target)).tools


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "[::ffff:169.254.169.254]", "192.168.1.1"])
async def test_loopback_is_the_only_private_network_of_a_server_without_keys(client, local, host):
    with pytest.raises(McpFault, match="is not on the public internet"):
        await client.list_tools("t", local(f"http://{host}:9/mcp"))


async def test_a_server_that_is_not_there(client, local):
    with pytest.raises(McpFault) as caught:
        await client.list_tools("t", local("http://127.0.0.1:1/mcp"))

    assert (caught.value.kind, caught.value.code) == ("http_error", 502)
    assert caught.value.message == "127.0.0.1 could not be read: no connection"


async def test_closing_a_client_that_was_not_used():
    from antwort.tools.mcp.client import McpClient  # noqa: PLC0415 - only here

    await McpClient(SessionLimits()).aclose()


def test_a_target_shows_no_secrets():
    program = StdioTarget(command=("server",), environment=(("TOKEN", "hunter2"),))

    assert "hunter2" not in repr(program)
