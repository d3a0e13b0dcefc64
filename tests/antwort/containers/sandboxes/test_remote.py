from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing, asynccontextmanager

import pytest
from fake_trickling_server import trickling_server
from fixtures_sandbox_server import sandbox_server

from antwort.containers.sandboxes.port import ExecutionResult, SandboxLost, SandboxRefused, SandboxUnavailable
from antwort.containers.sandboxes.remote import LEASE_SECONDS, RENEW_INTERVAL_SECONDS, RemoteSandbox, RemoteSandboxes

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with sandbox_server(tmp_path_factory.mktemp("sandbox"), max_sessions="2", queue_seconds="0.1") as server:
        yield server


@pytest.fixture
async def server(running):
    server = RemoteSandboxes(running.url, token=running.token)
    yield server
    await server.aclose()


async def session(server: RemoteSandboxes, seconds: float = 30) -> RemoteSandbox:
    sandbox = await server.acquire(tenant="t", memory_limit="1g", timeout=seconds)
    assert isinstance(sandbox, RemoteSandbox)
    return sandbox


async def run(
    session: RemoteSandbox, code: str, seconds: float = 30, requirements: tuple[str, ...] = ()
) -> ExecutionResult:
    async with aclosing(session.run(code, timeout=seconds, requirements=requirements)) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, ExecutionResult)
    return last


@asynccontextmanager
async def static_server(reply: bytes):
    """A server that sends this reply to every connection, and closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_check_passes_where_the_server_answers(server):
    await server.check()


async def test_a_wrong_token_is_an_auth_error(running):
    async with aclosing(RemoteSandboxes(running.url, token="wrong")) as server:
        with pytest.raises(SandboxUnavailable, match="token"):
            await server.check()
        with pytest.raises(SandboxUnavailable, match="token"):
            await session(server)


async def test_a_closed_port_is_a_connect_error(unused_port):
    async with aclosing(RemoteSandboxes(f"http://127.0.0.1:{unused_port}")) as server:
        with pytest.raises(SandboxUnavailable, match="cannot be reached"):
            await session(server)


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{} ",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["silence", "no HTTP", "no session", "half an answer", "an error", "a redirect"],
)
async def test_a_malformed_reply_is_unavailable(reply):
    async with static_server(reply) as url, aclosing(RemoteSandboxes(url)) as server:
        with pytest.raises(SandboxUnavailable):
            await session(server)


@pytest.mark.parametrize(
    "repeated",
    [b": keep-alive\n\n", b'event: output\ndata: {"stream": "stdout", "text": "x"}\n\n'],
    ids=["comments", "output"],
)
async def test_an_execution_ends_in_time_though_the_server_sends_on(repeated):
    chunk = b"%x\r\n%b\r\n" % (len(repeated), repeated)
    head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with (
        trickling_server(head, chunk) as url,
        aclosing(RemoteSandboxes(url, reply_timeout=0.2)) as server,
        asyncio.timeout(60),
    ):
        with pytest.raises(SandboxUnavailable, match=r"has not ended the execution within 0\.5 s"):
            await run(RemoteSandbox(server, "session"), "1", seconds=0.3)


@pytest.mark.parametrize("begin", [b"", b"content-length: 1000000\r\n\r\n"], ids=["head", "body"])
async def test_a_reply_has_a_time_limit_though_the_server_sends_on(begin):
    async with (
        trickling_server(begin, b"x" if begin else b"x: y\r\n") as url,
        aclosing(RemoteSandboxes(url, reply_timeout=0.2)) as server,
        asyncio.timeout(60),
    ):
        with pytest.raises(SandboxUnavailable, match=r"has not sent its reply within 0\.2 s"):
            await server.check()


@asynccontextmanager
async def scripted_server(serve):
    """A server with this handler; its requests end before the block does."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


LIMIT = 3.0


async def test_the_time_limit_of_a_reply_does_not_run_while_a_slow_client_uploads():
    async def content():
        await asyncio.sleep(1.5 * LIMIT)
        yield b"a"

    async def serve(reader, writer):
        await reader.readuntil(b"0\r\n\r\n")
        body = b'{"path": "a", "kind": "file", "size": 1, "modified": 1}'
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with scripted_server(serve) as url, aclosing(RemoteSandboxes(url, reply_timeout=LIMIT)) as server:
        assert (await RemoteSandbox(server, "s").write_file("a", content())).size == 1


async def test_the_time_limit_of_an_execution_does_not_run_while_its_output_is_consumed():
    has_consumed = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        writer.write(b'event: output\ndata: {"stream": "stdout", "text": "x"}\n\n')
        await has_consumed.wait()
        result = {"status": "success", "exit_code": 0, "output": [], "figures": [], "duration_ms": 1}
        writer.write(f"event: result\ndata: {json.dumps(result)}\n\n".encode())
        writer.close()

    async with (
        scripted_server(serve) as url,
        aclosing(RemoteSandboxes(url, reply_timeout=0.75 * LIMIT)) as server,
        aclosing(RemoteSandbox(server, "s").run("1", timeout=0.25 * LIMIT)) as steps,
    ):
        await anext(steps)
        await asyncio.sleep(1.5 * LIMIT)
        has_consumed.set()
        assert isinstance(await anext(steps), ExecutionResult)


@pytest.mark.parametrize("call", [RemoteSandboxes.check, session], ids=["health", "create"])
async def test_a_short_reply_has_a_maximum_size(call):
    body = b'{"status": "ok", "mode": "python", "id": "one", "rest": "%b"}' % (b"x" * (64 << 10))
    reply = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with static_server(reply) as url, aclosing(RemoteSandboxes(url)) as server:
        with pytest.raises(SandboxUnavailable, match="a reply that is too long"):
            await call(server)


async def test_the_reply_to_an_upload_and_to_a_deletion_has_a_maximum_size():
    body = b'{"path": "a", "kind": "file", "size": 1, "modified": 1, "rest": "%b"}' % (b"x" * (64 << 10))
    reply = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def content():
        yield b"a"

    async with static_server(reply) as url, aclosing(RemoteSandboxes(url)) as server:
        for call in (
            lambda: RemoteSandbox(server, "s").write_file("a", content()),
            lambda: RemoteSandbox(server, "s").delete_file("a"),
        ):
            with pytest.raises(SandboxUnavailable, match="a reply that is too long"):
                await call()


def listing_of(*paths, has_more=False, modified=1.0, **more):
    """A reply of `GET /files`, on a connection of its own."""
    files = [{"path": path, "kind": "file", "size": 1, "modified": modified, **more} for path in paths]
    body = json.dumps({"files": files, "has_more": has_more}).encode()
    return b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def listed(reply):
    """What `list_files` makes of a server that sends this reply for each page."""
    async with static_server(reply) as url, aclosing(RemoteSandboxes(url)) as server, asyncio.timeout(60):
        return await RemoteSandbox(server, "session").list_files()


@pytest.mark.parametrize("length", [8, 4000])
async def test_a_listing_without_an_end_is_refused(length):
    """Code in a container without a quota may create millions of files, and its server may be in its hands."""
    paths = [f"{number:05}/{'a/' * ((length - 8) // 2)}x" for number in range(5000 if length == 8 else 1000)]
    with pytest.raises(SandboxRefused, match="more than 100000 files"):
        await listed(listing_of(*paths, has_more=True))


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "a\0b", "a\nb", "a//b", "x" * 300, ""])
async def test_a_listed_path_that_could_not_be_read_is_left_out(path):
    assert [file.path for file in await listed(listing_of(path, "kept"))] == ["kept"]


@pytest.mark.parametrize("modified", [1e308, -1e308, 2.0**60])
async def test_a_modification_time_far_away_fits_into_64_bits(modified):
    """As after `os.utime`."""
    (file,) = await listed(listing_of("a", modified=modified))
    assert abs(file.modified) < 2**63


@pytest.mark.parametrize("size", [-1, 2**62, 10**30])
async def test_a_size_that_no_file_has_is_malformed(size):
    with pytest.raises(SandboxUnavailable, match="malformed"):
        await listed(listing_of("a", size=size))


@pytest.mark.parametrize("status", [200, 500])
async def test_a_reply_that_is_nested_too_deeply_is_malformed(status):
    body = b'{"detail":%b%b}' % (b"[" * 20_000, b"]" * 20_000)
    with pytest.raises(SandboxUnavailable, match=r"malformed|answered 500"):
        await listed(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body))


async def test_acquire_waits_for_capacity_until_its_timeout(server):
    held = [await session(server) for _ in range(2)]
    with pytest.raises(SandboxUnavailable, match="in use"):
        await session(server, seconds=0.5)
    waiting = asyncio.create_task(session(server))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await held.pop().end()
    held.append(await waiting)
    for one in held:
        await one.end()


async def test_a_cancelled_acquire_leaves_no_session(server, running):
    waiting = asyncio.create_task(session(server))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(running.sessions):  # noqa: ASYNC110 - another process, without notifications
            await asyncio.sleep(0.02)


async def test_a_closed_client_sends_nothing(running):
    server = RemoteSandboxes(running.url, token=running.token)
    await server.aclose()
    with pytest.raises(SandboxUnavailable):
        await session(server)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_id_for_logs_does_not_grant_access(server, running):
    one = await session(server)
    (listed,) = await asyncio.to_thread(running.sessions)

    assert listed["id"].startswith(one.id)
    assert len(one.id) < len(listed["id"]) / 2
    await one.end()


async def test_ending_twice_is_no_error(server):
    one = await session(server)
    await one.end()
    await one.end()


async def test_a_session_ended_elsewhere_is_lost_before_the_code_began(server, running):
    one = await session(server)
    await asyncio.to_thread(running.end_all)
    with pytest.raises(SandboxLost) as caught:
        await run(one, "1")
    assert caught.value.begun is False


async def test_a_session_whose_interpreter_ended_is_lost_with_the_reason(server):
    one = await session(server)
    assert (await run(one, "import os; os._exit(3)")).reason is not None
    with pytest.raises(SandboxLost, match="code 3"):
        await run(one, "1")


async def test_invalid_requirements_are_refused_and_nothing_runs(server):
    one = await session(server)
    with pytest.raises(SandboxRefused):
        await run(one, "x = 1", requirements=("--index-url=http://127.0.0.1:1",))
    assert (await run(one, "x")).status == "error"
    await one.end()


async def test_renewing_the_lease_of_an_ended_session_raises_sandbox_lost(server):
    one = await session(server)
    await one.renew_lease()
    await one.end()
    with pytest.raises(SandboxLost):
        await one.renew_lease()


async def test_a_server_killed_during_a_run(tmp_path):
    with sandbox_server(tmp_path) as short_lived:
        remote = RemoteSandboxes(short_lived.url, token=short_lived.token)
        child = RemoteSandboxes(short_lived.url, token=short_lived.token, is_child=True)
        one, other = await session(remote), await session(child)
        runs = [sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=60) for sandbox in (one, other)]
        for started in runs:
            await anext(started)
        await asyncio.to_thread(short_lived.kill)
        with pytest.raises(SandboxUnavailable):  # the network may be broken
            await anext(runs[0])
        with pytest.raises(SandboxLost) as caught:  # a child process that does not answer has died
            await anext(runs[1])
        assert caught.value.begun is True
        with pytest.raises(SandboxLost) as caught:
            await run(other, "1")
        assert caught.value.begun is False
        await one.end()
        await remote.aclose()
        await child.aclose()


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_aclose_ends_the_held_sessions(running):
    sandboxes = RemoteSandboxes(running.url, token=running.token)
    for _ in range(2):
        await session(sandboxes)
    assert len(await asyncio.to_thread(running.sessions)) == 2
    await sandboxes.aclose()
    assert await asyncio.to_thread(running.sessions) == []


async def test_a_session_whose_lease_is_not_renewed_ends(running):
    """As after a kill of this process."""
    sandboxes = RemoteSandboxes(running.url, token=running.token, lease_seconds=1, renew_interval=60)
    await session(sandboxes)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(running.sessions):  # noqa: ASYNC110 - another process, without notifications
            await asyncio.sleep(0.1)
    await sandboxes.aclose()


async def test_the_lease_of_a_held_session_is_renewed(running):
    sandboxes = RemoteSandboxes(running.url, token=running.token, lease_seconds=1, renew_interval=0.2)
    held = await session(sandboxes)
    await asyncio.sleep(3)
    assert len(await asyncio.to_thread(running.sessions)) == 1
    await sandboxes.release(held)
    await sandboxes.aclose()


async def test_the_default_lease_outlives_several_failed_renewals():
    assert RENEW_INTERVAL_SECONDS * 5 < LEASE_SECONDS


async def test_check_raises_after_aclose(running):
    sandboxes = RemoteSandboxes(running.url, token=running.token)
    await sandboxes.check()
    await sandboxes.aclose()
    with pytest.raises(SandboxUnavailable):
        await sandboxes.check()
