"""`include`, logprobs and obfuscation of deltas: server process and SDK."""

from __future__ import annotations

import json

import openai
import pytest
from fixtures_server import ROOT, run_server

QUERY = {"query": "xylophone"}
LOGPROBS = "message.output_text.logprobs"
IMAGE = "data:image/png;base64,iVBORw0KGgo="
INPUT = [
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
    """A server whose upstream is the other server."""
    models = {"chained": {"kind": "responses", "base_url": f"{back.url}/v1", "model": "scripted"}}
    with run_server(tmp_path_factory.mktemp("front"), {"models": models}) as running:
        yield running


@pytest.fixture
def client(back):
    with back.client() as client:
        yield client


def optional_fields(items):
    """The fields of the items that are sent only if included."""
    by_type = {item.type: item for item in items}
    image = next(part for item in items if item.type == "message" for part in item.content if part.type != "input_text")
    return image.image_url, by_type["code_interpreter_call"].outputs, by_type["file_search_call"].results


def test_input_items_have_only_included_fields(client):
    response = client.responses.create(input=INPUT)
    plain = client.responses.input_items.list(response.id).data
    both = client.responses.input_items.list(
        response.id, include=["message.input_image.image_url", "code_interpreter_call.outputs"]
    ).data

    assert optional_fields(plain) == (None, None, None)
    assert optional_fields(both)[0] == IMAGE
    assert optional_fields(both)[1][0].logs == "1"
    assert optional_fields(both)[2] is None


def test_conversation_items_have_only_included_fields(client):
    conversation = client.conversations.create().id
    everything = ["message.input_image.image_url", "code_interpreter_call.outputs", "file_search_call.results"]
    items = client.conversations.items

    assert optional_fields(items.create(conversation, items=INPUT).data) == (None, None, None)
    assert optional_fields(items.list(conversation).data) == (None, None, None)
    assert optional_fields(items.list(conversation, include=everything).data)[2][0].text == "found"
    assert items.retrieve("ci_1", conversation_id=conversation).outputs is None
    assert items.retrieve("ci_1", conversation_id=conversation, include=everything).outputs[0].logs == "1"


def test_fields_that_are_not_included_are_stored(client):
    first = client.responses.create(input=INPUT)
    second = client.responses.create(input="again", previous_response_id=first.id)
    short = client.responses.input_tokens.count(input="again")
    chained = client.responses.input_tokens.count(input="again", previous_response_id=first.id)

    assert second.status == "completed"
    assert chained.input_tokens > short.input_tokens + 100  # the image alone has more


SEARCHING = {
    "answers": [
        {"when": {"tool": "file_search", "turn": 1}, "reply": [{"call": {"name": "file_search", "arguments": QUERY}}]},
        {"reply": [{"text": "Found: <<output>>"}]},
    ]
}


def test_hosted_tool_results_are_stored_and_sent_only_if_included(tmp_path):
    results, echo = "file_search_call.results", ROOT / "tests" / "support" / "fake_echo_provider.py"
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    with run_server(tmp_path / "server", script=SEARCHING, program=echo) as server, server.client() as client:
        plain = client.responses.create(input="hello", tools=tools)
        included = client.responses.create(input="hello", tools=tools, include=[results])
        with client.responses.create(input="hello", tools=tools, stream=True) as stream:
            events = list(stream)
        background = client.responses.create(input="hello", tools=tools, background=True, stream=True)
        followed = list(background)
        again = list(client.responses.retrieve(followed[0].response.id, stream=True, include=[results]))
        later = client.responses.retrieve(plain.id, include=[results])
        retrieved = client.responses.retrieve(included.id)

    assert [plain.output[0].results, retrieved.output[0].results] == [None, None]
    assert included.output[0].results[0].text == later.output[0].results[0].text == "xylophone"
    for received, text in ((events, None), (followed, None), (again, "xylophone")):
        done = next(event.item for event in received if event.type == "response.output_item.done")
        assert [call.results and call.results[0].text for call in (done, received[-1].response.output[0])] == [text] * 2


@pytest.mark.parametrize(
    "path", ["/v1/responses/resp_0", "/v1/responses/resp_0/input_items", "/v1/conversations/conv_0/items"]
)
def test_an_unknown_include_in_the_query_is_named(back, path):
    with back.http() as http:
        answer = http.get(path, params={"include[]": [LOGPROBS, "everything"]})
        error = answer.json()["error"]

    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "include[1]")
    assert LOGPROBS in error["message"]


def test_an_unknown_include_in_the_body_is_named(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", include=[LOGPROBS, "everything"])
    assert caught.value.param == "include[1]"


@pytest.mark.parametrize("fixture", ["back", "front"])
def test_logprobs_are_relayed(request, fixture):
    """From a scripted model, and from an upstream with this API."""
    with request.getfixturevalue(fixture).client() as client:
        response = client.responses.create(input="hello", include=[LOGPROBS], top_logprobs=1)
        with client.responses.create(input="hello", include=[LOGPROBS], stream=True) as stream:
            events = list(stream)
        with_them = client.responses.retrieve(response.id, include=[LOGPROBS])
        without = client.responses.retrieve(response.id)

    logprobs = response.output[0].content[0].logprobs
    assert "".join(one.token for one in logprobs) == "You said: hello"
    assert [one.top_logprobs[0].token for one in logprobs] == [one.token for one in logprobs]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [event.logprobs[0].token for event in deltas] == [event.delta for event in deltas]
    assert all(event.logprobs[0].top_logprobs == [] for event in deltas)
    [done] = [event for event in events if event.type == "response.output_text.done"]
    assert [one.token for one in done.logprobs] == [event.delta for event in deltas]
    assert with_them.output[0].content[0].logprobs == logprobs
    assert without.output[0].content[0].logprobs == []


def test_logprobs_are_absent_without_include(client):
    response = client.responses.create(input="hello", top_logprobs=3)

    assert (response.output[0].content[0].logprobs, response.top_logprobs) == ([], 3)


def test_a_resumed_stream_uses_the_include_of_its_request(client):
    response = client.responses.create(input="hello", include=[LOGPROBS], background=True)
    with client.responses.retrieve(response.id, stream=True) as stream:
        events = list(stream)

    assert events[-1].response.output[0].content[0].logprobs
    assert client.responses.retrieve(response.id).output[0].content[0].logprobs == []


def frames(answer):
    """The data lines of a stream."""
    return [line for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("background", [False, True])
def test_deltas_are_obfuscated_unless_disabled(back, background):
    body = {"input": "hello hello hello", "stream": True, "background": background}
    with back.http() as http:
        padded = frames(http.post("/v1/responses", json=body))
        plain = frames(http.post("/v1/responses", json=body | {"stream_options": {"include_obfuscation": False}}))
    deltas = [json.loads(line.removeprefix("data: ")) for line in padded if '.delta"' in line]

    assert all("obfuscation" in event for event in deltas)
    assert len({len(line) % 32 for line in padded if '.delta"' in line}) == 1
    assert not any("obfuscation" in line for line in plain)
    assert "".join(event["delta"] for event in deltas) == "You said: hello hello hello"


def test_a_resumed_stream_is_obfuscated_unless_disabled(back, client):
    response = client.responses.create(input="hello", background=True)
    with client.responses.retrieve(response.id, stream=True, starting_after=3) as stream:
        padded = [event.to_dict() for event in stream if event.type.endswith(".delta")]
    with client.responses.retrieve(response.id, stream=True, include_obfuscation=False) as stream:
        plain = [event.to_dict() for event in stream if event.type.endswith(".delta")]

    assert padded
    assert all("obfuscation" in event for event in padded)
    assert not any("obfuscation" in event for event in plain)
