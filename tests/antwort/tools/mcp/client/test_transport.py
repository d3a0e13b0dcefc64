"""Servers that hang, lie, flood and redirect: each harms its own call only."""

from __future__ import annotations

import pytest
from waiting import wait_until_async

from antwort.tools.mcp.client import McpFault, transport

pytestmark = pytest.mark.anyio
OBJECT = {"type": "object", "properties": {}}
GOOD = {"name": "good", "description": "Good.", "inputSchema": OBJECT}


async def fault(awaitable) -> tuple[str, int, str]:
    with pytest.raises(McpFault) as caught:
        await awaitable
    return caught.value.kind, caught.value.code, caught.value.message


def nested(levels: int) -> dict:
    return {} if not levels else {"a": {"properties": nested(levels - 2)}}


CALLS = {
    "refuse": ("mcp_protocol_error", -32602, "no such thing xxx"),
    "status": ("http_error", 503, "Service Unavailable"),
    "garbage": ("mcp_protocol_error", -32700, "Failed to parse JSON response"),
    "nested": ("mcp_protocol_error", -32700, "Failed to parse JSON response"),
    "no_result": ("mcp_protocol_error", -32603, "the answer is not valid: content: Input should be a valid list"),
    "large": ("http_error", 502, "the answer exceeds 100000 bytes"),
    "large_event": ("mcp_protocol_error", -32000, "SSE stream failed: "),
    "close": ("http_error", 502, "127.0.0.1 could not be read: the answer is incomplete or not valid HTTP"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_bad_answer_fails_one_call(open_client, hostile, local, name):
    kind, code, message = CALLS[name]
    target = local(f"{hostile.url}/calls")
    async with open_client(max_bytes=100_000) as client:
        found = await fault(client.call_tool("t", target, name, {}))

        assert found[:2] == (kind, code)
        assert found[2].startswith(message)
        assert len(found[2]) <= 501
        assert (await client.call_tool("t", target, "fine", {})).text == "fine"
    assert hostile.sent < 20 * 1024 * 1024


async def test_a_server_that_hangs_costs_the_time_of_one_call(open_client, hostile, local, crm):
    async with open_client(timeout=1.5) as client:
        target = local(f"{hostile.url}/calls")
        assert await fault(client.call_tool("t", target, "hang", {})) == (
            "http_error",
            504,
            "the tool did not answer within 1.5 s",
        )
        assert (await client.call_tool("t", target, "fine", {})).text == "fine"
        assert (await client.call_tool("t", local(crm.url), "customer", {"number": 7})).text == "Ada Lovelace"


async def test_a_server_that_never_answers_is_not_connected_to(open_client, hostile, local):
    async with open_client(connect_timeout=0.2) as client:
        found = await fault(client.list_tools("t", local(f"{hostile.url}/silent")))

    assert found == ("http_error", 504, "no session within 0.2 s")


async def test_a_session_that_the_server_has_forgotten_is_opened_again(client, hostile, local):
    hostile.sessions = 0
    result = await client.call_tool("t", local(f"{hostile.url}/calls"), "forget", {})

    assert result.text == "in a new session"
    assert hostile.sessions == 2


LISTS = {
    "/html": "Unexpected content type: text/html",
    "/gzip": "the answer is compressed, which was not asked for",
    "/pages": "the list of tools has more than 64 pages",
    "/large-list": "the answer exceeds 100000 bytes",
    "/no-list": "the answer is not valid: tools: Input should be a valid list",
}


@pytest.mark.parametrize("path", LISTS)
async def test_a_bad_list(open_client, hostile, local, path):
    async with open_client(max_bytes=100_000) as client:
        *_, message = await fault(client.list_tools("t", local(f"{hostile.url}{path}")))

    assert message == LISTS[path]


async def test_redirects_to_another_origin_are_not_followed(client, hostile, local, crm):
    hostile.elsewhere = crm.url
    before = len(crm.headers)
    kind, *_ = await fault(client.list_tools("t", local(f"{hostile.url}/redirect", ("authorization", "Bearer x"))))

    assert kind == "mcp_protocol_error"
    assert len(crm.headers) == before


async def test_a_name_that_resolves_to_a_private_address_is_refused(open_client, hostile):
    from antwort.tools.mcp.client import HttpTarget  # noqa: PLC0415 - only here

    before = len(hostile.methods)
    async with open_client() as client:
        *_, message = await fault(client.list_tools("t", HttpTarget(url=hostile.url.replace("127.0.0.1", "localhost"))))

    assert message == "localhost is not on the public internet"
    assert len(hostile.methods) == before


async def test_tools_that_no_model_could_be_offered_are_left_out(client, hostile, local):
    hostile.tools = [
        GOOD,
        {**GOOD, "description": "again"},
        {**GOOD, "name": "no spaces"},
        {**GOOD, "name": "lie", "inputSchema": {**OBJECT, "properties": {"a": {"type": "text"}}}},
        {**GOOD, "name": "deep", "inputSchema": {**OBJECT, "properties": nested(40)}},
        {**GOOD, "name": "large", "inputSchema": {**OBJECT, "description": "x" * 70_000}},
        {**GOOD, "name": "far", "inputSchema": {**OBJECT, "properties": {"a": {"$ref": "https://x.example/s.json"}}}},
        {**GOOD, "name": "empty", "inputSchema": {"type": "object"}},
        {**GOOD, "name": "long", "description": "x" * 10_000},
    ]
    listing = await client.list_tools("other", local(f"{hostile.url}/list"))

    assert [tool.name for tool in listing.tools] == ["good", "empty", "long"]
    assert listing.tools[1].input_schema == OBJECT
    assert len(listing.tools[2].description) == 4097
    assert listing.problem == (
        "Left out: 'good' (the name is not unique), 'no spaces' (the name is not of 1 to 128 printable ASCII "
        "characters), 'lie' (its schema is not a valid JSON schema), 'deep' (its schema is nested deeper than 32 "
        "levels), 'large' (its schema exceeds 65536 bytes) and 1 more."
    )


ODD_SCHEMAS = {
    "a pattern that nests deeper than the stack": {"pattern": "(" * 3000 + ")" * 3000},
    "a pattern with a huge repetition": {"pattern": "a{99999999999999999999}"},
    "no number": {"maximum": float("nan")},
}


@pytest.mark.parametrize("odd", ODD_SCHEMAS.values(), ids=list(ODD_SCHEMAS))
async def test_an_odd_schema_leaves_out_its_tool_only(client, hostile, local, odd):
    hostile.tools = [GOOD, {**GOOD, "name": "odd", "inputSchema": {**OBJECT, "properties": {"a": odd}}}]
    listing = await client.list_tools(str(odd)[:40], local(f"{hostile.url}/list"))

    assert [tool.name for tool in listing.tools] == ["good"]
    assert listing.problem == "Left out: 'odd' (its schema is not a valid JSON schema)."


async def test_a_list_that_changes_while_it_is_read_is_not_cached(client, hostile, local):
    hostile.tools, target = [GOOD], local(f"{hostile.url}/changing")
    for _ in range(2):
        assert [tool.name for tool in (await client.list_tools("t", target)).tools] == ["good"]

    assert hostile.methods.count(("/changing", "tools/list")) == 2


async def test_a_stream_that_ends_at_once_is_opened_again_with_a_pause(open_client, hostile, local, monkeypatch):
    monkeypatch.setattr(transport, "_STREAM_INTERVAL", 3600)
    async with open_client() as client:
        await client.list_tools("t", local(f"{hostile.url}/restless"))
        await wait_until_async(lambda: hostile.methods.count(("/restless", "GET")) == 8)
        for _ in range(5):
            await client.call_tool("t", local(f"{hostile.url}/restless"), "fine", {})

    assert hostile.methods.count(("/restless", "GET")) == 8


async def test_a_flood_ends_when_the_client_closes_the_connection(open_client, hostile, local):
    hostile.sent = 0
    async with open_client(max_bytes=100_000) as client:
        await fault(client.call_tool("t", local(f"{hostile.url}/calls"), "large", {}))
        sent = hostile.sent
        await wait_until_async(lambda: hostile.sent == sent)

    assert hostile.sent < 20 * 1024 * 1024
