from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import Usage
from antwort.engine.ports import Finished, ModelFault, ReasoningPiece, TextPiece
from antwort.models.chat.stream import ChatStream
from antwort.models.upstream_errors import fault_from_stream_error
from antwort.net.sse import EventReader, ServerEvent
from antwort.testing.model import AnswerCall, ModelAnswer, fold

TO_FAULT = partial(fault_from_stream_error, model="mine", redact=lambda text: text.replace("secret", "[redacted]"))


def read(*payloads, name="", top_logprobs=None):
    stream = ChatStream(to_fault=TO_FAULT, new_call_id=lambda: "new_id", top_logprobs=top_logprobs)
    pieces = []
    for payload in payloads:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        pieces += stream.read(ServerEvent(name, data))
    return [*pieces, *stream.close()]


def chunk(delta, reason=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


STOP = chunk({}, "stop")


def test_reasoning_in_either_field_or_both():
    for delta in ({"reasoning_content": "Hm."}, {"reasoning": "Hm."}, {"reasoning_content": "Hm.", "reasoning": "Hm."}):
        assert fold(read(chunk(delta), STOP)).reasoning == "Hm."
    assert fold(read(chunk({"reasoning": {"odd": 1}}), STOP)).reasoning == ""


@pytest.mark.parametrize(
    "said, expected", [({"stop_reason": "END"}, "END"), ({"matched_stop": "END"}, "END"), ({"stop_reason": 7}, None)]
)
def test_the_stop_sequence_that_some_servers_name(said, expected):
    stream = ChatStream(to_fault=TO_FAULT, stop=("END",))
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **said}]}
    list(stream.read(ServerEvent("", json.dumps(ended).encode())))

    assert list(stream.close()) == [Finished(stop_sequence=expected)]


def test_content_in_parts_and_null_fields():
    delta = {"content": [{"type": "text", "text": "a"}, {"type": "odd"}], "tool_calls": None, "refusal": None}
    assert fold(read(chunk(delta), chunk({"content": None}), STOP)).text == "a"


def test_an_answer_that_is_not_streamed():
    message = {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    answer = fold(read(body))

    assert answer == ModelAnswer(
        text="Hi", calls=(AnswerCall("f", "{}", "a"),), reason="calls", usage=Usage(input_tokens=3, total_tokens=3)
    )


def test_legacy_function_call():
    answer = fold(
        read(
            chunk({"function_call": {"name": "f", "arguments": "{"}}),
            chunk({"function_call": {"arguments": "}"}}, "function_call"),
        )
    )

    assert answer.calls == (AnswerCall("f", "{}", "new_id"),)


@pytest.mark.parametrize(
    "reason, has_calls, expected",
    [
        ("stop", False, "stop"),
        ("eos", False, "stop"),
        ("stop", True, "calls"),
        ("tool_calls", True, "calls"),
        ("length", True, "length"),
        ("length", False, "length"),
        ("content_filter", False, "content_filter"),
        ({"type": "length"}, False, "length"),
    ],
)
def test_finish_reason(reason, has_calls, expected):
    delta = (
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]} if has_calls else {"content": "x"}
    )

    assert fold(read(chunk(delta), chunk({}, reason))).reason == expected


@pytest.mark.parametrize("reason", ["error", "abort", {"type": "abort"}])
def test_an_error_finish_reason_is_a_fault(reason):
    with pytest.raises(ModelFault):
        read(chunk({"content": "x"}), chunk({}, reason))


def test_the_last_usage_is_used():
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
    answer = fold(
        read(chunk({"content": "x"}, usage={"prompt_tokens": 5}), STOP, {"choices": [], "usage": usage}, b"[DONE]")
    )

    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 2, 7)


def test_done_without_finish_reason_is_complete_and_neither_is_a_fault():
    assert fold(read(chunk({"content": "x"}), b" [DONE] ")).reason == "stop"
    with pytest.raises(ModelFault, match="ended before it was complete"):
        read(chunk({"content": "x"}))


def test_other_choices_are_ignored():
    assert (
        fold(read({"choices": [{"index": 1, "delta": {"content": "other"}}]}, chunk({"content": "x"}), STOP)).text
        == "x"
    )


def test_logprobs():
    one = {"token": "x", "bytes": [120], "logprob": -0.5, "top_logprobs": []}
    first = {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [one]}}]}

    assert read(first, STOP, top_logprobs=0)[0] == TextPiece("x", (one,))
    assert read(first, STOP)[0] == TextPiece("x")


def test_logprobs_of_reasoning_and_invalid_logprobs_are_ignored():
    reasoning = {"delta": {"reasoning_content": "Hm"}, "logprobs": {"content": [{"token": "Hm", "logprob": -1}]}}
    invalid = {"delta": {"content": "x"}, "logprobs": [0.5]}
    half = {"delta": {"content": ""}, "logprobs": {"content": [{"token": "\ufffd", "logprob": -1, "bytes": [195]}]}}
    pieces = read({"choices": [reasoning]}, {"choices": [invalid]}, {"choices": [half]}, STOP, top_logprobs=0)[:-1]

    assert [type(piece) for piece in pieces] == [ReasoningPiece, TextPiece, TextPiece]
    assert pieces[1:] == [
        TextPiece("x"),
        TextPiece("", ({"token": "\ufffd", "bytes": [195], "logprob": -1.0, "top_logprobs": []},)),
    ]


@pytest.mark.parametrize(
    "payload, name, code",
    [
        ({"error": {"message": "secret", "code": 500}}, "", "server_error"),
        ({"error": "secret"}, "", "server_error"),
        ({"object": "error", "message": "secret maximum context length", "code": 400}, "", "context_length_exceeded"),
        ({"message": "secret"}, "error", "server_error"),
    ],
)
def test_an_error_event(payload, name, code):
    with pytest.raises(ModelFault) as caught:
        read(payload, name=name)
    assert caught.value.code == code
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "data",
    [b"<html>", b"", b"\xff\xfe", b'"text"', b"[]", b'{"choices": 7}', b'{"choices": [{"delta": []}]}', b"[" * 99_999],
)
def test_malformed_data_is_a_fault(data):
    with pytest.raises(ModelFault, match="could not be read"):
        read(data)


def test_a_call_without_name_is_a_fault():
    with pytest.raises(ModelFault, match="could not be read"):
        read(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), STOP)


WORDS = st.text(alphabet='abc é🎈\n"\\{}:', max_size=30)


@given(WORDS, WORDS, st.lists(st.dictionaries(WORDS, WORDS, max_size=2), max_size=3), st.data())
def test_any_split_of_fragments_and_bytes_gives_the_same_answer(reasoning, text, calls, data):
    def fragments(value):
        cuts = sorted({0, len(value), *data.draw(st.lists(st.integers(0, len(value)), max_size=4))})
        return [value[start:stop] for start, stop in itertools.pairwise(cuts)]

    chunks = [chunk({"reasoning_content": part}) for part in fragments(reasoning)]
    chunks += [chunk({"content": part}) for part in fragments(text)]
    for index, arguments in enumerate(calls):
        first = {"index": index, "id": f"id_{index}", "function": {"name": "f", "arguments": ""}}
        chunks.append(chunk({"tool_calls": [first]}))
        chunks += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
            for part in fragments(json.dumps(arguments))
        ]
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    frames = [f": ping{end}{end}data: {json.dumps(one, ensure_ascii=False)}{end}{end}" for one in [*chunks, STOP]]
    source = "".join([*frames, f"data: [DONE]{end}{end}"]).encode()
    edges = sorted({0, len(source), *data.draw(st.lists(st.integers(0, len(source)), max_size=8))})

    reader, stream, pieces = EventReader(100_000), ChatStream(to_fault=TO_FAULT), []
    for start, stop in itertools.pairwise(edges):
        for event in reader.feed(source[start:stop]):
            pieces += stream.read(event)
    answer = fold([*pieces, *stream.close()])

    assert (answer.reasoning, answer.text) == (reasoning, text)
    assert [json.loads(call.arguments) for call in answer.calls] == calls
    assert answer.reason == ("calls" if calls else "stop")
