"""Live output for a client that does not keep up."""

from __future__ import annotations

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
