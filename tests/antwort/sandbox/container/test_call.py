"""Call: the request frame, and the result with a reply, without one and after a timeout."""

from __future__ import annotations

import pytest

from antwort.sandbox.container.call import Call
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.jail import wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def make_call(timeout: float = 5, output_bytes: int = 1000, on_output=None) -> Call:
    return Call({"code": "1 + 1"}, timeout=timeout, output_bytes=output_bytes, on_output=on_output)


REPLY = ExecReply(status="success", exit_code=0, result="2")


async def test_each_request_frame_has_its_own_token():
    first, second = make_call(), make_call()
    ((header, _),) = wire.Decoder().feed(first.frame)
    assert header == {"call": first.token, "code": "1 + 1", "blobs": []}
    assert first.token != second.token


async def test_result_is_the_reply_with_the_captured_output():
    call = make_call()
    call.add_output("stdout", b"out")
    call.reply.set_result(REPLY)
    assert await call.wait_reply(0)
    result = call.result(timed_out=False, exit_code=7, reason="not used")
    assert (result.status, result.exit_code, result.result, result.reason) == ("success", 0, "2", None)
    assert (result.stdout, result.output) == ("out", [("stdout", "out")])


async def test_without_a_reply_the_result_is_how_the_container_ended():
    call = make_call()
    call.reply.set_result(None)
    result = call.result(timed_out=False, exit_code=137, reason="oom")
    assert (result.status, result.exit_code, result.reason) == ("ended", 137, "oom")


@pytest.mark.parametrize("reply", [REPLY, None], ids=["interrupted", "ended"])
async def test_after_the_timeout_the_status_is_timeout_whatever_the_reply(reply):
    call = make_call(timeout=0)
    assert call.seconds_left == 0
    assert not await call.wait_reply(0)
    call.reply.set_result(reply)
    result = call.result(timed_out=True, exit_code=137, reason="why")
    assert (result.status, result.exit_code) == ("timeout", -1)
    assert result.reason == (None if reply else "why")


async def test_on_output_receives_all_output_with_the_tail_at_the_end():
    seen: list[str] = []
    call = make_call(output_bytes=200, on_output=lambda _, text: seen.append(text))
    call.add_output("stdout", b"h" * 100 + b"m" * 500 + b"t" * 100)
    call.reply.set_result(REPLY)
    result = call.result(timed_out=False, exit_code=0, reason=None)
    assert "".join(seen) == result.stdout
    assert result.cut_bytes == 500
