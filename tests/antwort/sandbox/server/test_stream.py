"""Live output for a client that does not keep up, and for one whose server fails."""

from __future__ import annotations

import json
import shutil

import pytest

from antwort.sandbox.server import stream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_output_that_waits_is_joined_and_stays_in_order():
    waiting = stream._Waiting()
    waiting.output("stdout", "a")
    waiting.output("stdout", "b")
    waiting.output("stderr", "c")
    assert await waiting.get() == ("output", {"stream": "stdout", "text": "ab"})
    waiting.output("stdout", "d")
    waiting.put("result", 1)
    assert await waiting.get() == ("output", {"stream": "stderr", "text": "c"})
    assert await waiting.get() == ("output", {"stream": "stdout", "text": "d"})
    assert await waiting.get() == ("result", 1)


def test_a_failure_of_our_own_is_an_event_and_its_cause_is_in_the_log(serve):
    with serve("user", modules="json") as running:
        client = running.client
        session = client.session()
        shutil.rmtree(running.state / "packages")  # nothing can be installed, and that is not the caller's fault
        body = json.dumps({"code": "1", "requirements": ["tiny-thing"], "stream": True}).encode()
        answer = client.call("POST", f"/sessions/{session}/execute", body)
        told = "the sandbox server itself failed; see its log"
        assert answer.body.decode() == f'event: error\ndata: {{"error": "{told}"}}\n\n'
        assert "FileNotFoundError" in (running.state / "log").read_text()
        assert client.run(session, "6 * 7")["result"] == "42"
