from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pytest
from fake_responses_api import WIRE, function_call, load, message, response

from weakincentives.adapters.openai import ContainerFile, ContainerFileCitation, UrlCitation
from weakincentives.adapters.openai.responses.parsing import parse_response
from weakincentives.adapters.openai.responses.tool_params import ToolParams, build_tool_params
from weakincentives.adapters.openai.wire import MalformedResponse
from weakincentives.adapters.turn import ClientRunCall, ToolCall, ToolOutput
from weakincentives.budget import TokenUsage
from weakincentives.errors import ContentFilteredError, IncompleteAnswerError, RefusalError
from weakincentives.prompt import MarkdownSection, NativeTool, Prompt, Tool

NOTHING = ToolParams((), ())


def offer(*tools: Tool[Any, Any]) -> ToolParams:
    section = MarkdownSection(title="Task", key="task", template="Do it.", tools=tools)
    return build_tool_params(Prompt(ns="n", key="k", sections=[section]).render(), prompt_name="k", allowed=None)


def read(payload: dict[str, Any], tools: ToolParams = NOTHING) -> Any:
    return parse_response(payload, tools, prompt_name="k")


def test_text_calls_usage_and_items_are_parsed():
    text, call = message("Looking."), function_call("look_up", "call_7", topic="tea")
    reply = read(response({"id": "rs_1", "type": "reasoning", "summary": []}, text, call))

    assert reply.text == "Looking."
    assert reply.final_text is None
    assert reply.calls == (ToolCall("call_7", "look_up", '{"topic": "tea"}'),)
    assert reply.usage == TokenUsage(100, 20, 40, 8)
    assert reply.items[1:] == (text, call)
    assert reply.error is None


def test_response_without_text():
    assert read(response(function_call("f"))).text is None


def test_final_answer_of_two_messages():
    (payload,) = load("two_messages")
    reply = read(payload)

    assert reply.text == 'Let me think about it.\n\n{"summary": "done", "score": 3}'
    assert reply.final_text == '{"summary": "done", "score": 3}'
    assert reply.citations == (
        UrlCitation("https://a.example/", "A", 0, 3),
        UrlCitation("https://b.example/", "B", 25, 34),
    )
    cited = reply.citations[1]
    assert isinstance(cited, UrlCitation)
    assert reply.text[cited.start_index : cited.end_index] == '"summary"'


def test_last_message_is_the_answer_without_a_phase():
    assert read(response(message("one"), message("two"))).final_text == "two"
    assert read(response(message("one", phase="final_answer"), message("two"))).final_text == "one"


def test_cited_files_belong_to_the_previous_call():
    reply = read(load("code_interpreter")[1])

    (call,) = reply.native_calls
    assert call.result.value.files == (ContainerFile("cntr_1", "cfile_1", "answer.txt"),)
    assert reply.citations == (ContainerFileCitation("cntr_1", "cfile_1", "answer.txt", 13, 17),)


def test_file_cited_twice_is_listed_once():
    cited = {"type": "container_file_citation", "container_id": "c", "file_id": "f", "filename": "a"}
    code = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "c", "code": "1", "outputs": []}
    reply = read(response(code, message("a and a", cited, cited), message("x", {**cited, "container_id": "other"})))

    assert len(reply.native_calls[0].result.value.files) == 1
    assert len(reply.citations) == 3


def test_unknown_items_are_kept_without_calls():
    first, second = (read(payload) for payload in load("unknown_items"))

    assert [item["type"] for item in first.items] == ["reasoning", "telepathy_call", "function_call"]
    assert (first.native_calls, len(first.calls)) == ((), 1)
    assert (second.text, second.citations) == ('{"summary": "done", "score": 3}', ())


@dataclass
class Query:
    query: str


@dataclass
class Payload:
    payload: dict[str, object]


@dataclass
class Strict:
    query: str

    def __post_init__(self) -> None:
        if not self.query:
            raise ValueError("query is empty")


def test_calls_and_results_have_the_declared_types():
    (payload,) = load("web_search")
    tool = NativeTool[Query, Payload](name="web_search", description="Search.")
    reply = read(payload, offer(tool))

    assert [call.params for call in reply.native_calls] == [Query("tea prices"), Query(""), Query("")]
    assert reply.native_calls[0].result.value == Payload(payload["output"][1])
    assert [call.call_id for call in reply.native_calls] == ["ws_1", "ws_2", "ws_3"]


def test_call_that_does_not_fit_uses_default_types(caplog):
    (payload,) = load("web_search")
    reply = read(payload, offer(NativeTool[Strict, Payload](name="web_search", description="Search.")))

    assert reply.native_calls[0].params == Strict("tea prices")
    assert reply.native_calls[1].params.action == "open_page"
    assert "does not fit its declared types" in caplog.text


def test_undeclared_provider_run_tool_is_recorded():
    (payload,) = load("web_search")

    assert [call.name for call in read(payload).native_calls] == ["web_search"] * 3


@pytest.mark.parametrize("name", ["shell_local", "apply_patch"])
def test_undeclared_tool_is_never_run_by_the_client(name):
    reply = read(load(name)[0])

    for call in reply.calls:
        assert isinstance(call, ClientRunCall)
        context: Any = None  # unused
        result = call.run(context)
        assert (result.success, result.message) == (False, "This tool was not offered, and is not run.")


def test_client_run_answer_uses_the_capability_types():
    tool = NativeTool[type(None), Payload](name="shell", description="Run.")
    (call,) = read(load("shell_local")[0], offer(tool)).calls

    assert isinstance(call, ClientRunCall)
    assert call.params is None
    answer: Any = call.format_output(ToolOutput("call_1", "shell", "could not", success=False))
    assert [entry["stderr"] for entry in answer["output"]] == ["could not", "could not"]


@pytest.mark.parametrize(
    "name, kind, expected",
    [
        ("refusal", RefusalError, "the model refused: I will not judge tea."),
        ("content_filter", ContentFilteredError, "content filter"),
        ("cut_off", IncompleteAnswerError, "max_output_tokens. Raise it"),
    ],
)
def test_refusal_and_incomplete_response_carry_an_error(name, kind, expected):
    (payload,) = load(name)
    reply = read(payload)

    assert type(reply.error) is kind
    assert reply.error is not None
    assert expected in reply.error.message
    assert (reply.error.phase, reply.error.provider_payload) == ("response", payload)


def test_calls_before_a_stopped_answer_are_parsed():
    reply = read(load("content_filter")[0])

    assert [call.call_id for call in reply.native_calls] == ["ci_1"]
    assert reply.text == "The tea"


def test_unknown_incomplete_reason_is_reported():
    reply = read(response(status="incomplete", incomplete_details={"reason": "steered"}))

    assert isinstance(reply.error, IncompleteAnswerError)
    assert "(steered)" in reply.error.message
    assert "(no reason given)" in str(read(response(status="incomplete")).error)


def test_refusal_beside_a_call_is_no_error():
    refused = {"id": "m", "type": "message", "content": [{"type": "refusal", "refusal": "no"}]}

    assert read(response(refused, function_call("f"))).error is None


@pytest.mark.parametrize(
    "output",
    [
        "text",
        [7],
        [{"type": 7}],
        [{"type": "function_call", "call_id": "c"}],
        [{"type": "function_call", "name": "f"}],
        [{"type": "message", "content": "text"}],
        [{"type": "message", "content": [{"type": "output_text", "text": 5}]}],
        [{"type": "code_interpreter_call", "outputs": []}],
        [{"type": "web_search_call", "id": "ws_1", "action": "search"}],
        [{"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "queries": 5}}],
        [{"type": "file_search_call", "id": "fs_1", "queries": 5}],
        [
            {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"outcome": {"type": "exit", "exit_code": "x"}}]},
        ],
    ],
)
def test_wrong_shapes_are_malformed(output):
    with pytest.raises(MalformedResponse):
        read(response(output=output))


def value_paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*above, key)
        yield from value_paths(held, (*above, key))


@pytest.mark.parametrize("name", sorted(path.stem for path in WIRE.glob("*.json") if path.stem != "envelope"))
def test_mutated_response_is_parsed_or_malformed(name):
    """A server may send any value in any field; no other exception is raised."""
    for whole in load(name):
        for *above, last in value_paths(whole["output"]):
            for odd in (None, 5, "x", [1], {"a": 1}, [{}]):
                output = copy.deepcopy(whole["output"])
                reduce(lambda inside, key: inside[key], above, output)[last] = odd
                try:
                    reply = read({**whole, "output": output})
                except MalformedResponse:
                    continue
                assert all(isinstance(call.result.render(), str) for call in reply.native_calls)
