"""Hosted tools, with the real server process and the real SDK."""

from __future__ import annotations

import json
import re

import openai
import pytest
from fake_echo_provider import CITED
from fake_upstream import FakeUpstream, running_upstream
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import ROOT, run_server
from pydantic import BaseModel
from waiting import wait_until

from antwort.testing.model import AnswerCall, ModelAnswer

SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
BROKEN = {"type": "file_search", "vector_store_ids": ["vs_broken"]}
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
UNPREPARED = {"type": "file_search", "vector_store_ids": ["vs_unprepared"]}
SECRET = "a secret of the"


def search(query: str) -> dict:
    return {"call": {"name": "file_search", "arguments": {"query": query}}}


SCRIPT = {
    "fragment": 4,
    "answers": [
        {"when": {"text": "again and again", "tool": "file_search"}, "reply": [search("more"), search("and more")]},
        {"when": {"text": "again and again"}, "reply": [{"text": "Enough: <<output>>"}]},
        {
            "when": {"text": "both", "turn": 1},
            "reply": [{"text": "Let me see."}, search("one"), {"call": {"name": "add", "arguments": {"n": 1}}}],
        },
        {"when": {"text": "twice", "turn": 1}, "reply": [{"reasoning": "Hm."}, search("one"), search("two")]},
        {"when": {"text": "fail", "turn": 1}, "reply": [search("raise")]},
        {"when": {"text": "end", "turn": 1}, "reply": [search("end")]},
        {"when": {"text": "garbage", "turn": 1}, "reply": [{"call": {"name": "file_search", "arguments": "{nope"}}]},
        {"when": {"text": "wait", "turn": 1}, "reply": [search("wait")]},
        {"when": {"text": "cite", "turn": 1}, "reply": [search("one")]},
        {"when": {"text": "cite"}, "reply": [{"text": f"As it says{CITED}."}]},
        {"when": {"text": "structure", "turn": 1}, "reply": [search("one")]},
        {"when": {"text": "structure"}, "reply": [{"text": '{"found": "<<output>>"}'}]},
        {"when": {"turn": 1, "tool": "file_search"}, "reply": [search("<<text>>")]},
        {"reply": [{"text": "I read: <<output>>"}]},
    ],
}


class Found(BaseModel):
    found: str


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "upstream": {"kind": "chat_completions", "base_url": upstream.url},
    }
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}, script=SCRIPT, program=program) as running:
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param) as client:
        yield client


def kinds(items) -> list[tuple[str, str]]:
    return [(item.type, item.status) for item in items]


def test_the_startup_banner_names_the_tool(server):
    assert re.search(r"^tools .*\becho\b", server.banner, re.MULTILINE)


def test_a_hosted_call_runs_and_the_model_reads_its_output(client):
    response = client.responses.create(input="apples", tools=[SEARCH])

    assert kinds(response.output) == [("file_search_call", "completed"), ("message", "completed")]
    assert response.output[0].queries == ["apples"]
    assert response.output[0].results is None
    assert response.output_text == "I read: echo apples"
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_results_are_returned_if_included(client):
    response = client.responses.create(input="apples", tools=[SEARCH], include=["file_search_call.results"])

    assert response.output[0].results[0].text == "apples"
    assert client.responses.retrieve(response.id).output[0].results is None
    assert client.responses.retrieve(response.id, include=["file_search_call.results"]).output == response.output


def test_a_streamed_call_has_the_order_of_the_wire(client):
    with client.responses.stream(model="scripted", input="apples", tools=[SEARCH]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    calls = [event for event in events if getattr(event, "output_index", None) == 0]

    assert [event.type.removeprefix("response.") for event in calls] == [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {event.item_id for event in calls[1:-1]} == {calls[0].item.id} == {calls[-1].item.id}
    assert (calls[0].item.status, calls[-1].item.status) == ("in_progress", "completed")
    assert final.output_text == "I read: echo apples"
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_parallel_calls_all_run(client):
    response = client.responses.create(input="twice", tools=[SEARCH])
    searches = [item for item in response.output if item.type == "file_search_call"]

    assert [item.type for item in response.output] == ["reasoning", "file_search_call", "file_search_call", "message"]
    assert [item.queries for item in searches] == [["one"], ["two"]]
    assert len({item.id for item in searches}) == 2
    assert response.output_text == "I read: echo two"


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_tool_calls_ends_an_endless_loop(client, limit):
    response = client.responses.create(input="again and again", tools=[SEARCH], max_tool_calls=limit)

    assert kinds(response.output) == [("file_search_call", "completed")] * limit + [("message", "completed")]
    assert response.max_tool_calls == limit


def test_max_turns_ends_an_endless_loop(client):
    response = client.responses.create(input="again and again", tools=[SEARCH])

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_messages")
    assert len(response.output) == 64


@pytest.mark.parametrize(
    "text, tool, message",
    [
        ("fail", SEARCH, "The tool failed."),
        ("end", SEARCH, "The tool ended without a result."),
        ("garbage", SEARCH, "The tool failed."),
        ("apples", BROKEN, "The tool could not be started."),
    ],
)
def test_a_tool_that_fails_is_a_failed_call_and_the_model_continues(client, server, text, tool, message):
    with client.responses.stream(model="scripted", input=text, tools=[tool]) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    response = client.responses.create(input=text, tools=[tool])

    for one in (streamed, response):
        assert one.status == "completed"
        assert kinds(one.output) == [("file_search_call", "failed"), ("message", "completed")]
        assert one.output_text.startswith(f"I read: {message}")
    assert SECRET not in streamed.to_json() + response.to_json() + server.read_log()


def test_a_tool_that_cannot_be_prepared_is_a_503_that_names_it(client, server):
    with pytest.raises(openai.InternalServerError, match="Tool type 'file_search' is not available now") as caught:
        client.with_options(max_retries=0).responses.create(input="apples", tools=[UNPREPARED])

    assert caught.value.status_code == 503
    assert SECRET not in server.read_log()


def test_hosted_calls_run_and_client_side_calls_are_returned(client):
    first = client.responses.create(input="both", tools=[SEARCH, FUNCTION])
    call = first.output[-1]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    second = client.responses.create(previous_response_id=first.id, input=[output], tools=[SEARCH, FUNCTION])

    assert kinds(first.output) == [
        ("message", "completed"),
        ("file_search_call", "completed"),
        ("function_call", "completed"),
    ]
    assert json.loads(call.arguments) == {"n": 1}
    assert second.output_text == "I read: 2"


def test_hosted_and_client_side_calls_are_streamed_in_order(client):
    with client.responses.stream(model="scripted", input="both", tools=[SEARCH, FUNCTION]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    done = [event for event in events if event.type == "response.output_item.done"]

    assert {event.output_index: event.item.type for event in done} == {
        index: item.type for index, item in enumerate(final.output)
    }


def test_structured_output_with_a_hosted_tool(client):
    response = client.responses.parse(model="scripted", input="structure", tools=[SEARCH], text_format=Found)

    assert response.output_parsed == Found(found="echo one")
    assert response.output[0].type == "file_search_call"


def test_results_are_cited(client):
    with client.responses.stream(model="scripted", input="cite", tools=[SEARCH]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    cited = final.output[1].content[0].annotations[0]

    assert (cited.type, cited.filename, cited.index) == ("file_citation", "one.txt", len("As it says"))
    assert kinds.index("response.output_text.annotation.added") < kinds.index("response.output_text.done")


def test_a_history_with_hosted_calls_can_be_sent_as_input(client):
    first = client.responses.create(input="apples", tools=[SEARCH], store=False, include=["file_search_call.results"])
    history = [{"role": "user", "content": "apples"}, *first.output, {"role": "user", "content": "pears"}]
    second = client.responses.create(input=history, tools=[SEARCH], store=False)

    assert second.output_text == "I read: echo pears"


def test_a_background_response_with_a_hosted_call_is_followed_and_cancelled(client):
    done = client.responses.create(input="apples", tools=[SEARCH], background=True)
    with client.responses.retrieve(done.id, stream=True) as stream:
        events = list(stream)
    waiting = client.responses.create(input="wait", tools=[SEARCH], background=True)
    wait_until(lambda: client.responses.retrieve(waiting.id).status == "in_progress")
    cancelled = client.responses.cancel(waiting.id)

    assert events[-1].response.output_text == "I read: echo apples"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert cancelled.status == "cancelled"
    assert [item.status for item in cancelled.output] in ([], ["incomplete"])


def test_a_disconnect_stops_the_tool(client):
    seen = []
    with client.responses.create(input="wait", tools=[SEARCH], stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.file_search_call.searching":
                break
    begun = seen[0].response.id
    ended = wait_until(lambda: (now := client.responses.retrieve(begun)).status == "cancelled" and now)

    assert kinds(ended.output) == [("file_search_call", "incomplete")]


# ── requests to the model ───────────────────────────────────────────────────────────────────────────────────────────

CALL = ModelAnswer(calls=(AnswerCall("file_search", '{"query": "apples"}'),), reason="calls")


@pytest.mark.parametrize(
    "choice, expected",
    [({"type": "file_search"}, {"type": "function", "function": {"name": "file_search"}}), ("required", "required")],
)
def test_a_forced_choice_is_forced_once(client, upstream, choice, expected):
    upstream.reset()
    upstream.set_replies(
        FakeUpstream.chat(CALL), FakeUpstream.chat(CALL), FakeUpstream.chat(ModelAnswer(text="Found."))
    )
    response = client.responses.create(model="upstream", input="find", tools=[SEARCH], tool_choice=choice)
    choices = [request.body.get("tool_choice", "auto") for request in upstream.requests]

    assert choices == [expected, "auto", "auto"]
    assert [item.type for item in response.output] == ["file_search_call", "file_search_call", "message"]


def test_a_hosted_tool_is_offered_as_a_function(client, upstream):
    upstream.reset()
    upstream.set_replies(FakeUpstream.chat(CALL), FakeUpstream.chat(ModelAnswer(text="Found.")))
    client.responses.create(model="upstream", input="find", tools=[SEARCH], parallel_tool_calls=False)
    first, second = (request.body for request in upstream.requests)

    assert [tool["function"]["name"] for tool in first["tools"]] == ["file_search"]
    assert first["parallel_tool_calls"] is False
    called, result = second["messages"][-2:]
    assert called["tool_calls"][0]["function"]["arguments"] == '{"query": "apples"}'
    assert (result["role"], result["tool_call_id"]) == ("tool", called["tool_calls"][0]["id"])
    assert result["content"] == "echo apples"


def test_only_allowed_tools_are_offered(client, upstream):
    upstream.reset()
    upstream.set_replies(FakeUpstream.chat(ModelAnswer(text="Fine.")))
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}
    client.responses.create(model="upstream", input="find", tools=[SEARCH, FUNCTION], tool_choice=choice)

    assert [tool["function"]["name"] for tool in upstream.requests[0].body["tools"]] == ["file_search"]
