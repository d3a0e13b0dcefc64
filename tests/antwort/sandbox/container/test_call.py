"""What a call came to: the code's own word where there is one, and the container's end where there is none."""

from __future__ import annotations

import pytest

from antwort.sandbox.container.call import Call, Question
from antwort.sandbox.container.reply import Answer
from antwort.sandbox.jail import wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def call(seconds: float = 5, output_bytes: int = 1000, on_output=None) -> Call:
    return Call(Question("1 + 1"), seconds=seconds, output_bytes=output_bytes, on_output=on_output)


ANSWER = Answer(status="success", exit_code=0, echo="2", error=None)


async def test_the_question_carries_a_token_of_its_own():
    first, second = call(), call()
    ((header, _),) = wire.Decoder().feed(first.question)
    assert header == {"call": first.token, "code": "1 + 1", "echo": True, "packages": None, "blobs": []}
    assert first.token != second.token


async def test_an_answer_is_the_outcome():
    asked = call()
    asked.printed("stdout", b"out")
    asked.answer.set_result(ANSWER)
    assert await asked.answered(0)
    outcome = asked.outcome(timed_out=False, exit_code=7, reason="not used")
    assert (outcome.status, outcome.exit_code, outcome.echo, outcome.reason) == ("success", 0, "2", None)
    assert (outcome.stdout, outcome.output) == ("out", [("stdout", "out")])


async def test_without_an_answer_the_end_is_the_outcome():
    asked = call()
    asked.answer.set_result(None)
    outcome = asked.outcome(timed_out=False, exit_code=137, reason="oom")
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("ended", 137, "oom")


@pytest.mark.parametrize("answer", [ANSWER, None], ids=["heeded", "ended"])
async def test_past_its_time_it_is_a_timeout_whatever_was_answered(answer):
    asked = call(seconds=0)
    assert asked.seconds_left == 0
    assert not await asked.answered(0)
    asked.answer.set_result(answer)
    outcome = asked.outcome(timed_out=True, exit_code=137, reason="why")
    assert (outcome.status, outcome.exit_code) == ("timeout", -1)
    assert outcome.reason == (None if answer else "why")


async def test_whoever_watches_gets_all_of_the_output_the_tail_at_the_end():
    seen: list[str] = []
    asked = call(output_bytes=200, on_output=lambda _, text: seen.append(text))
    asked.printed("stdout", b"h" * 100 + b"m" * 500 + b"t" * 100)
    asked.answer.set_result(ANSWER)
    outcome = asked.outcome(timed_out=False, exit_code=0, reason=None)
    assert "".join(seen) == outcome.stdout
    assert outcome.cut_bytes == 500
