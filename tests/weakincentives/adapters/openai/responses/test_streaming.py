from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_responses_api import ENVELOPE, FakeResponse, error, message, response, responses_api

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters.openai import OpenAIModelConfig
from weakincentives.adapters.openai.responses.streaming import read_stream
from weakincentives.adapters.openai.wire import MalformedResponse
from weakincentives.deadlines import Deadline
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError, ProviderFault
from weakincentives.runtime import InProcessDispatcher, ModelProgress

DONE = {"type": "response.completed", "response": {"id": "resp_1", "output": []}}
BEGUN = {"type": "response.output_item.added", "item": {"id": "msg_1", "type": "message"}}


def lines(*events: Any) -> list[bytes]:
    """As a server sends them, split at line ends."""
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events).split(b"\n")


def told(*events: Any) -> tuple[list[tuple[str, str, str]], Any]:
    heard: list[tuple[str, str, str]] = []
    return heard, read_stream(lines(*events), lambda *piece: heard.append(piece))


def delta(kind: str, text: str, item: str = "i_1") -> dict[str, str]:
    return {"type": f"response.{kind}.delta", "delta": text, "item_id": item}


def test_pieces_are_told_in_order_and_the_response_is_what_the_end_says():
    code = {"id": "ci_1", "type": "code_interpreter_call", "outputs": [{"type": "logs", "logs": "2\n"}]}

    heard, ended = told(
        {"type": "response.created", "response": {}},
        delta("reasoning_text", "hm"),
        delta("reasoning_summary_text", "so"),
        delta("code_interpreter_call_code", "1+1", "ci_1"),
        {"type": "response.output_item.done", "item": code},
        delta("output_text", "two"),
        delta("refusal", "no"),
        delta("function_call_arguments", "{"),
        delta("custom_tool_call_input", "x"),
        {"type": "response.not_known_yet", "delta": 5},
        DONE,
    )

    assert heard == [
        ("reasoning", "i_1", "hm"),
        ("reasoning", "i_1", "so"),
        ("code", "ci_1", "1+1"),
        ("output", "ci_1", "2\n"),
        ("text", "i_1", "two"),
        ("text", "i_1", "no"),
        ("arguments", "i_1", "{"),
        ("arguments", "i_1", "x"),
    ]
    assert ended == DONE["response"]


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed", "cancelled"])
def test_every_end_is_one(end):
    _, ended = told({"type": f"response.{end}", "response": {"status": end}})

    assert ended == {"status": end}


def test_comments_several_data_lines_and_carriage_returns_are_read():
    raw = b': keep-alive\r\n\r\ndata: {"type": "response.completed",\r\ndata: "response": {"id": 1}}\r\n\r\n'

    assert read_stream(raw.split(b"\n"), lambda *_: None) == {"id": 1}


@pytest.mark.parametrize("events, again", [((), None), ((BEGUN,), False)])
def test_a_stream_without_an_end_is_a_fault_and_what_has_begun_is_not_asked_for_again(events, again):
    with pytest.raises(ProviderFault, match="before the response was complete") as caught:
        told(*events)
    assert caught.value.should_retry is again


@pytest.mark.parametrize("events, again", [((), None), ((BEGUN,), False)])
def test_an_error_in_the_stream_is_a_fault_with_its_code(events, again):
    with pytest.raises(ProviderFault, match=r"^server_error: It broke\.$") as caught:
        told(*events, {"type": "error", "code": "server_error", "message": "It broke."})
    assert caught.value.should_retry is again


@pytest.mark.parametrize(
    "data", [b"data: {", b"data: []", b'data: {"type": 3}', b'data: {"type": "response.completed"}']
)
def test_what_is_no_event_is_malformed(data):
    with pytest.raises(MalformedResponse):
        read_stream([data, b""], lambda *_: None)


# ── through the adapter ──────────────────────────────────────────────────────────────────────────────────────────────


def streamed(*output: dict[str, Any]) -> FakeResponse:
    events = [
        {"type": "response.created", "response": ENVELOPE},
        BEGUN,
        delta("output_text", "Hel", "msg_1"),
        delta("output_text", "lo.", "msg_1"),
        {"type": "response.completed", "response": response(*output)},
    ]
    return FakeResponse(b"\n".join(lines(*events)), headers={"content-type": "text/event-stream"})


def prompt() -> Prompt[None]:
    section = MarkdownSection(title="Task", key="task", template="Say hello.")
    return Prompt(PromptTemplate(ns="tests", key="stream", sections=[section]))


STREAM = OpenAIModelConfig(stream=True)


def test_subscribers_hear_the_answer_while_it_is_written_and_nothing_of_it_is_kept():
    session, heard = Session(), list[ModelProgress]()
    session.dispatcher.subscribe(ModelProgress, heard.append)
    bus, elsewhere = InProcessDispatcher(), list[ModelProgress]()
    bus.subscribe(ModelProgress, elsewhere.append)

    with responses_api(streamed(message("Hello."))) as api:
        answer = api.adapter(model_config=STREAM).evaluate(prompt(), session=session, bus=bus)

    assert answer.text == "Hello."
    assert [(one.kind, one.text, one.item_id) for one in heard] == [("text", "Hel", "msg_1"), ("text", "lo.", "msg_1")]
    assert (heard[0].prompt_name, heard[0].adapter, heard[0].session_id) == (
        "stream",
        "openai",
        session.session_id,
    )
    assert elsewhere == heard
    assert session[ModelProgress].all() == ()
    assert api.bodies[0]["stream"] is True


def test_without_stream_nothing_is_asked_for_and_nothing_told():
    session, heard = Session(), list[ModelProgress]()
    session.dispatcher.subscribe(ModelProgress, heard.append)

    with responses_api(response(message("Hello."))) as api:
        api.adapter().evaluate(prompt(), session=session)

    assert "stream" not in api.bodies[0]
    assert heard == []


def test_a_refusal_before_the_stream_is_tried_again():
    with responses_api(error(500, "broken", retry_after="0"), streamed(message("Hello."))) as api:
        answer = api.adapter(model_config=STREAM).evaluate(prompt(), session=Session())

    assert answer.text == "Hello."
    assert len(api.requests) == 2


def test_a_stream_that_breaks_off_at_work_is_an_error_and_not_asked_for_again():
    half = FakeResponse(b"\n".join(lines(BEGUN)), headers={"content-type": "text/event-stream"})

    with (
        responses_api(half, streamed(message("Hello."))) as api,
        pytest.raises(PromptEvaluationError, match="before the response was complete"),
    ):
        api.adapter(model_config=STREAM).evaluate(prompt(), session=Session())
    assert len(api.requests) == 1


def test_a_connection_that_is_cut_at_work_is_not_asked_for_again():
    def cut() -> Iterator[bytes]:
        yield b"\n".join(lines(BEGUN))
        raise ConnectionResetError

    half = FakeResponse(cut(), headers={"content-type": "text/event-stream"})
    with (
        responses_api(half, streamed(message("Hello."))) as api,
        pytest.raises(PromptEvaluationError, match="complete"),
    ):
        api.adapter(model_config=STREAM).evaluate(prompt(), session=Session())
    assert len(api.requests) == 1


def test_a_server_that_does_not_stream_is_understood():
    with responses_api(response(message("Hello."))) as api:
        assert api.adapter(model_config=STREAM).evaluate(prompt(), session=Session()).text == "Hello."


def test_a_deadline_ends_a_stream_that_goes_on():
    def endless() -> Iterator[bytes]:
        for _ in range(1_000):
            time.sleep(0.02)
            yield b"\n".join(lines(delta("output_text", "and on ")))

    with responses_api(FakeResponse(endless(), headers={"content-type": "text/event-stream"})) as api:
        adapter = api.adapter(model_config=STREAM)
        with pytest.raises(DeadlineExceededError):
            adapter.evaluate(prompt(), session=Session(), deadline=Deadline.after(0.5))
