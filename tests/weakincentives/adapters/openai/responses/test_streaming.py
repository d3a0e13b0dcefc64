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
    """Events as SSE lines."""
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events).split(b"\n")


def read_events(*events: Any) -> tuple[list[tuple[str, str, str]], Any]:
    deltas: list[tuple[str, str, str]] = []
    return deltas, read_stream(lines(*events), lambda *piece: deltas.append(piece))


def delta(kind: str, text: str, item: str = "i_1") -> dict[str, str]:
    return {"type": f"response.{kind}.delta", "delta": text, "item_id": item}


def test_deltas_are_reported_in_order_and_final_response_returned():
    code = {"id": "ci_1", "type": "code_interpreter_call", "outputs": [{"type": "logs", "logs": "2\n"}]}

    deltas, ended = read_events(
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

    assert deltas == [
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
def test_all_final_events_end_the_stream(end):
    _, ended = read_events({"type": f"response.{end}", "response": {"status": end}})

    assert ended == {"status": end}


def test_sse_comments_multiline_data_and_carriage_returns():
    raw = b': keep-alive\r\n\r\ndata: {"type": "response.completed",\r\ndata: "response": {"id": 1}}\r\n\r\n'

    assert read_stream(raw.split(b"\n"), lambda *_: None) == {"id": 1}


@pytest.mark.parametrize("events, again", [((), None), ((BEGUN,), False)])
def test_stream_without_final_event_is_a_fault_and_not_retried_after_items(events, again):
    with pytest.raises(ProviderFault, match="before the response was complete") as caught:
        read_events(*events)
    assert caught.value.should_retry is again


@pytest.mark.parametrize("events, again", [((), None), ((BEGUN,), False)])
def test_error_event_is_a_fault_with_its_code(events, again):
    with pytest.raises(ProviderFault, match=r"^server_error: It broke\.$") as caught:
        read_events(*events, {"type": "error", "code": "server_error", "message": "It broke."})
    assert caught.value.should_retry is again


@pytest.mark.parametrize(
    "data", [b"data: {", b"data: []", b'data: {"type": 3}', b'data: {"type": "response.completed"}']
)
def test_invalid_event_is_malformed(data):
    with pytest.raises(MalformedResponse):
        read_stream([data, b""], lambda *_: None)


# ── adapter ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_subscribers_get_model_progress_which_is_not_stored():
    session, deltas = Session(), list[ModelProgress]()
    session.dispatcher.subscribe(ModelProgress, deltas.append)
    bus, bus_deltas = InProcessDispatcher(), list[ModelProgress]()
    bus.subscribe(ModelProgress, bus_deltas.append)

    with responses_api(streamed(message("Hello."))) as api:
        answer = api.adapter(model_config=STREAM).evaluate(prompt(), session=session, bus=bus)

    assert answer.text == "Hello."
    assert [(one.kind, one.text, one.item_id) for one in deltas] == [("text", "Hel", "msg_1"), ("text", "lo.", "msg_1")]
    assert (deltas[0].prompt_name, deltas[0].adapter, deltas[0].session_id) == (
        "stream",
        "openai",
        session.session_id,
    )
    assert bus_deltas == deltas
    assert session[ModelProgress].all() == ()
    assert api.bodies[0]["stream"] is True


def test_no_progress_without_stream():
    session, deltas = Session(), list[ModelProgress]()
    session.dispatcher.subscribe(ModelProgress, deltas.append)

    with responses_api(response(message("Hello."))) as api:
        api.adapter().evaluate(prompt(), session=session)

    assert "stream" not in api.bodies[0]
    assert deltas == []


def test_http_error_before_the_stream_is_retried():
    with responses_api(error(500, "broken", retry_after="0"), streamed(message("Hello."))) as api:
        answer = api.adapter(model_config=STREAM).evaluate(prompt(), session=Session())

    assert answer.text == "Hello."
    assert len(api.requests) == 2


def test_incomplete_stream_with_items_is_not_retried():
    half = FakeResponse(b"\n".join(lines(BEGUN)), headers={"content-type": "text/event-stream"})

    with (
        responses_api(half, streamed(message("Hello."))) as api,
        pytest.raises(PromptEvaluationError, match="before the response was complete"),
    ):
        api.adapter(model_config=STREAM).evaluate(prompt(), session=Session())
    assert len(api.requests) == 1


def test_disconnect_during_the_stream_is_not_retried():
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


def test_json_response_to_a_stream_request_is_parsed():
    with responses_api(response(message("Hello."))) as api:
        assert api.adapter(model_config=STREAM).evaluate(prompt(), session=Session()).text == "Hello."


def test_deadline_ends_an_endless_stream():
    def endless() -> Iterator[bytes]:
        for _ in range(1_000):
            time.sleep(0.02)
            yield b"\n".join(lines(delta("output_text", "and on ")))

    with responses_api(FakeResponse(endless(), headers={"content-type": "text/event-stream"})) as api:
        adapter = api.adapter(model_config=STREAM)
        with pytest.raises(DeadlineExceededError):
            adapter.evaluate(prompt(), session=Session(), deadline=Deadline.after(0.5))


def test_compaction_items_are_those_of_the_done_events():
    def sealed(item_id: str, content: str) -> dict[str, str]:
        return {"id": item_id, "type": "compaction", "encrypted_content": content}

    _, ended = read_events(
        {"type": "response.output_item.added", "item": sealed("cmp_1", "added")},
        {"type": "response.output_item.done", "item": sealed("cmp_1", "done")},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "output": [message("Hi."), sealed("cmp_1", "final"), sealed("cmp_2", "final")],
            },
        },
    )

    assert ended["output"] == [message("Hi."), sealed("cmp_1", "done"), sealed("cmp_2", "final")]
