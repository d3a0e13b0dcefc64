from __future__ import annotations

import json

import pytest

from antwort.api.items import read
from antwort.models.replay_hosted_calls import NO_OUTPUT, OUTPUT_NOT_STORED, replay_call, replay_output


def replayed(**raw):
    call = replay_call(read(raw))
    assert call is not None
    return call


def test_code_interpreter_call():
    item = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": "print(1)"}
    call = replayed(
        **item, outputs=[{"type": "logs", "logs": "1\n"}, {"type": "image", "url": "data:image/png;base64,AA"}]
    )

    assert (call.call_id, call.name, json.loads(call.arguments)) == ("ci_1", "code_interpreter", {"code": "print(1)"})
    assert call.output == "1\n\n[figure]"
    assert replayed(**item, outputs=[]).output == NO_OUTPUT
    assert replayed(**item, outputs=None).output == OUTPUT_NOT_STORED
    assert json.loads(replayed(**{**item, "code": None}).arguments) == {"code": ""}


def test_file_and_web_search_calls():
    files = replayed(type="file_search_call", id="fs_1", queries=["a"], results=[{"filename": "f.md", "text": "found"}])
    assert (json.loads(files.arguments), files.output) == ({"queries": ["a"]}, "f.md: found")
    assert replayed(type="file_search_call", id="fs_1", queries=["a"], results=None).output == OUTPUT_NOT_STORED

    action = {"type": "search", "query": "q", "sources": [{"type": "url", "url": "https://a.example"}]}
    web = replayed(type="web_search_call", id="ws_1", action=action)
    assert (json.loads(web.arguments), web.output) == ({"query": "q"}, "https://a.example")


def test_actions_of_the_web_search_are_calls_of_their_functions_with_numbered_results():
    results = [
        {"index": 2, "title": "Tea", "url": "https://tea.example/", "text": "Oolong."},
        {"url": "https://b.example/"},
    ]
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "results": results}
    search = replayed(**item, action={"type": "search", "query": "a", "queries": ["a", "b"], "sources": []})
    assert (search.name, json.loads(search.arguments)) == ("web_search", {"queries": ["a", "b"]})
    assert search.output == "[2] Tea\nhttps://tea.example/\nOolong.\n\nhttps://b.example/"
    opened = replayed(**item, action={"type": "open_page", "url": "u"})
    assert (opened.name, json.loads(opened.arguments)) == ("open_page", {"url": "u"})
    found = replayed(**item, action={"type": "find_in_page", "url": "u", "pattern": "p"})
    assert (found.name, json.loads(found.arguments)) == ("find_in_page", {"url": "u", "pattern": "p"})
    failed = replayed(type="web_search_call", id="ws_1", status="failed", action={"type": "search", "query": "a"})
    assert failed.output == "(the call failed)"
    assert replayed(type="web_search_call", id="ws_1", action={"type": "search"}).output == OUTPUT_NOT_STORED


def test_mcp_and_image_generation_calls():
    assert replayed(type="mcp_call", id="mcp_1", name="look", arguments="{}", output="seen").output == "seen"
    error = replayed(type="mcp_call", id="mcp_1", name="look", arguments="{}", error={"type": "http_error"})
    assert "http_error" in (error.output or "")
    assert replayed(type="image_generation_call", id="ig_1", result="A" * 1000).output == "[generated image]"


def test_calls_with_a_separate_output_item():
    shell = replayed(type="shell_call", id="sh_1", call_id="call_1", action={"commands": ["ls"]})
    assert (shell.call_id, shell.output, json.loads(shell.arguments)) == ("call_1", None, {"commands": ["ls"]})
    assert replayed(type="local_shell_call", call_id="c", action={"command": ["ls"]}).name == "local_shell"
    assert replayed(type="apply_patch_call", call_id="c", operation={"type": "delete_file"}).name == "apply_patch"

    local = {"type": "exec", "command": ["ls"], "env": {}, "user": None}
    assert json.loads(replayed(type="local_shell_call", call_id="c", action=local).arguments) == {"command": ["ls"]}
    limited = {"commands": ["ls"], "timeout_ms": None, "max_output_length": 9}
    shell = replayed(type="shell_call", call_id="c", action=limited)
    assert json.loads(shell.arguments) == {"commands": ["ls"], "max_output_length": 9}
    several = replayed(type="computer_call", call_id="c", actions=[{"type": "wait"}], action=None)
    assert (several.name, json.loads(several.arguments)) == ("computer", {"actions": [{"type": "wait"}]})
    one = replayed(type="computer_call", call_id="c", action={"type": "wait"})
    assert json.loads(one.arguments) == {"action": {"type": "wait"}}

    entries = [
        {"stdout": "a.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "no", "outcome": {"type": "timeout"}},
    ]
    output = replay_output(read({"type": "shell_call_output", "call_id": "call_1", "output": entries}))
    assert output == "a.txt\n(exit code 0)\nno\n(timed out)"
    patched = {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None}
    assert replay_output(read(patched)) == "completed"
    seen = {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "file_id": "f"}}
    assert replay_output(read(seen)) == "[screenshot]"


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "file_search_call", "queries": 7, "results": "?"},
        {"type": "web_search_call", "action": "?"},
        {"type": "mcp_call", "name": None},
        {"type": "shell_call", "action": None},
    ],
)
def test_invalid_items_do_not_raise(raw):
    call = replayed(**raw)
    assert call.call_id
    assert call.name
    json.loads(call.arguments)


def test_other_items_are_not_converted():
    for raw in ({"role": "user", "content": "hi"}, {"type": "compaction", "encrypted_content": "x"}, {"type": "new"}):
        assert (replay_call(read(raw)), replay_output(read(raw))) == (None, None)
    assert replay_output(read({"type": "shell_call_output", "output": [7, {"outcome": 7}]})) == "(exit code None)"


def test_long_output_is_truncated_in_the_middle():
    outputs = [{"type": "logs", "logs": "a" * 100_000 + "z" * 100_000}]
    call = replayed(type="code_interpreter_call", id="ci_1", container_id="cntr_1", code="1", outputs=outputs)

    assert call.output is not None
    assert (call.output[0], call.output[-1]) == ("a", "z")
    assert "150000 characters cut" in call.output


def test_long_output_of_mcp_tools_and_of_shell_commands_is_as_long_as_in_its_own_response():
    long = "x" * 1_000_000
    called = replayed(type="mcp_call", id="mcp_1", name="look", arguments="{}", output=long)
    entry = {"outcome": {"type": "exit", "exit_code": 0}, "stdout": long, "stderr": ""}
    shell = replay_output(read({"type": "shell_call_output", "call_id": "call_1", "output": [entry] * 3}))

    assert shell is not None
    for text in (called.output, shell):
        assert text is not None
        assert len(text) < 51_000
        assert "characters cut" in text
    assert shell.endswith("(exit code 0)")
