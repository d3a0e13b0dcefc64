"""Input items: server process and SDK. What a model cannot read or the server does not implement is refused by name."""

from __future__ import annotations

import base64
import json

import openai
import pytest
from fake_upstream import running_upstream
from fixtures_code_interpreter import AUTO, OUTPUTS, code_server, run
from fixtures_server import create_key

from antwort.testing.model import AnswerCall, ModelAnswer

HELLO = ModelAnswer(text="Hello.")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PIXEL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
USER = {"role": "user", "content": "hello"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
CODE_CALL = {"type": "code_interpreter_call", "container_id": "cntr_0", "code": "6 * 7", "status": "completed"}
ENTRY_POINTS = ["responses", "conversations", "conversation items", "compact", "input_tokens"]


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    directory = tmp_path_factory.mktemp("server")
    chat = {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate", "attempts": 1}
    models = {
        "default": "scripted",
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "sighted": chat,
        "blind": {**chat, "images": False},
        "upstream": {"kind": "responses", "base_url": upstream.url, "attempts": 1},
    }
    keys = {tenant: create_key(directory, tenant, "--tenant", tenant) for tenant in ("us", "them")}
    with code_server("local", directory, models=models, auth={"keys_file": "keys.json"}) as running:
        running.keys = keys
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO), path="v1/chat/completions")
    upstream.set_replies(upstream.responses(HELLO), path="v1/responses")
    with server.client(server.keys["us"]) as client:
        yield client


def refusal(work, *arguments, **parameters) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        work(*arguments, **parameters)
    return caught.value


def message_of(error: openai.APIStatusError) -> str:
    return error.response.json()["error"]["message"]


def user(*parts):
    return {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}


def sent_texts(upstream) -> str:
    return json.dumps([request.body["messages"] for request in upstream.requests])


# ── images for a model without vision ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def uploaded(client):
    return client.files.create(file=("photo.png", PNG), purpose="vision")


@pytest.mark.parametrize("source", ["data URL", "URL", "file"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_image_for_a_model_without_vision_is_a_400_that_names_the_part(client, upstream, uploaded, source, stream):
    address = {"data URL": PIXEL, "URL": "https://x.example/a.png"}
    fields = {"file_id": uploaded.id} if source == "file" else {"image_url": address[source]}
    image = {"type": "input_image", "detail": "auto", **fields}
    error = refusal(client.responses.create, model="blind", input=[USER, user(image)], stream=stream)

    assert (error.code, error.param) == ("unsupported_value", "input[1].content[1]")
    assert "'blind' cannot read images" in error.message
    assert upstream.requests == []
    assert client.responses.create(model="sighted", input=[user(image)]).output_text == "Hello."
    assert "[image]" not in sent_texts(upstream)


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_an_image_in_the_output_of_a_tool_is_a_400_that_names_the_part(client, upstream, kind):
    called = {**CALL, "type": kind, "input": "x"}
    output = {"type": f"{kind}_output", "call_id": "call_1", "output": [{"type": "input_image", "image_url": PIXEL}]}
    for work in (client.responses.create, client.responses.input_tokens.count, client.responses.compact):
        error = refusal(work, model="blind", input=[USER, called, output])
        assert (error.code, error.param) == ("unsupported_value", "input[2].output[0]")
    assert upstream.requests == []


@pytest.mark.parametrize("kept_by", ["previous_response_id", "conversation"])
def test_an_image_of_the_history_is_a_400_that_names_the_item(client, upstream, uploaded, kept_by):
    history = client.conversations.create().id if kept_by == "conversation" else None
    given = [user({"type": "input_image", "file_id": uploaded.id})]
    first = client.responses.create(model="sighted", input=given, conversation=history)
    [item] = client.responses.input_items.list(first.id).data
    named = {kept_by: history or first.id}
    error = refusal(client.responses.create, model="blind", input="And now?", **named)

    assert (error.code, error.param) == ("unsupported_value", kept_by)
    assert f"content[1] of the item '{item.id}'" in error.message
    assert "Use a model that reads images, or a history without this item." in error.message
    assert client.responses.create(model="sighted", input="And now?", **named).status == "completed"
    assert len(upstream.requests) == 2


def test_an_image_for_a_model_without_vision_is_a_file_for_the_code_interpreter(client, upstream, uploaded):
    code = "import os; print(sorted(name for name in os.listdir('/mnt/data')))"
    arguments = json.dumps({"code": code})
    upstream.set_replies(
        upstream.chat(ModelAnswer(calls=(AnswerCall("code_interpreter", arguments),), reason="calls")),
        upstream.chat(HELLO),
        path="v1/chat/completions",
    )
    images = [{"type": "input_image", "file_id": uploaded.id}, {"type": "input_image", "image_url": PIXEL}]
    response = client.responses.create(model="blind", input=[user(*images)], tools=[AUTO], include=OUTPUTS)
    shown = upstream.requests[0].body["messages"][-1]["content"]

    assert "['image.png', 'photo.png']" in response.output[0].outputs[0].logs
    assert "[attached image: photo.png, for your tools to read]" in shown
    assert "[attached image: image.png, for your tools to read]" in shown
    linked = user({"type": "input_image", "image_url": "https://x.example/a.png"})
    error = refusal(client.responses.create, model="blind", input=[linked], tools=[AUTO])
    assert (error.code, error.param) == ("unsupported_value", "input[0].content[1]")


# ── unknown items ────────────────────────────────────────────────────────────────────────────────────────────────────


def send(client, entry_point, item):
    match entry_point:
        case "responses":
            client.responses.create(input=[USER, item])
        case "conversations":
            client.conversations.create(items=[USER, item])
        case "conversation items":
            client.conversations.items.create(client.conversations.create().id, items=[USER, item])
        case "compact":
            client.responses.compact(model="scripted", input=[USER, item])
        case "input_tokens":
            client.responses.input_tokens.count(input=[USER, item])


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_an_unknown_input_item_is_a_400_that_names_item_and_type(client, entry_point):
    error = refusal(send, client, entry_point, {"type": "bogus", "id": "x_1", "any": ["thing"]})

    assert (error.code, error.param) == ("invalid_value", f"{'items' if 'conv' in entry_point else 'input'}[1].type")
    message = message_of(error)
    assert message.startswith("Invalid value: 'bogus'. Supported values are: 'message', 'function_call', ")
    assert "'item_reference'." in message


@pytest.mark.parametrize("model", ["sighted", "upstream"])
@pytest.mark.parametrize(
    "item",
    [
        {"type": "program", "call_id": "call_1", "code": "1", "fingerprint": "f"},
        {"type": "program_output", "call_id": "call_1", "result": "1", "status": "completed"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ],
    ids=lambda item: item["type"],
)
def test_an_input_item_that_is_not_implemented_is_a_400_that_names_it(client, upstream, item, model):
    error = refusal(client.responses.create, model=model, input=[item, USER])

    assert (error.code, error.param) == ("invalid_value", "input[0].type")
    assert f"Input items of type '{item['type']}' are not available on this server." in error.message
    assert upstream.requests == []


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_an_unknown_content_part_is_a_400_that_names_its_path(client, entry_point):
    error = refusal(send, client, entry_point, user({"type": "input_video", "url": "x"}))

    param = "items" if "conv" in entry_point else "input"
    assert (error.code, error.param) == ("invalid_value", f"{param}[1].content[1].type")
    assert "input_video" in error.message


FOREIGN_HISTORY = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "tea"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["tea"], "results": None},
    {"type": "image_generation_call", "id": "ig_1", "result": "AA==", "status": "completed"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "brew", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "brew", "arguments": "{}", "output": "ready"},
    {"type": "shell_call", "id": "sh_1", "call_id": "call_2", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "id": "sho_1", "call_id": "call_2", "output": []},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_3", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "call_3", "output": "a.txt"},
    {"type": "apply_patch_call", "id": "apc_1", "call_id": "call_4", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "id": "apco_1", "call_id": "call_4", "status": "completed"},
    {"type": "computer_call", "id": "cu_1", "call_id": "call_6", "actions": [{"type": "screenshot"}]},
    {
        "type": "computer_call_output",
        "call_id": "call_6",
        "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="},
    },
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_5", "name": "sql", "input": "x"},
    {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "call_5", "output": "y"},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
]


@pytest.mark.parametrize("model", ["sighted", "upstream"])
def test_a_history_of_openai_is_replayed(client, upstream, model):
    response = client.responses.create(model=model, input=[USER, *FOREIGN_HISTORY, USER])
    sent = json.dumps(upstream.requests[-1].body, ensure_ascii=False)

    assert response.status == "completed"
    for shown in ("web_search", "file_search", "brew", "mcpr_1 was approved by the user", "ready", "a.txt", "sql"):
        assert shown in sent
    conversation = client.conversations.create(items=FOREIGN_HISTORY)
    assert client.responses.create(model=model, input="go on", conversation=conversation.id).status == "completed"


@pytest.mark.parametrize(
    "item, code, param",
    [
        ({"type": "mcp_approval_response"}, "missing_required_parameter", "approval_request_id"),
        (
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": "no"},
            "invalid_type",
            "approve",
        ),
        ({"type": "mcp_approval_request", "id": "mcpr_1"}, "missing_required_parameter", "server_label"),
        ({"type": "mcp_call"}, "missing_required_parameter", "server_label"),
        ({"type": "mcp_list_tools"}, "missing_required_parameter", "server_label"),
        ({"type": "shell_call", "call_id": "c", "action": "x"}, "invalid_type", "action"),
        ({"type": "shell_call", "call_id": "c", "action": {}}, "missing_required_parameter", "action.commands"),
        ({"type": "shell_call_output"}, "missing_required_parameter", "call_id"),
        ({"type": "shell_call_output", "call_id": "c", "output": "x"}, "invalid_type", "output"),
        ({"type": "local_shell_call", "call_id": "c"}, "missing_required_parameter", "action"),
        ({"type": "local_shell_call_output", "id": "c"}, "missing_required_parameter", "output"),
        ({"type": "apply_patch_call", "call_id": "c"}, "missing_required_parameter", "operation"),
        ({"type": "apply_patch_call_output"}, "missing_required_parameter", "call_id"),
        ({"type": "computer_call", "call_id": "c", "actions": 5}, "invalid_type", "actions"),
        ({"type": "computer_call_output", "call_id": "c"}, "missing_required_parameter", "output"),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "x"}}, "invalid_value", "output.type"),
        ({"type": "file_search_call", "queries": 5}, "invalid_type", "queries"),
        ({"type": "web_search_call", "action": 5}, "invalid_type", "action"),
        ({"type": "image_generation_call", "result": 5}, "invalid_type", "result"),
        ({**USER, "status": "bogus"}, "invalid_value", "status"),
        ({**USER, "status": 5}, "invalid_type", "status"),
        ({**USER, "phase": 7}, "invalid_type", "phase"),
        ({**USER, "type": None}, "invalid_type", "type"),
    ],
)
def test_an_input_item_with_missing_or_invalid_fields_is_a_400_that_names_the_field(client, item, code, param):
    error = refusal(client.responses.create, input=[item])

    assert (error.code, error.param) == (code, f"input[0].{param}")


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_item_twice_is_refused_as_openai_does(client):
    message = {**USER, "id": "msg_1"}
    for given in ([message, message], [message, {"type": "item_reference", "id": "msg_1"}]):
        error = refusal(client.responses.create, input=given)
        assert (error.code, error.param) == (None, "input")
        text = "Duplicate item found with id msg_1. Remove duplicate items from your input and try again."
        assert message_of(error) == text
    assert client.responses.create(input=[USER, USER]).status == "completed"


@pytest.mark.parametrize("kept_by", ["response", "conversation"])
def test_an_item_of_the_history_that_is_sent_again_is_refused_and_nothing_is_lost(client, kept_by):
    message = {**USER, "id": "msg_k1"}
    conversation = client.conversations.create().id if kept_by == "conversation" else None
    first = client.responses.create(input=[message], conversation=conversation)
    history = {"conversation": conversation} if conversation else {"previous_response_id": first.id}
    for again in (message, {**message, "content": "other"}, {"type": "item_reference", "id": "msg_k1"}):
        error = refusal(client.responses.create, input=[USER, again], **history)
        assert (error.code, error.param) == (None, "input")
        assert message_of(error).startswith("Duplicate item found with id msg_k1. Remove duplicate items")
    error = refusal(client.responses.create, input=[item.to_dict() for item in first.output], **history)
    assert f"Duplicate item found with id {first.output[0].id}." in message_of(error)
    assert client.responses.create(input=[{**USER, "id": "msg_k2"}], **history).status == "completed"


@pytest.mark.parametrize("entry_point", ["conversations", "conversation items"])
def test_the_same_item_twice_is_refused_for_a_conversation(client, entry_point):
    message = {**USER, "id": "msg_1"}
    conversation = client.conversations.create().id
    works = {
        "conversations": client.conversations.create,
        "conversation items": lambda items: client.conversations.items.create(conversation, items=items),
    }
    error = refusal(works[entry_point], items=[message, message])

    assert (error.code, error.param) == (None, "items")
    assert (
        message_of(error) == "Duplicate item found with id msg_1. Remove duplicate items from your items and try again."
    )


def expected(path: str, value: str, prefix: str) -> str:
    return f"Invalid '{path}': '{value}'. Expected an ID that begins with '{prefix}'."


CHARACTERS = (
    "Expected an ID that contains letters, numbers, underscores, or dashes, but this value contained additional "
    "characters."
)
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
EMPTY = "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string instead."
LONG = (
    "Invalid '{}': string too long. Expected a string with maximum length 64, but got a string with length 65 instead."
)


@pytest.mark.parametrize(
    "parameters, param, code, message",
    [
        ({"previous_response_id": "abc"}, "previous_response_id", "invalid_value", None),
        (
            {"previous_response_id": "resp_@x"},
            "previous_response_id",
            "invalid_value",
            f"Invalid 'previous_response_id': 'resp_@x'. {CHARACTERS}",
        ),
        (
            {"conversation": "abc"},
            "conversation",
            "invalid_value",
            "Invalid 'conversation': 'abc'. Expected an ID that begins with 'conv'.",
        ),
        ({"input": [{**USER, "id": "abc"}]}, "input[0].id", "invalid_value", expected("input[0].id", "abc", "msg")),
        ({"input": [{**USER, "id": ""}]}, "input[0].id", "empty_string", EMPTY.format("input[0].id")),
        (
            {"input": [USER, {**CALL, "id": "call_1"}]},
            "input[1].id",
            "invalid_value",
            expected("input[1].id", "call_1", "fc"),
        ),
        (
            {"input": [{"type": "reasoning", "id": "item_1", "summary": [{"type": "summary_text", "text": "x"}]}]},
            "input[0].id",
            "invalid_value",
            expected("input[0].id", "item_1", "rs"),
        ),
        (
            {"input": [{**CODE_CALL, "id": "call_1"}]},
            "input[0].id",
            "invalid_value",
            expected("input[0].id", "call_1", "ci"),
        ),
        ({"input": [{**USER, "id": 3}]}, "input[0].id", "invalid_type", None),
        (
            {"input": [{**USER, "id": "msg_" + "1" * 61}]},
            "input[0].id",
            "string_above_max_length",
            LONG.format("input[0].id"),
        ),
        (
            {"input": [{**OUTPUT, "call_id": "c" * 65}]},
            "input[0].call_id",
            "string_above_max_length",
            LONG.format("input[0].call_id"),
        ),
        (
            {"input": [{**OUTPUT, "call_id": ""}]},
            "input[0].call_id",
            "empty_string",
            EMPTY.format("input[0].call_id"),
        ),
    ],
)
def test_a_malformed_id_is_refused_as_openai_does(client, parameters, param, code, message):
    error = refusal(client.responses.create, **{"input": "hello", **parameters})

    assert (error.code, error.param) == (code, param)
    assert message in (None, message_of(error))


def test_the_long_call_id_of_a_model_is_replaced_by_one_that_the_client_can_send_back(client, upstream):
    reply = upstream.chat(ModelAnswer(calls=(AnswerCall("look", "{}"),), reason="calls"))
    reply.chunks = [chunk.replace(b"call_0", b"c" * 90) for chunk in reply.chunks]
    upstream.set_replies(reply, upstream.chat(HELLO), path="v1/chat/completions")
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    first = client.responses.create(model="sighted", input="hello", tools=[tool])
    [called] = first.output
    output = {**OUTPUT, "call_id": called.call_id}
    second = client.responses.create(model="sighted", input=[USER, called, output], tools=[tool])

    assert len(called.call_id) <= 64
    assert second.output_text == "Hello."


# ── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_listed_input_items_have_a_status(client):
    parts = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
    cut = {"type": "message", "role": "assistant", "status": "incomplete", "content": "y"}
    given = [USER, parts, cut, CALL, OUTPUT, CODE_CALL, *FOREIGN_HISTORY]
    response = client.responses.create(input=given)
    conversation = client.conversations.create(items=given[:20])
    listed = client.responses.input_items.list(response.id, order="asc", limit=100).to_dict()["data"]
    kept = client.conversations.items.list(conversation.id, order="asc", limit=100).to_dict()["data"]
    fetched = client.conversations.items.retrieve(kept[1]["id"], conversation_id=conversation.id).to_dict()
    without = ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")

    assert [item.get("status") for item in listed[:6]] == ["completed"] * 2 + ["incomplete"] + ["completed"] * 3
    for items in (listed, kept):
        assert {item["type"] for item in items if item.get("status") is None} == set(without)
    assert fetched["status"] == "completed"


def test_a_listed_item_can_be_added_again(client):
    conversation = client.conversations.create(items=[{**USER, "id": "msg_1"}])
    [listed] = client.conversations.items.list(conversation.id).data
    client.conversations.items.create(conversation.id, items=[listed.to_dict()])

    assert len(client.conversations.items.list(conversation.id).data) == 1


# ── code interpreter calls ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_code_interpreter_call_needs_no_id(client):
    conversation = client.conversations.create(items=[CODE_CALL])
    added = client.conversations.items.create(conversation.id, items=[{**CODE_CALL, "outputs": None}])
    response = client.responses.create(input=[CODE_CALL, USER])
    listed = client.responses.input_items.list(response.id, order="asc").data

    for item in (added.data[0], listed[0]):
        assert (item.type, item.id[:3], item.code) == ("code_interpreter_call", "ci_", "6 * 7")


def test_a_replayed_code_interpreter_call_without_outputs_is_looked_up_by_its_id(client, server, upstream):
    first = run(client, "print('xylo' + 'phone')", include=[])
    [called] = [item for item in first.output if item.type == "code_interpreter_call"]
    replayed = [item.to_dict() for item in first.output]
    for number, options in enumerate(({}, {"store": False}, {"conversation": client.conversations.create().id}), 1):
        client.responses.create(model="sighted", input=[USER, *replayed, USER], **options)
        assert upstream.requests[-1].body["messages"][2]["content"] == "xylophone\n"
        assert len(upstream.requests) == number
    assert called.outputs is None

    with server.client(server.keys["them"]) as other:
        other.responses.create(model="sighted", input=[USER, *replayed, USER])
    assert "not part of this history" in upstream.requests[-1].body["messages"][2]["content"]


def test_a_code_interpreter_call_that_was_not_stored_has_no_known_output(client, upstream):
    first = run(client, "print('xylo' + 'phone')", include=[], store=False)
    client.responses.create(model="sighted", input=[USER, *(item.to_dict() for item in first.output), USER])

    assert "not part of this history" in upstream.requests[-1].body["messages"][2]["content"]
