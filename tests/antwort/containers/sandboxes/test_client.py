from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing, asynccontextmanager

import pytest
from fixtures_sandbox_server import sandbox_server

from antwort.containers.sandboxes.client import RemoteSandbox, SandboxServer
from antwort.containers.sandboxes.port import Outcome, SandboxFault, SandboxLost, SandboxRefused

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
    server = SandboxServer(running.url, token=running.token)
    yield server
    await server.aclose()


async def session(server: SandboxServer, seconds: float = 30) -> RemoteSandbox:
    return await server.create(tenant="t", memory_limit="1g", timeout=seconds)


async def outcome(
    session: RemoteSandbox, code: str, seconds: float = 30, requirements: tuple[str, ...] = ()
) -> Outcome:
    async with aclosing(session.run(code, timeout=seconds, requirements=requirements)) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, Outcome)
    return last


@asynccontextmanager
async def stranger(answer: bytes):
    """A server that says the same to everybody, and hangs up."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_answers_is_ready(server):
    await server.ready()


async def test_a_wrong_token_is_told_as_what_it_is(running):
    async with aclosing(SandboxServer(running.url, token="wrong")) as server:
        with pytest.raises(SandboxFault, match="token"):
            await server.ready()
        with pytest.raises(SandboxFault, match="token"):
            await session(server)


async def test_nobody_at_the_address_is_a_fault(unused_port):
    async with aclosing(SandboxServer(f"http://127.0.0.1:{unused_port}")) as server:
        with pytest.raises(SandboxFault, match="cannot be reached"):
            await session(server)


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.mark.parametrize(
    "answer",
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
async def test_a_stranger_at_the_address_is_a_fault(answer):
    async with stranger(answer) as url, aclosing(SandboxServer(url)) as server:
        with pytest.raises(SandboxFault):
            await session(server)


async def test_a_server_without_room_is_waited_for_as_long_as_was_asked(server):
    held = [await session(server) for _ in range(2)]
    with pytest.raises(SandboxFault, match="in use"):
        await session(server, seconds=0.5)
    waiting = asyncio.create_task(session(server))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await held.pop().end()
    held.append(await waiting)
    for one in held:
        await one.end()


async def test_whoever_stops_waiting_leaves_no_session(server, running):
    waiting = asyncio.create_task(session(server))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(running.sessions):  # noqa: ASYNC110 - another process, which tells nobody
            await asyncio.sleep(0.02)


async def test_a_closed_client_asks_nobody(running):
    server = SandboxServer(running.url, token=running.token)
    await server.aclose()
    with pytest.raises(SandboxFault):
        await session(server)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_id_for_logs_does_not_open_the_session(server, running):
    one = await session(server)
    (listed,) = await asyncio.to_thread(running.sessions)

    assert listed["id"].startswith(one.id)
    assert len(one.id) < len(listed["id"]) / 2
    await one.end()


async def test_ending_twice_is_fine(server):
    one = await session(server)
    await one.end()
    await one.end()


async def test_one_that_somebody_else_has_ended_is_lost_before_it_has_begun(server, running):
    one = await session(server)
    await asyncio.to_thread(running.end_all)
    with pytest.raises(SandboxLost) as caught:
        await outcome(one, "1")
    assert caught.value.begun is False


async def test_one_whose_interpreter_ended_is_lost_and_says_why(server):
    one = await session(server)
    assert (await outcome(one, "import os; os._exit(3)")).reason is not None
    with pytest.raises(SandboxLost, match="code 3"):
        await outcome(one, "1")


async def test_requirements_that_are_no_names_are_refused_and_nothing_is_run(server):
    one = await session(server)
    with pytest.raises(SandboxRefused):
        await outcome(one, "x = 1", requirements=("--index-url=http://127.0.0.1:1",))
    assert (await outcome(one, "x")).status == "error"
    await one.end()


async def test_touching_finds_out_whether_it_is_there(server):
    one = await session(server)
    await one.touch()
    await one.end()
    with pytest.raises(SandboxLost):
        await one.touch()


async def test_a_server_that_is_killed_in_the_middle_of_a_run(tmp_path):
    with sandbox_server(tmp_path) as short_lived:
        elsewhere = SandboxServer(short_lived.url, token=short_lived.token)
        ours = SandboxServer(short_lived.url, token=short_lived.token, own=True)
        one, other = await session(elsewhere), await session(ours)
        runs = [run.run("print('begun', flush=True)\nwhile True: pass", timeout=60) for run in (one, other)]
        for run in runs:
            await anext(run)
        await asyncio.to_thread(short_lived.kill)
        with pytest.raises(SandboxFault):  # it may be the way to it that is broken
            await anext(runs[0])
        with pytest.raises(SandboxLost) as caught:  # a child of ours that does not answer has died
            await anext(runs[1])
        assert caught.value.begun is True
        with pytest.raises(SandboxLost) as caught:
            await outcome(other, "1")
        assert caught.value.begun is False
        await one.end()
        await elsewhere.aclose()
        await ours.aclose()
