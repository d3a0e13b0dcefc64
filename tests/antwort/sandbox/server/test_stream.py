"""Live output: joining of queued output, and internal errors."""

from __future__ import annotations

import json
import shutil

import pytest

from antwort.sandbox.server import stream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_queued_output_is_joined_and_stays_in_order():
    queue = stream._EventQueue()
    queue.add_output("stdout", "a")
    queue.add_output("stdout", "b")
    queue.add_output("stderr", "c")
    assert await queue.get() == ("output", {"stream": "stdout", "text": "ab"})
    queue.add_output("stdout", "d")
    queue.put("result", 1)
    assert await queue.get() == ("output", {"stream": "stderr", "text": "c"})
    assert await queue.get() == ("output", {"stream": "stdout", "text": "d"})
    assert await queue.get() == ("result", 1)


def test_an_internal_error_is_an_event_and_its_cause_is_logged(serve):
    with serve("user", modules="json") as running:
        client = running.client
        session = client.session()
        shutil.rmtree(running.state / "packages")  # every installation fails with an unexpected error
        body = json.dumps({"code": "1", "requirements": ["tiny-thing"], "stream": True}).encode()
        answer = client.call("POST", f"/sessions/{session}/execute", body)
        message = "the sandbox server itself failed; see its log"
        assert answer.body.decode() == f'event: error\ndata: {{"error": "{message}"}}\n\n'
        assert "FileNotFoundError" in (running.state / "log").read_text()
        assert client.run(session, "6 * 7")["result"] == "42"
