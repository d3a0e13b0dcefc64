from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    CompactionPiece,
    EncryptedReasoning,
    Finished,
    ItemPiece,
    ModelFault,
    SummaryPiece,
    TextPiece,
)
from antwort.models.responses.stream import ResponsesStream
from antwort.models.upstream_errors import fault_from_stream_error
from antwort.net.sse import ServerEvent
from antwort.testing.model import AnswerCall, fold

TO_FAULT = partial(fault_from_stream_error, model="mine", redact=lambda text: text.replace("secret", "[redacted]"))


def read(*payloads, name="", top_logprobs=None):
    stream, pieces = ResponsesStream(to_fault=TO_FAULT, new_call_id=lambda: "new_id", top_logprobs=top_logprobs), []
    for payload in payloads:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        pieces += stream.read(ServerEvent(name, data))
    return [*pieces, *stream.close()]


def done(item, index=0):
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def added(item, index=0):
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def delta(stem, text, index=0, **more):
    return {"type": f"response.{stem}.delta", "output_index": index, "delta": text, **more}


COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "final", "new_field": {"a": [1]}}
COMPLETED = {"type": "response.completed", "response": {"status": "completed"}}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": ""}


def test_text_missing_in_deltas_is_taken_from_done_events():
    text_done = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"}
    message = {
        "type": "message",
        "content": [{"type": "output_text", "text": "Hello"}, {"type": "refusal", "refusal": "No"}],
    }

    assert fold(read(delta("output_text", "Hel", content_index=0), text_done, done(message), COMPLETED)).text == "Hello"
    answer = fold(read(done(message), COMPLETED))
    assert (answer.text, answer.refusal) == ("Hello", "No")
    assert fold(read(done({**CALL, "arguments": "{}"}), COMPLETED)).calls == (AnswerCall("f", "{}", "a"),)


def test_reasoning_summary_and_encrypted_content():
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": "gAAAA",
    }
    pieces = read(delta("reasoning_summary_text", "One.", summary_index=0), done(item), COMPLETED)
    answer = fold(pieces)

    assert [piece for piece in pieces if isinstance(piece, SummaryPiece)] == [
        SummaryPiece("One.", 0),
        SummaryPiece("Two.", 1),
    ]
    assert (answer.reasoning, answer.sealed) == ("Hm.", ("gAAAA",))
    assert fold(read(added({**item, "encrypted_content": "early"}), done(item), COMPLETED)).sealed == ("gAAAA",)


def test_logprobs():
    one = {"token": "x", "bytes": [120], "logprob": -0.5, "top_logprobs": []}
    event = delta("output_text", "x", logprobs=[{"token": "x", "logprob": -0.5}])

    assert read(event, COMPLETED, top_logprobs=2)[1] == TextPiece("x", (one,))
    assert read(event, COMPLETED)[1] == TextPiece("x")


def test_finish_reason():
    assert fold(read(COMPLETED)).reason == "stop"
    assert fold(read(added(CALL), COMPLETED)).reason == "calls"
    for reason, expected in (("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")):
        details = {"reason": reason} if reason else None
        assert (
            fold(read({"type": "response.incomplete", "response": {"incomplete_details": details}})).reason == expected
        )


@pytest.mark.parametrize(
    "event, code",
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "secret"}}},
            "server_error",
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "secret"}}},
            "rate_limit_exceeded",
        ),
        ({"type": "error", "code": "context_length_exceeded", "message": "secret"}, "context_length_exceeded"),
        ({"type": "error", "error": {"code": "server_error", "message": "secret"}}, "server_error"),
        (
            {
                "type": "response.failed",
                "response": {"error": {"code": "invalid_encrypted_content", "message": "secret"}},
            },
            "invalid_encrypted_content",
        ),
        ({"error": {"message": "secret"}}, "server_error"),
        (
            {"type": "error", "error": {"type": "insufficient_quota", "code": "insufficient_quota"}},
            "insufficient_quota",
        ),
        ({"type": "response.failed", "response": {"error": {"code": "insufficient_quota"}}}, "insufficient_quota"),
        ({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}, "invalid_prompt"),
        ({"type": "response.cancelled", "response": {}}, "server_error"),
    ],
)
def test_error_events_are_mapped(event, code):
    with pytest.raises(ModelFault) as caught:
        read(delta("output_text", "So"), event)
    assert caught.value.code == code
    assert "secret" not in caught.value.message


def test_other_events_are_ignored():
    others = [
        {"type": "response.created", "response": 7},
        {"type": "response.new.thing", "delta": {}},
        {"type": "keepalive"},
    ]

    assert fold(read(*others, b"[DONE]", delta("output_text", "Hi"), COMPLETED)).text == "Hi"


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"[]",
        b'{"type": 7}',
        b'{"type": "response.output_text.delta", "delta": 7}',
        b'{"type": "response.function_call_arguments.delta", "delta": "x"}',
        b'{"type": "response.output_item.done", "item": {"type": "compaction", "id": "cmp_1"}}',
        b'{"type": "response.output_item.done", "item": {"type": "compaction", "encrypted_content": "gAAAA"}}',
        b'{"type": "response.completed", "response": {"usage": {"input_tokens": "many"}}}',
    ],
)
def test_malformed_data_is_a_fault(data):
    with pytest.raises(ModelFault, match="could not be read"):
        read(data)


def test_an_answer_without_final_event_is_a_fault():
    with pytest.raises(ModelFault, match="ended before"):
        read(delta("output_text", "So"), b"[DONE]")


@given(st.lists(st.text(), max_size=5))
def test_free_text_becomes_json_for_any_fragments(fragments):
    item = {"type": "custom_tool_call", "id": "c", "call_id": "a", "name": "sql", "input": ""}
    deltas = [delta("custom_tool_call_input", part) for part in fragments]
    text = "".join(fragments)
    ends = [
        {"type": "response.custom_tool_call_input.done", "output_index": 0, "input": text},
        done({**item, "input": text}),
    ]

    for end in (ends, ends[:1], ends[1:]):
        [call] = fold(read(added(item), *deltas, *end, COMPLETED)).calls
        assert json.loads(call.arguments) == {"input": text}


def test_usage_details():
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    [finished] = read({"type": "response.completed", "response": {"status": "completed", "usage": usage}})

    assert isinstance(finished, Finished)
    assert finished.usage == Usage(10, InputDetails(4, 3), 5, OutputDetails(2), 15)


# ── items ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def message(text, **more):
    return {"type": "message", "content": [{"type": "output_text", "text": text}], **more}


def test_the_pieces_of_each_item_follow_its_index_and_phase():
    events = [
        *(
            added(message("", phase="commentary")),
            delta("output_text", "One"),
            done(message("One.", phase="commentary")),
        ),
        *(added(message(""), 1), done(message(""), 1)),
        *(added(message(""), 2), delta("output_text", "Two", 2), done(message("Two", phase="final_answer"), 2)),
        done(message("Three", phase=7), 3),
        COMPLETED,
    ]

    assert read(*events) == [
        *(ItemPiece(0, "commentary"), TextPiece("One"), TextPiece(".")),
        *(ItemPiece(2), TextPiece("Two"), ItemPiece(2, "final_answer")),
        *(ItemPiece(3), TextPiece("Three")),
        Finished(),
    ]


def test_adjacent_reasoning_items_stay_separate():
    first, second = ({"type": "reasoning", "summary": [], "encrypted_content": token} for token in ("g1", "g2"))

    assert read(done(first), done(second, 1), COMPLETED) == [
        *(ItemPiece(0), EncryptedReasoning("g1")),
        *(ItemPiece(1), EncryptedReasoning("g2")),
        Finished(),
    ]


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_compaction_item_is_passed_through_from_its_done_event():
    events = [
        added({**COMPACTION, "encrypted_content": "early"}),
        {"type": "response.compaction.compacting", "output_index": 0, "item_id": "cmp_1"},
        done(COMPACTION),
        COMPLETED,
    ]

    assert read(*events) == [CompactionPiece(COMPACTION), Finished()]


def test_a_compaction_item_separates_the_items_around_it():
    reasoning = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    before = {"type": "message", "content": [{"type": "output_text", "text": "Before."}]}
    after = {"type": "message", "content": [{"type": "output_text", "text": "After."}]}
    events = [
        *(added(reasoning), done(reasoning)),
        *(added(before, 1), delta("output_text", "Bef", 1), done(before, 1)),
        *(added(COMPACTION, 2), done(COMPACTION, 2)),
        *(added(after, 3), delta("output_text", "After", 3), done(after, 3)),
        COMPLETED,
    ]

    assert read(*events) == [
        *(ItemPiece(0), EncryptedReasoning("gAAAA")),
        *(ItemPiece(1), TextPiece("Bef"), TextPiece("ore.")),
        CompactionPiece(COMPACTION),
        *(ItemPiece(3), TextPiece("After"), TextPiece(".")),
        Finished(),
    ]
