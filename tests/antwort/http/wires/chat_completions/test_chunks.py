"""The chunks of a stream, and that they fold to the answer that is not streamed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
from fixtures_turn import EchoTools, TurnRunner
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError
from antwort.api.items import Annotation, UrlCitation
from antwort.api.projection import ResponseView
from antwort.api.requests import CreateResponse
from antwort.engine.output_builder import OutputBuilder
from antwort.engine.ports import (
    CallPiece,
    Finished,
    ItemPiece,
    ModelFault,
    ReasoningPiece,
    RefusalPiece,
    SamplingOptions,
    SummaryPiece,
    TextPiece,
    WholeTextAnnotator,
)
from antwort.http.wires.chat_completions.answer import ChatCompletion, ChatCompletionChunk
from antwort.http.wires.chat_completions.chunks import ChunkWriter
from antwort.http.wires.chat_completions.completion import completion
from antwort.http.wires.chat_completions.params import ParamNames
from antwort.http.wires.chat_completions.reader import AnswerForm, ChatRequest

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
SHOUT = {"type": "custom", "name": "shout"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
LOGPROBS = {"include": ["message.output_text.logprobs"]}
VIEW = ResponseView()

TEXTS = st.text(max_size=4)
TOKENS = TEXTS.map(lambda text: TextPiece(text, ({"token": text, "logprob": -1.0, "bytes": [], "top_logprobs": []},)))
PIECES = st.one_of(
    TOKENS,
    st.builds(RefusalPiece, TEXTS),
    st.builds(ItemPiece, st.integers(0, 3)),
)
REASONING = [st.builds(ReasoningPiece, TEXTS), st.builds(SummaryPiece, TEXTS, st.integers(0, 1))]
ARGUMENTS = st.lists(st.sampled_from(['{"a"', ": 1", "}", " ", '{"q": "é"}', '{"input": "x"}']), max_size=3)
REASONS = st.sampled_from(["stop", "length", "content_filter", "calls"])


@st.composite
def replies(draw):
    """A reply of a model: texts and reasoning, of one kind, between calls of all three tools."""
    pieces: list[Any] = draw(st.lists(PIECES | draw(st.sampled_from(REASONING)), max_size=6))
    for index in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(["add", "shout", "file_search", "missing"]))
        call = [CallPiece(index, name, f"call_{index}"), *(CallPiece(index, arguments=one) for one in draw(ARGUMENTS))]
        at = draw(st.integers(0, len(pieces))) if index == 0 else len(pieces)
        pieces[at:at] = call
    return [*pieces, Finished(draw(REASONS))]


def chat(**form) -> ChatRequest:
    return ChatRequest(CreateResponse(), SamplingOptions(), AnswerForm(**form), ParamNames())


def payloads(frames: bytes) -> list[Any]:
    """The data of all frames but `[DONE]`."""
    *lines, done, end = frames.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def written(runner: TurnRunner, request: ChatRequest) -> list[Any]:
    """The chunks of a run. All of them have the form that the documentation states."""
    response = runner.run()
    writer = ChunkWriter(response, request, VIEW)
    frames = b"".join(writer.encode(event) for event in runner.events)
    if request.form.is_obfuscated:
        assert {len(frame) + 2 & 31 for frame in frames.split(b"\n\n")[:-2] if b'"obfuscation"' in frame} <= {0}
    chunks = payloads(frames)
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk)
    return chunks


def fold(chunks: list[Any]) -> dict[str, Any]:
    """The message of these chunks, as clients put it together; with the logprobs, the finish reason and the usage."""
    message: dict[str, Any] = {}
    logprobs: list[Any] | None = None
    reason = usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            _add(message, choice["delta"])
            if choice["logprobs"] is not None:
                logprobs = [*(logprobs or []), *choice["logprobs"]["content"]]
            reason = choice["finish_reason"] or reason
    for listed in ("tool_calls", "antwort:items"):
        if listed in message:
            message[listed] = [{**one, "index": None} for one in message[listed]]
    return {"message": message, "logprobs": logprobs, "finish_reason": reason, "usage": usage}


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        match message.get(name), value:
            case str(text), str():
                message[name] = text if name in ("type", "id") else text + value
            case dict(inner), dict():
                _add(inner, value)
            case list(entries), list():
                for entry in value:
                    if entry["index"] == len(entries):
                        entries.append(entry)
                    else:
                        _add(entries[entry["index"]], {k: v for k, v in entry.items() if k != "index"})
            case (None, _):
                message[name] = value
            case _:
                assert value is None


def blocking(answer: ChatCompletion) -> dict[str, Any]:
    """The same of the answer that is not streamed."""
    plain = msgspec.to_builtins(answer)
    (choice,) = plain["choices"]
    message = choice["message"]
    if not message["annotations"]:
        del message["annotations"]
    for listed in ("tool_calls", "antwort:items"):
        if listed in message:
            message[listed] = [{**one, "index": None} for one in message[listed]]
    logprobs = choice["logprobs"] and choice["logprobs"]["content"]
    return {
        "message": message,
        "logprobs": logprobs or None,
        "finish_reason": choice["finish_reason"],
        "usage": plain["usage"],
    }


@given(
    reply=replies(),
    second=replies(),
    form=st.fixed_dictionaries(
        {
            "is_obfuscated": st.booleans(),
            "has_logprobs": st.booleans(),
            "has_hosted_tools": st.booleans(),
        }
    ),
)
def test_the_chunks_of_a_stream_fold_to_the_answer_that_is_not_streamed(reply, second, form):
    options = LOGPROBS if form["has_logprobs"] else {}
    request = chat(has_usage=True, **form)
    runner = TurnRunner({"tools": [ADD, SHOUT, SEARCH], **options}, reply, *[second] * 3, [Finished()], max_turns=3)
    chunks = written(runner, request)
    answer = completion(runner.turn.response, request, VIEW)

    assert fold(chunks) == blocking(answer)
    first = chunks[0]["choices"][0]["delta"]
    assert (first["role"], chunks[-1]["choices"]) == ("assistant", [])
    assert {chunk["id"] for chunk in chunks} == {answer.id} == {"chatcmpl-1"}
    ended = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in ended if reason] == ended[-1:]


def test_functions_are_called_in_the_deprecated_form():
    reply = [CallPiece(0, "add", "call_1", '{"a":'), CallPiece(0, arguments=" 1}"), Finished("calls")]
    runner = TurnRunner({"tools": [ADD], "parallel_tool_calls": False}, reply)
    request = chat(has_functions=True)
    chunks = written(runner, request)
    answer = blocking(completion(runner.turn.response, request, VIEW))

    assert answer["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1}'}
    assert answer["finish_reason"] == "function_call"
    assert fold(chunks) == {**answer, "usage": None}


def test_indexes_of_citations_count_from_the_start_of_the_message():
    def find(text: str) -> list[Annotation]:
        return [UrlCitation("https://x.example/", "X", text.index("[1]"), text.index("[1]") + 3)]

    first, second = [TextPiece("One [1]."), ItemPiece(1)], [TextPiece("Two: [1]"), Finished()]
    runner = TurnRunner({}, [*first, *second])
    runner.turn._output = OutputBuilder(lambda: WholeTextAnnotator(find))
    request = chat(has_usage=True)
    chunks = written(runner, request)
    answer = blocking(completion(runner.turn.response, request, VIEW))
    text, cited = answer["message"]["content"], answer["message"]["annotations"]

    assert text == "One [1].\n\nTwo: [1]"
    spans = [(one["url_citation"]["start_index"], one["url_citation"]["end_index"]) for one in cited]
    assert [text[start:end] for start, end in spans] == ["[1]", "[1]"]
    assert cited[0]["type"] == "url_citation"
    assert fold(chunks) == answer


def test_hosted_calls_are_not_shown_unless_the_client_declared_them():
    reply = [CallPiece(0, "file_search", "call_1", "{}"), Finished("calls")]
    for has_hosted_tools in (False, True):
        runner = TurnRunner({"tools": [SEARCH]}, reply, [TextPiece("Found."), Finished()], tools=EchoTools)
        request = chat(has_hosted_tools=has_hosted_tools)
        message = fold(written(runner, request))["message"]

        assert message["content"] == "Found."
        assert [item["type"] for item in message.get("antwort:items", [])] == ["file_search_call"] * has_hosted_tools


def test_a_model_that_fails_ends_the_stream_with_one_error_and_without_done():
    runner = TurnRunner({}, [TextPiece("Half"), ModelFault("Busy.", code="rate_limit_exceeded", status=429)])
    response = runner.run()
    writer = ChunkWriter(response, chat(), VIEW)
    *chunks, last, end = b"".join(writer.encode(event) for event in runner.events).decode().split("\n\n")

    assert len(chunks) == 2
    error = {"message": "Busy.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    assert (json.loads(last.removeprefix("data: ")), end) == ({"error": error}, "")
    assert list(writer.error_frames(ApiError(500, "again"))) == []


def test_an_exception_ends_the_stream_with_its_error():
    runner = TurnRunner({}, [Finished()])
    writer = ChunkWriter(runner.run(), chat(), VIEW)
    (frame,) = writer.error_frames(ApiError(503, "No store.", kind="server_error", code="unavailable"))

    assert json.loads(frame.removeprefix(b"data: "))["error"]["code"] == "unavailable"


def test_a_delta_costs_the_same_at_every_place_of_a_stream():
    """One frame for each event, of the same head: nothing is collected."""
    runner = TurnRunner({}, [*itertools.repeat(TextPiece("word "), 50), Finished()])
    response = runner.run()
    writer = ChunkWriter(response, chat(is_obfuscated=False), VIEW)
    frames = [frame for event in runner.events if (frame := writer.encode(event))]

    assert len(frames) == 51
    assert {len(frame) for frame in frames[1:50]} == {len(frames[1])}
