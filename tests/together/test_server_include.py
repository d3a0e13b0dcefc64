"""The real process and the real SDK: what is shown of items, logprobs from end to end, and padded deltas."""

from __future__ import annotations

import json

import openai
import pytest
from fixtures_server import ROOT, run_server

FOUND = {"query": "xylophone"}
LOGPROBS = "message.output_text.logprobs"
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SAID = [
    {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE, "detail": "low"}]},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "1",
        "outputs": [{"type": "logs", "logs": "1"}],
        "status": "completed",
    },
    {
        "type": "file_search_call",
        "id": "fs_1",
        "queries": ["q"],
        "results": [{"file_id": "file-1", "text": "found"}],
        "status": "completed",
    },
    {"role": "user", "content": "hello"},
]


@pytest.fixture(scope="module")
def back(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("back")) as running:
        yield running


@pytest.fixture(scope="module")
def front(tmp_path_factory, back):
    """A server whose model is the other server."""
    models = {"chained": {"kind": "responses", "base_url": f"{back.url}/v1", "model": "scripted"}}
    with run_server(tmp_path_factory.mktemp("front"), {"models": models}) as running:
        yield running


@pytest.fixture
def client(back):
    with back.client() as client:
        yield client


def large(items):
    """What of the items is shown only when it is asked for."""
    shown = {item.type: item for item in items}
    image = next(part for item in items if item.type == "message" for part in item.content if part.type != "input_text")
    return image.image_url, shown["code_interpreter_call"].outputs, shown["file_search_call"].results


def test_input_items_show_what_is_included_and_nothing_else(client):
    response = client.responses.create(input=SAID)
    plain = client.responses.input_items.list(response.id).data
    both = client.responses.input_items.list(
        response.id, include=["message.input_image.image_url", "code_interpreter_call.outputs"]
    ).data

    assert large(plain) == (None, None, None)
    assert large(both)[0] == IMAGE
    assert large(both)[1][0].logs == "1"
    assert large(both)[2] is None


def test_conversation_items_do_so_too(client):
    conversation = client.conversations.create().id
    everything = ["message.input_image.image_url", "code_interpreter_call.outputs", "file_search_call.results"]
    items = client.conversations.items

    assert large(items.create(conversation, items=SAID).data) == (None, None, None)
    assert large(items.list(conversation).data) == (None, None, None)
    assert large(items.list(conversation, include=everything).data)[2][0].text == "found"
    assert items.retrieve("ci_1", conversation_id=conversation).outputs is None
    assert items.retrieve("ci_1", conversation_id=conversation, include=everything).outputs[0].logs == "1"


def test_what_is_not_shown_is_there_for_the_next_response(client):
    first = client.responses.create(input=SAID)
    second = client.responses.create(input="again", previous_response_id=first.id)
    short = client.responses.input_tokens.count(input="again")
    chained = client.responses.input_tokens.count(input="again", previous_response_id=first.id)

    assert second.status == "completed"
    assert chained.input_tokens > short.input_tokens + 100  # the image alone is so much


SEARCHING = {
    "answers": [
        {"when": {"tool": "file_search", "turn": 1}, "reply": [{"call": {"name": "file_search", "arguments": FOUND}}]},
        {"reply": [{"text": "Found: <<output>>"}]},
    ]
}


def test_the_results_of_a_tool_that_is_run_here_are_kept_whole_and_shown_when_asked_for(tmp_path):
    results, echo = "file_search_call.results", ROOT / "tests" / "stages" / "fake_echo_provider.py"
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    with run_server(tmp_path / "server", script=SEARCHING, program=echo) as server, server.client() as client:
        plain = client.responses.create(input="hello", tools=tools)
        asked = client.responses.create(input="hello", tools=tools, include=[results])
        with client.responses.create(input="hello", tools=tools, stream=True) as stream:
            events = list(stream)
        background = client.responses.create(input="hello", tools=tools, background=True, stream=True)
        followed = list(background)
        again = list(client.responses.retrieve(followed[0].response.id, stream=True, include=[results]))
        later = client.responses.retrieve(plain.id, include=[results])
        kept = client.responses.retrieve(asked.id)

    assert [plain.output[0].results, kept.output[0].results] == [None, None]
    assert asked.output[0].results[0].text == later.output[0].results[0].text == "xylophone"
    for seen, shown in ((events, None), (followed, None), (again, "xylophone")):
        done = next(event.item for event in seen if event.type == "response.output_item.done")
        assert [call.results and call.results[0].text for call in (done, seen[-1].response.output[0])] == [shown] * 2


@pytest.mark.parametrize(
    "path", ["/v1/responses/resp_0", "/v1/responses/resp_0/input_items", "/v1/conversations/conv_0/items"]
)
def test_an_unknown_include_says_which(back, path):
    with back.http() as http:
        answer = http.get(path, params={"include[]": [LOGPROBS, "everything"]})
        error = answer.json()["error"]

    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "include[1]")
    assert LOGPROBS in error["message"]


def test_an_unknown_include_in_a_body_says_so_too(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", include=[LOGPROBS, "everything"])
    assert caught.value.param == "include[1]"


@pytest.mark.parametrize("which", ["back", "front"])
def test_logprobs_come_through(request, which):
    """From a model's pieces, and from a model that is itself behind this API."""
    with request.getfixturevalue(which).client() as client:
        response = client.responses.create(input="hello", include=[LOGPROBS], top_logprobs=1)
        with client.responses.create(input="hello", include=[LOGPROBS], stream=True) as stream:
            events = list(stream)
        with_them = client.responses.retrieve(response.id, include=[LOGPROBS])
        without = client.responses.retrieve(response.id)

    told = response.output[0].content[0].logprobs
    assert "".join(one.token for one in told) == "You said: hello"
    assert [one.top_logprobs[0].token for one in told] == [one.token for one in told]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [event.logprobs[0].token for event in deltas] == [event.delta for event in deltas]
    assert all(event.logprobs[0].top_logprobs == [] for event in deltas)
    [done] = [event for event in events if event.type == "response.output_text.done"]
    assert [one.token for one in done.logprobs] == [event.delta for event in deltas]
    assert with_them.output[0].content[0].logprobs == told
    assert without.output[0].content[0].logprobs == []


def test_logprobs_that_nobody_includes_are_not_there(client):
    response = client.responses.create(input="hello", top_logprobs=3)

    assert (response.output[0].content[0].logprobs, response.top_logprobs) == ([], 3)


def test_a_stream_that_is_resumed_shows_what_was_first_included(client):
    response = client.responses.create(input="hello", include=[LOGPROBS], background=True)
    with client.responses.retrieve(response.id, stream=True) as stream:
        events = list(stream)

    assert events[-1].response.output[0].content[0].logprobs
    assert client.responses.retrieve(response.id).output[0].content[0].logprobs == []


def frames(answer):
    """The data of a stream, as it came."""
    return [line for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("background", [False, True])
def test_deltas_are_padded_unless_that_is_off(back, background):
    body = {"input": "hello hello hello", "stream": True, "background": background}
    with back.http() as http:
        padded = frames(http.post("/v1/responses", json=body))
        plain = frames(http.post("/v1/responses", json=body | {"stream_options": {"include_obfuscation": False}}))
    deltas = [json.loads(line.removeprefix("data: ")) for line in padded if '.delta"' in line]

    assert all("obfuscation" in event for event in deltas)
    assert len({len(line) % 32 for line in padded if '.delta"' in line}) == 1
    assert not any("obfuscation" in line for line in plain)
    assert "".join(event["delta"] for event in deltas) == "You said: hello hello hello"


def test_a_resumed_stream_is_padded_unless_that_is_off(back, client):
    response = client.responses.create(input="hello", background=True)
    with client.responses.retrieve(response.id, stream=True, starting_after=3) as stream:
        padded = [event.to_dict() for event in stream if event.type.endswith(".delta")]
    with client.responses.retrieve(response.id, stream=True, include_obfuscation=False) as stream:
        plain = [event.to_dict() for event in stream if event.type.endswith(".delta")]

    assert padded
    assert all("obfuscation" in event for event in padded)
    assert not any("obfuscation" in event for event in plain)
