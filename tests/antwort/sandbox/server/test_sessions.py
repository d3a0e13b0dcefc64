"""Sessions end when they are idle or over, and free their place; their calls may bring packages with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time

import fake_package_index
import pytest
from waiting import soon, until

from antwort.sandbox import ContainerLimits, Pool, probe
from antwort.sandbox.packages.manager import Packages
from antwort.sandbox.pool.preload import here
from antwort.sandbox.server import stream
from antwort.sandbox.server.sessions import SessionExecRequest, Sessions
from antwort.sandbox.server.settings import SandboxSettings


@pytest.fixture
def index(package_index):
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    package_index.add("other-thing", {"other_thing.py": "import tiny_thing\nANSWER = tiny_thing.ANSWER + 1\n"})
    return package_index


@pytest.fixture
def running(serve, identity, index):
    with serve(identity, python_index=index.url, modules="json") as server:
        yield server


def test_a_later_call_brings_packages_and_variables_survive(running):
    client = running.client
    session, other = client.session(), client.session()
    client.run(session, "kept = object(); before = id(kept)")
    assert client.run(session, "import tiny_thing")["error"]["name"] == "ModuleNotFoundError"
    seen = client.run(session, "import tiny_thing; tiny_thing.ANSWER, id(kept) == before", requirements=["tiny-thing"])
    assert seen["result"] == "(42, True)", seen
    seen = client.run(session, "import other_thing; other_thing.ANSWER", requirements=["other-thing==1.0"])
    assert seen["result"] == "43", seen
    assert client.run(session, "tiny_thing.ANSWER")["result"] == "42"
    again = client.run(session, "import sys; len([p for p in sys.path if 'annex' in p])", requirements=["tiny-thing"])
    assert again["result"] == "2"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import other_thing']).returncode"
    assert client.run(session, child)["result"] == "0"
    assert client.run(other, "import tiny_thing")["status"] == "error"
    assert client.run(other, "import os; os.listdir('/opt/annex'), os.listdir('/opt/packages')")["result"] == "([], [])"


def test_packages_from_the_beginning_and_later_ones_go_together(running):
    session = running.client.session(requirements=["tiny-thing"])
    seen = running.client.run(session, "import other_thing; other_thing.ANSWER", requirements=["other-thing"])
    assert seen["result"] == "43", seen


def test_when_the_session_ends_its_annex_goes_and_the_packages_stay(running):
    session = running.client.session()
    running.client.run(session, "1", requirements=["tiny-thing"])
    running.client.destroy(session)
    packages = running.state / "packages"
    until(lambda: not list(packages.glob(".annexes-*/*")))
    assert len(list(packages.glob("[!.]*"))) == 1


def test_a_failed_installation_is_a_result_and_the_session_lives_on(running):
    client = running.client
    session = client.session()
    client.run(session, "x = 5")
    seen = client.run(session, "x = 6", requirements=["tiny-thing==9"])
    assert (seen["status"], seen["exit_code"]) == ("error", -1)
    assert seen["stderr"].startswith("package installation failed: ")
    body = json.dumps({"code": "x = 7", "requirements": ["tiny-thing==9"], "stream": True}).encode()
    events = client.call("POST", f"/sessions/{session}/execute", body).body.decode().strip().split("\n\n")
    assert [event.partition("\n")[0] for event in events] == ["event: output", "event: result"]
    assert client.post(f"/sessions/{session}/execute", {"code": "1", "requirements": ["./x"]}).status == 400
    assert client.run(session, "x")["result"] == "5"


def test_installation_and_run_share_the_time_and_can_be_interrupted(serve, index):
    with serve("user", python_index=index.held, modules="json") as running:
        client = running.client
        session = client.session()
        seen = client.run(session, "1", requirements=["tiny-thing"], timeout_seconds=1)
        assert (seen["status"], seen["exit_code"]) == ("error", -1)
        assert "took longer than the 1 s" in seen["stderr"]
        answers = {}
        wanted = {"requirements": ["tiny-thing"], "timeout_seconds": 60}
        calls = [
            threading.Thread(target=lambda: answers.update(first=client.run(session, "x = 1", **wanted))),
            threading.Thread(target=lambda: answers.update(second=client.run(session, "x = 2"))),
        ]
        for call in calls:
            call.start()
            time.sleep(0.5)
        assert answers == {}  # in order: the second waits for the first, though that only installs
        assert client.post(f"/sessions/{session}/interrupt", {}).json == {"interrupted": True}
        for call in calls:
            call.join()
        assert (answers["first"]["status"], answers["second"]["status"]) == ("interrupted", "success")
        assert client.run(session, "x")["result"] == "2"


def test_a_session_is_not_made_if_its_packages_take_longer_than_the_caller_waits(serve, index):
    with serve("user", python_index=index.held, modules="json") as running:
        wanted = {"requirements": ["tiny-thing"], "timeout_seconds": 1}
        answer = running.client.post("/sessions", wanted)
        assert answer.status == 400
        assert answer.json["error"].startswith("package installation failed: it took longer than the ")
        until(lambda: fake_package_index.installers(running.process.pid) == [])
        assert running.client.call("GET", "/sessions").json == {"sessions": []}
        assert running.client.post("/sessions", {**wanted, "timeout_seconds": "1"}).status == 400
        index.going_on.set()
        session = running.client.session(**{**wanted, "timeout_seconds": 60})
        assert running.client.run(session, "import tiny_thing; tiny_thing.ANSWER")["result"] == "42"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@contextlib.asynccontextmanager
async def opened(directory, **settings):
    """Sessions of a real pool, in this process."""
    host = probe()
    store = Packages(directory / "packages", host, here(()), index=None)
    async with contextlib.aclosing(store), Pool(host, packages=directory / "packages", modules=()) as pool:
        yield Sessions(pool, store, SandboxSettings(**settings))


async def create(sessions, *, expires_after: int = 600):
    return await sessions.create(ContainerLimits(), tenant="", expires_after=expires_after, requirements=[], seconds=30)


@pytest.mark.anyio
async def test_a_session_deleted_while_another_is_swept_does_not_end_the_sweeping(tmp_path):
    async with opened(tmp_path) as sessions:
        first, second, _ = [await create(sessions, expires_after=0) for _ in range(3)]
        deleting = []
        first.container.when_gone(lambda: deleting.append(asyncio.create_task(sessions.destroy(second.id))))
        sweeper = asyncio.create_task(sessions.sweep())
        await soon(lambda: sweeper.done() or not sessions.count)
        assert (sessions.count, sweeper.done()) == (0, False)
        await asyncio.gather(*deleting)
        sweeper.cancel()
        await asyncio.gather(sweeper, return_exceptions=True)


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "events"])
async def test_a_session_that_ends_in_a_call_frees_its_place_at_once(tmp_path, streamed):
    request = SessionExecRequest(code="import os; os._exit(3)", seconds=10, echo=True, requirements=[])
    async with opened(tmp_path, max_sessions=1, queue_seconds=0.0) as sessions:
        for _ in range(2):
            session = await create(sessions)
            if streamed:
                seen = [
                    str(event) async for event in stream.stream_execution(sessions, session.id, request).body_iterator
                ]
                assert "event: result" in seen[-1]
            else:
                assert (await sessions.execute(session, request)).exit_code == 3
            assert sessions.count == 0
