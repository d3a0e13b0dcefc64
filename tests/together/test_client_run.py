"""Tools that the client runs, with the real server process: patches, local shells and computers for any model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    apply_diff,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from fake_upstream import running_upstream
from fixtures_server import create_key, run_server
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from waiting import wait_until

from antwort.testing.model import ModelAnswer
from antwort.tools.client_run.v4a import BadPatch, read_operation
from weakincentives.adapters.openai import OpenAIAdapter, OpenAIApplyPatchSection, OpenAIClientConfig
from weakincentives.adapters.openai.native_tools.v4a import PatchError, update
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session, ToolInvoked

PATCH, SHELL, LOCAL_SHELL, COMPUTER = ({"type": kind} for kind in ("apply_patch", "shell", "local_shell", "computer"))
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 800,
    "display_height": 600,
    "environment": "browser",
}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)

GREETING = "def greet():\n    return 'hello'\n\n\nif __name__ == '__main__':\n    print(greet())\n"
UPDATE = "@@ def greet():\n-    return 'hello'\n+    return 'good morning'\n"
NOTES = "+# Notes\n+\n+- Greets politely.\n"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


PATCHES = [
    call("apply_patch", type="update_file", path="greet.py", diff=UPDATE),
    call("apply_patch", type="create_file", path="docs/notes.md", diff=NOTES),
    call("apply_patch", type="delete_file", path="old.txt"),
]
BROKEN = call("apply_patch", type="update_file", path="greet.py", diff="-    return 'hello'\nreturn 'good morning'\n")


def _written(tool: str) -> dict[str, Any]:
    """The model calls the tool with the user's text as its arguments."""
    return {
        "when": {"tool": tool, "text": "/^\\W/", "turn": 1},
        "reply": [{"call": {"name": tool, "arguments": "<<text>>"}}],
    }


SCRIPT = {
    "fragment": 7,
    "answers": [
        {"when": {"text": "Greet politely", "turn": 1}, "reply": [BROKEN]},
        {"when": {"text": "Greet politely", "output": "Make this call again"}, "reply": PATCHES},
        {"when": {"text": "Greet politely", "turn": 2}, "reply": [{"text": "It greets politely."}]},
        {"when": {"text": "broken once", "turn": 1}, "reply": [BROKEN]},
        {"when": {"text": "broken once", "output": "Make this call again"}, "reply": PATCHES[:1]},
        {"when": {"text": "broken twice", "turn": 1}, "reply": [BROKEN]},
        {"when": {"text": "broken twice", "turn": 2}, "reply": [BROKEN]},
        {"when": {"text": "a good and a broken one", "turn": 1}, "reply": [PATCHES[1], BROKEN]},
        {"when": {"text": "a broken and a good one", "turn": 1}, "reply": [BROKEN, call("add"), PATCHES[1]]},
        {"when": {"text": "good one twice", "turn": 1}, "reply": [PATCHES[1], BROKEN]},
        {"when": {"text": "good one twice", "turn": 2}, "reply": [BROKEN]},
        {"when": {"text": "good", "any": "Make this call again"}, "reply": PATCHES[:1]},
        {"when": {"text": "always a broken patch", "tool": "apply_patch"}, "reply": [BROKEN]},
        {
            "when": {"text": "always a broken command", "tool": "shell"},
            "reply": [{"call": {"name": "shell", "arguments": '{"commands": ["rm -r'}}],
        },
        {
            "when": {"text": "whatever it reads"},
            "reply": [{"call": {"name": "shell", "arguments": '{"commands": ["rm -r'}}],
        },
        {"when": {"text": "three patches", "turn": 1}, "reply": PATCHES},
        {"when": {"text": "test it", "turn": 1}, "reply": [call("shell", commands=["python3 greet.py", "exit 3"])]},
        {"when": {"text": "summarize the conversation"}, "reply": [{"text": "Files were patched."}]},
        *map(_written, ("apply_patch", "shell", "local_shell", "computer")),
        {"reply": [{"text": "I read: <<output>>"}]},
    ],
}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    directory = tmp_path_factory.mktemp("server") / "s"
    chat = {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate", "attempts": 1}
    models = {
        "default": "scripted",
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "chat": chat,
        "blind": {**chat, "images": False},
        "responses": {"kind": "responses", "base_url": upstream.url, "attempts": 1},
    }
    keys = {name: create_key(directory, name, "--tenant", name) for name in ("us", "them")}
    with run_server(directory, {"models": models, "auth": {"keys_file": "keys.json"}}, script=SCRIPT) as running:
        running.keys = keys
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(ModelAnswer(text="Hello.")), path="v1/chat/completions")
    upstream.set_replies(upstream.responses(ModelAnswer(text="Hello.")), path="v1/responses")
    with server.client(server.keys["us"]) as sdk:
        yield sdk


def ask(client, given: str | list, tool: dict, **more: Any):
    return client.responses.create(**{"model": "scripted", "input": given, "tools": [tool], **more})


def items(response) -> list[dict]:
    return [item.to_dict() for item in response.output]


# ── calls and their outputs ──────────────────────────────────────────────────────────────────────────────────────────


class Kind(NamedTuple):
    """A tool, the function that the model sees, its arguments, and what the client answers."""

    tool: dict[str, Any]
    function: str
    arguments: dict[str, Any]
    output: dict[str, Any]
    text: str
    """What the model reads of the output."""


def _shell_entry(stdout: str, **outcome: Any) -> dict[str, Any]:
    return {"stdout": stdout, "stderr": "", "outcome": outcome}


KINDS = {
    "apply_patch_call": Kind(
        PATCH,
        "apply_patch",
        {"type": "update_file", "diff": UPDATE, "path": "greet.py"},
        {"status": "failed", "output": "The file is not there."},
        "The file is not there.",
    ),
    "shell_call": Kind(
        SHELL,
        "shell",
        {"commands": ["ls", "sleep 9"], "timeout_ms": 1000},
        {"output": [_shell_entry("a.txt\n", type="exit", exit_code=0), _shell_entry("", type="timeout")]},
        "a.txt\n(exit code 0)\n(timed out)",
    ),
    "local_shell_call": Kind(
        LOCAL_SHELL,
        "local_shell",
        {"command": ["ls", "-l"], "env": {"A": "b"}, "working_directory": "/tmp"},  # noqa: S108 - not opened
        {"output": "a.txt"},
        "a.txt",
    ),
    "computer_call": Kind(
        COMPUTER,
        "computer",
        {"actions": [{"type": "click", "x": 1, "y": 2, "button": "left"}, {"type": "wait"}]},
        {"output": {"type": "computer_screenshot", "image_url": PIXEL}},
        "",
    ),
}


def answered(kind: str, call_id: str) -> dict[str, Any]:
    """The output of a call, as clients send it."""
    name = "id" if kind == "local_shell_call" else "call_id"
    return {"type": f"{kind}_output", name: call_id, **KINDS[kind].output}


@pytest.mark.parametrize("chaining", ["previous_response_id", "conversation", "input"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_comes_back_as_its_item_and_the_model_reads_its_output(client, kind, chaining):
    tool, _, arguments, _, text = KINDS[kind]
    conversation = client.conversations.create().id if chaining == "conversation" else openai.omit
    first = ask(client, json.dumps(arguments), tool, conversation=conversation)
    (item,) = items(first)

    assert (first.status, item["type"], item["status"]) == ("completed", kind, "completed")
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    output = answered(kind, item["call_id"])
    history = {
        "previous_response_id": {"input": [output], "previous_response_id": first.id},
        "conversation": {"input": [output], "conversation": conversation},
        "input": {"input": [{"role": "user", "content": json.dumps(arguments)}, item, output]},
    }[chaining]
    second = client.responses.create(tools=[tool], **history)
    assert second.output_text == f"I read: {text}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_upstream_reads_the_call_as_it_was_written_and_its_output(client, upstream, kind):
    tool, function, arguments, _, text = KINDS[kind]
    first = ask(client, json.dumps(arguments), tool)
    output = answered(kind, first.output[0].call_id)
    for model in ("chat", "responses"):
        client.responses.create(model=model, tools=[tool], input=[output], previous_response_id=first.id)
    chat, responses = (request.body for request in upstream.requests)

    user, called, result, *shown = chat["messages"]
    assert user["role"] == "user"
    made = called["tool_calls"][0]["function"]
    assert (made["name"], json.loads(made["arguments"])) == (function, arguments)
    assert {tool["function"]["name"] for tool in chat["tools"]} == {function}
    assert result == {"role": "tool", "tool_call_id": first.output[0].call_id, "content": text or "[image]"}
    sent = responses["input"][1:]
    assert [one["type"] for one in sent] == ["function_call", "function_call_output"]
    assert (sent[0]["name"], json.loads(sent[0]["arguments"])) == (function, arguments)
    if kind == "computer_call":
        assert shown[0]["content"][1]["image_url"]["url"] == PIXEL
        assert sent[1]["output"] == [{"type": "input_image", "image_url": PIXEL}]
    else:
        assert sent[1]["output"] == text


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_without_its_call_is_refused(client, server, kind):
    first = ask(client, json.dumps(KINDS[kind].arguments), KINDS[kind].tool)
    known = first.output[0].call_id
    shown = kind.replace("_", " ")
    with server.client(server.keys["them"]) as other:
        for sdk, call_id in ((client, "call_unknown"), (other, known)):
            with pytest.raises(openai.BadRequestError) as caught:
                sdk.responses.create(input=[answered(kind, call_id)])
            expected = f"No tool call found for {shown} output with call_id {call_id}."
            assert expected in caught.value.message
            assert caught.value.param == "input"
        with pytest.raises(openai.BadRequestError, match="not found"):
            other.responses.create(input=[answered(kind, known)], previous_response_id=first.id)


def test_a_screenshot_may_be_an_uploaded_file_which_must_exist(client, upstream):
    first = ask(client, json.dumps(KINDS["computer_call"].arguments), COMPUTER)
    uploaded = client.files.create(file=("screen.png", b"\x89PNG\r\n\x1a\nrest"), purpose="vision")

    def screenshot(file_id: str) -> dict[str, Any]:
        shown = {"type": "computer_screenshot", "file_id": file_id}
        return {"type": "computer_call_output", "call_id": first.output[0].call_id, "output": shown}

    client.responses.create(model="chat", input=[screenshot(uploaded.id)], previous_response_id=first.id)
    url = upstream.requests[-1].body["messages"][-1]["content"][1]["image_url"]["url"]
    assert url == "data:image/png;base64,iVBORw0KGgpyZXN0"
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(input=[screenshot("file-0")], previous_response_id=first.id)
    assert caught.value.param == "input[0].output.file_id"


def test_a_model_that_cannot_read_images_gets_no_computer(client, upstream):
    for tool in (COMPUTER, PREVIEW):
        with pytest.raises(openai.BadRequestError, match="cannot read images") as caught:
            ask(client, "Look.", tool, model="blind")
        assert caught.value.param == "tools[0]"
    first = ask(client, json.dumps(KINDS["computer_call"].arguments), COMPUTER)
    output = answered("computer_call", first.output[0].call_id)
    with pytest.raises(openai.BadRequestError, match="cannot read images") as caught:
        client.responses.create(model="blind", input=[output], previous_response_id=first.id)
    assert caught.value.param == "input[0].output"
    assert upstream.requests == []


def test_a_screenshot_is_shown_only_if_it_is_included(client):
    first = ask(client, json.dumps(KINDS["computer_call"].arguments), COMPUTER)
    output = answered("computer_call", first.output[0].call_id)
    second = client.responses.create(input=[output], previous_response_id=first.id)

    (bare,) = client.responses.input_items.list(second.id, limit=1).data
    include = ["computer_call_output.output.image_url"]
    (full,) = client.responses.input_items.list(second.id, limit=1, include=include).data
    assert (bare.output.image_url, full.output.image_url) == (None, PIXEL)


# ── what requests say about the tools ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "tool, param",
    [
        ({**PATCH, "root": "/"}, "tools[0].root"),
        ({**LOCAL_SHELL, "environment": {}}, "tools[0].environment"),
        ({**COMPUTER, "display_width": 800}, "tools[0].display_width"),
        ({"type": "computer_use_preview"}, "tools[0].display_width"),
        ({**PREVIEW, "display_height": 0}, "tools[0].display_height"),
        ({**PREVIEW, "environment": "amiga"}, "tools[0].environment"),
        ({**SHELL, "cwd": "/"}, "tools[0].cwd"),
        ({**SHELL, "environment": {"type": "local", "cwd": "/"}}, "tools[0].environment.cwd"),
        ({**SHELL, "environment": {"type": "local", "skills": [{"name": "x"}]}}, "tools[0].environment.skills[0]"),
        ({**SHELL, "environment": {"type": "moon"}}, "tools[0].environment.type"),
    ],
)
def test_an_unknown_or_invalid_option_is_refused_by_its_path(client, tool, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "Hello.", tool)

    assert str(caught.value.param).startswith(param)


def test_the_model_gets_functions_with_the_options_of_the_declaration(client, upstream):
    skill = {"name": "charts", "description": "Draws charts.", "path": "/skills/charts"}
    tools = [PATCH, {**SHELL, "environment": {"type": "local", "skills": [skill]}}, LOCAL_SHELL, PREVIEW]
    response = client.responses.create(model="chat", input="Hello.", tools=tools)
    functions = {tool["function"]["name"]: tool["function"] for tool in upstream.requests[-1].body["tools"]}

    assert list(functions) == ["apply_patch", "shell", "local_shell", "computer"]
    assert "*** End of File" in functions["apply_patch"]["description"]
    assert "charts (/skills/charts): Draws charts." in functions["shell"]["description"]
    assert "800 x 600 pixels (browser)" in functions["computer"]["description"]
    assert list(functions["computer"]["parameters"]["properties"]) == ["action"]
    echoed = [tool.to_dict(exclude_none=True) for tool in response.tools]
    assert echoed[0] == PATCH
    assert echoed[2:] == [LOCAL_SHELL, PREVIEW]


@pytest.mark.parametrize(
    "choice, name", [(PATCH, "apply_patch"), (SHELL, "shell"), ({"type": "computer_use"}, "computer")]
)
def test_a_tool_choice_names_the_function(client, upstream, choice, name):
    with pytest.raises(openai.InternalServerError, match=f"did not call '{name}'"):  # the fake upstream never does
        client.responses.create(model="chat", input="Hello.", tools=[PATCH, SHELL, PREVIEW], tool_choice=choice)

    assert {one.body["tool_choice"]["function"]["name"] for one in upstream.requests} == {name}


def test_max_tool_calls_does_not_count_them_and_parallel_tool_calls_does(client):
    many = ask(client, "three patches", PATCH, max_tool_calls=1)
    assert [item["operation"]["type"] for item in items(many)] == ["update_file", "create_file", "delete_file"]
    assert len({item["call_id"] for item in items(many)}) == 3

    alone = ask(client, "three patches", PATCH, parallel_tool_calls=False)
    assert [item["operation"]["type"] for item in items(alone)] == ["update_file"]


def test_a_background_response_ends_with_the_calls(client):
    begun = ask(client, "three patches", PATCH, background=True)
    done = wait_until(lambda: (now := client.responses.retrieve(begun.id)).status == "completed" and now)

    assert [item.type for item in done.output] == ["apply_patch_call"] * 3
    outputs = [answered("apply_patch_call", item.call_id) for item in done.output]
    more = client.responses.create(input=outputs, previous_response_id=begun.id)
    assert more.output_text == "I read: The file is not there."


def test_a_compacted_history_keeps_the_open_calls(client):
    first = ask(client, "three patches", PATCH)
    compacted = client.responses.compact(model="scripted", previous_response_id=first.id)
    outputs = [answered("apply_patch_call", item.call_id) for item in first.output]
    window = [item.to_dict(warnings=False) for item in compacted.output]
    response = client.responses.create(input=[*window, *outputs], tools=[PATCH])

    assert compacted.output[-1].type == "compaction"
    assert response.output_text == "I read: The file is not there."


# ── broken calls ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_broken_patch_is_repaired_by_one_retry_and_never_handed_on(client):
    with client.responses.create(model="scripted", input="broken once", tools=[PATCH], stream=True) as stream:
        events = list(stream)
    response = events[-1].response

    assert (response.status, [item.type for item in response.output]) == ("completed", ["apply_patch_call"])
    assert response.output[0].operation.diff == UPDATE
    assert sum(event.type == "response.output_item.added" for event in events) == 1
    assert "hello'\\nreturn" not in json.dumps([event.to_dict() for event in events])


def test_commands_are_streamed_while_the_model_writes_them_and_a_command_that_breaks_off_is_dropped(client):
    given = '{"commands": ["cat a.txt | wc -l", "rm -r'
    with client.responses.create(model="scripted", input=given, tools=[SHELL], stream=True) as stream:
        events = [event.to_dict() for event in stream]
    commands = [event for event in events if event["type"].startswith("response.shell_call_command.")]

    assert "".join(event.get("delta", "") for event in commands if event["command_index"] == 0) == "cat a.txt | wc -l"
    assert sum(event["type"].endswith("delta") for event in commands) > 3
    assert [event["command"] for event in commands if event["type"].endswith("done")] == ["cat a.txt | wc -l"]
    (item,) = events[-1]["response"]["output"]
    assert item["action"] == {"commands": ["cat a.txt | wc -l"], "timeout_ms": None, "max_output_length": None}
    assert item["status"] == "completed"


def test_a_call_with_too_many_commands_is_not_for_the_client_and_the_model_reads_the_limit(client):
    item, message = items(ask(client, json.dumps({"commands": ["ls"] * 65, "timeout_ms": 5}), SHELL))

    assert (item["status"], len(item["action"]["commands"])) == ("incomplete", 64)
    assert "more than 64 commands" in message["content"][0]["text"]
    (item,) = items(ask(client, json.dumps({"commands": ["ls"] * 64 + [" "]}), SHELL))
    assert (item["status"], len(item["action"]["commands"])) == ("completed", 64)


@pytest.mark.parametrize("given, commands", [(["ls", "", " \n\t", " pwd", ""], ["ls", " pwd"]), (["", "ls"], ["ls"])])
def test_empty_commands_are_left_out(client, given, commands):
    with client.responses.create(
        model="scripted", input=json.dumps({"commands": given}), tools=[SHELL], stream=True
    ) as stream:
        events = [event.to_dict() for event in stream]
    done = [event for event in events if event["type"] == "response.shell_call_command.done"]

    assert events[-1]["response"]["output"][0]["action"]["commands"] == commands
    assert [(event["command_index"], event["command"]) for event in done] == [*enumerate(commands)]


def test_a_call_of_empty_commands_is_made_again(client):
    response = ask(client, '{"commands": ["", " "]}', SHELL)

    assert [(item.type, item.status) for item in response.output] == [
        ("shell_call", "incomplete"),
        ("message", "completed"),
    ]
    assert "Nothing was done: a command is empty. Make this call again" in response.output_text


def test_a_command_that_breaks_off_alone_is_an_incomplete_call_and_the_model_is_asked_again(client):
    response = ask(client, '{"commands": ["rm -r', SHELL)

    assert [(item.type, item.status) for item in response.output] == [
        ("shell_call", "incomplete"),
        ("message", "completed"),
    ]
    assert response.output[0].action.commands == []
    assert "not valid JSON" in response.output_text


def patches_of(response) -> list[str]:
    return [item.operation.path for item in response.output if item.type == "apply_patch_call"]


@pytest.mark.parametrize("background", [False, True])
def test_a_broken_patch_beside_good_calls_is_repaired_before_the_response_ends(client, background):
    begun = ask(client, "a good and a broken one", PATCH, background=background)
    response = wait_until(lambda: (now := client.responses.retrieve(begun.id)).status == "completed" and now)

    assert [item.type for item in response.output] == ["apply_patch_call"] * 2
    assert patches_of(response) == ["docs/notes.md", "greet.py"]
    assert response.output[1].operation.diff == UPDATE
    outputs = [answered("apply_patch_call", item.call_id) for item in response.output]
    more = client.responses.create(input=outputs, previous_response_id=response.id)
    assert more.output_text == "I read: The file is not there."


def test_the_repair_is_asked_for_alone(client):
    response = client.responses.create(model="scripted", input="a broken and a good one", tools=[PATCH, ADD])

    kinds = [item.type for item in response.output]
    assert kinds == ["function_call", "apply_patch_call", "apply_patch_call"]
    assert patches_of(response) == ["docs/notes.md", "greet.py"]


def test_a_patch_beside_a_good_one_that_is_broken_again_ends_the_response_with_the_good_one(client):
    response = ask(client, "good one twice", PATCH)

    assert (response.status, patches_of(response)) == ("completed", ["docs/notes.md"])


@pytest.mark.parametrize(
    "tool, text, kinds",
    [
        (PATCH, "always a broken patch", ["message"]),
        (SHELL, "always a broken command", ["shell_call", "shell_call", "message"]),
    ],
)
def test_a_tool_whose_calls_are_broken_twice_is_not_offered_any_more(client, tool, text, kinds):
    response = ask(client, text, tool)

    assert (response.status, [item.type for item in response.output]) == ("completed", kinds)
    assert f"Do not call '{tool['type']}' again." in response.output_text


def test_a_model_that_goes_on_with_broken_calls_ends_the_response_as_failed(client):
    with client.responses.with_streaming_response.create(
        model="scripted", input="whatever it reads", tools=[SHELL], stream=True
    ) as stream:
        events = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data")]
    response = events[-1]["response"]

    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert "called 'shell' again after two calls of it with invalid arguments" in response["error"]["message"]
    assert [(item["type"], item["status"]) for item in response["output"]] == [("shell_call", "incomplete")] * 2


def test_a_patch_that_is_broken_twice_is_given_up(client):
    response = ask(client, "broken twice", PATCH)

    assert [item.type for item in response.output] == ["message"]
    assert "line 2 of the diff is 'return 'good morning''" in response.output_text
    assert "Do not call 'apply_patch' again." in response.output_text


@pytest.mark.parametrize(
    "tool, arguments, reason",
    [
        (PATCH, "{nope", "not valid JSON"),
        (PATCH, "[" * 50_000, "not valid JSON"),
        (PATCH, '["a"]', "must be a JSON object"),
        (PATCH, '{"type": "update_file", "path": 5, "diff": "-a"}', "`$.path`"),
        (PATCH, '{"type": "update_file", "path": "a", "diff": ["-a"]}', "`$.diff`"),
        (PATCH, '{"type": "update_file", "path": "a", "diff": "' + "\\n" * 600_000 + '"}', "changes nothing"),
        (PATCH, '{"type": "update_file", "path": "a", "diff": "' + "+" * 1_100_000 + '"}', "more than 1048576"),
        (PATCH, '{"type": "update_file", "path": "a", "diff": "\\ud800"}', "line 1 of the diff is"),
        (SHELL, "{}", "`commands`"),
        (SHELL, '{"commands": []}', "`$.commands`"),
        (SHELL, '{"command": ["ls", " "]}', "a command is empty"),
        (SHELL, json.dumps({"command": ["ls"] * 65}), "`$.commands`"),
        (SHELL, '{"timeout_ms": "soon", "commands": ["ls"]}', "`$.timeout_ms`"),
        (LOCAL_SHELL, '{"command": []}', "`$.command`"),
        (LOCAL_SHELL, '{"command": [""]}', "the program of the command is empty"),
        (COMPUTER, '{"actions": [{"type": "explode"}]}', "explode"),
        (COMPUTER, '{"actions": [{"type": "click", "x": -1, "y": 0}]}', "`$.actions[0].x`"),
        (PREVIEW, '{"action": {"type": "click", "x": 800, "y": 0}}', "(800, 0) is outside of the display"),
        (PREVIEW, '{"actions": [{"type": "wait"}, {"type": "wait"}]}', "only one action at a time"),
    ],
)
def test_the_model_reads_what_is_wrong_with_its_call(client, tool, arguments, reason):
    response = ask(client, arguments, tool)

    assert [item.type for item in response.output] == ["message"]
    assert response.output_text.startswith("I read: Nothing was done: ")
    assert reason in response.output_text
    assert len(response.output_text) < 1000


@pytest.mark.parametrize(
    "tool, arguments, expected",
    [
        (PATCH, {"operation": {"type": "delete_file", "path": "a"}}, {"type": "delete_file", "path": "a"}),
        (
            PATCH,
            {"input": "*** Begin Patch\n*** Update File: a\n@@\n-b\n*** End Patch"},
            {"type": "update_file", "path": "a", "diff": "@@\n-b\n"},
        ),
        (SHELL, {"command": "ls"}, {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}),
        (
            SHELL,
            {"commands": "ls", "timeout_ms": "9"},
            {"commands": ["ls"], "timeout_ms": 9, "max_output_length": None},
        ),
        (LOCAL_SHELL, {"command": "ls | wc"}, {"type": "exec", "command": ["bash", "-lc", "ls | wc"], "env": {}}),
        (LOCAL_SHELL, {"command": ["ls"], "env": None}, {"type": "exec", "command": ["ls"], "env": {}}),
        (PREVIEW, {"type": "wait"}, {"type": "wait"}),
    ],
)
def test_what_is_unambiguous_is_accepted(client, tool, arguments, expected):
    (item,) = items(ask(client, json.dumps(arguments), tool))

    assert (item.get("operation") or item["action"]) == expected


# ── appliers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

LINES = ["@@", "@@ a", "@@ -1 +1 @@", "", " ", " a", "-a", "+a", "+b\r", "a", "```", "*** End of File"]


@given(st.lists(st.sampled_from(LINES), max_size=8).map("\n".join))
def test_the_client_finds_no_syntax_error_in_what_the_server_accepts(diff):
    try:
        checked = read_operation("update_file", "f", diff).diff or ""
    except BadPatch:
        return
    try:
        update("a\n\na\n", checked)
    except PatchError as error:
        assert "not in the file" in str(error)  # noqa: PT017 - most diffs match, and raise nothing


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example", *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    (root / "greet.py").write_text(GREETING, encoding="utf-8")
    (root / "old.txt").write_text("old\n", encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "begin")
    return root


def check_patched(repository: Path) -> None:
    """The repository has the changes of `PATCHES`, and no others."""
    git(repository, "add", ".")
    assert git(repository, "status", "--porcelain").splitlines() == ["A  docs/notes.md", "M  greet.py", "D  old.txt"]
    assert (repository / "greet.py").read_text(encoding="utf-8") == GREETING.replace("hello", "good morning")
    assert (repository / "docs" / "notes.md").read_text(encoding="utf-8").rstrip() == "# Notes\n\n- Greets politely."
    assert "+    return 'good morning'" in git(repository, "diff", "--cached")


def test_a_git_repository_is_patched_by_the_client_library(server, repository):
    config = OpenAIClientConfig(base_url=f"{server.url}/v1", api_key=server.keys["us"], timeout=30)
    task = MarkdownSection(title="Task", key="task", template="Greet politely.")
    prompt = Prompt(PromptTemplate[None](ns="tests", key="greet", sections=[task, OpenAIApplyPatchSection()]))
    session = Session()
    answer = OpenAIAdapter(model="scripted", client_config=config).evaluate(
        prompt, session=session, resources=ResourceRegistry.build({Filesystem: HostFilesystem(repository)})
    )

    assert answer.text == "It greets politely."
    events = session[ToolInvoked].all()
    assert [(event.name, event.success) for event in events] == [("apply_patch", True)] * 3
    check_patched(repository)


class Editor:
    """Applies patches with the applier of openai-agents."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        path = self._root / operation.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(apply_diff("", operation.diff or "", "create"), encoding="utf-8")
        return ApplyPatchResult(status="completed", output=f"Created {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        path = self._root / operation.path
        path.write_text(apply_diff(path.read_text(encoding="utf-8"), operation.diff or ""), encoding="utf-8")
        return ApplyPatchResult(status="completed", output=f"Updated {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self._root / operation.path).unlink()
        return ApplyPatchResult(status="completed", output=f"Deleted {operation.path}")


@pytest.mark.anyio
async def test_openai_agents_patches_a_git_repository_and_runs_commands(server, repository):
    def execute(request: Any) -> ShellResult:
        runs = [
            subprocess.run(["sh", "-c", command], cwd=repository, capture_output=True, text=True, check=False)
            for command in request.data.action.commands
        ]
        outputs = [
            ShellCommandOutput(stdout=run.stdout, outcome=ShellCallOutcome("exit", run.returncode)) for run in runs
        ]
        return ShellResult(output=outputs)

    tools = [ApplyPatchTool(Editor(repository)), ShellTool(execute)]
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.keys["us"], max_retries=0) as client:
        model = OpenAIResponsesModel("scripted", client)
        agent = Agent(name="agent", model=model, model_settings=ModelSettings(store=False), tools=tools)
        config = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI
        patched = await Runner.run(agent, "Greet politely.", run_config=config)
        tested = await Runner.run(agent, "Now test it.", run_config=config)

    assert patched.final_output == "It greets politely."
    check_patched(repository)
    assert "good morning\n(exit code 0)\n(exit code 3)" in tested.final_output
