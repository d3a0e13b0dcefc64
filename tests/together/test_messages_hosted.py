"""Hosted tools on the Messages wire: code, shell, containers, files and web search, with the SDK of Anthropic."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from fixtures_code_interpreter import call, code_server
from fixtures_web_search import web_search_server
from message_stream import check_stream, fold_events, read_events

CODE = [{"type": "code_execution_20250825", "name": "code_execution"}]
PYTHON = [{"type": "code_execution_20250522", "name": "code_execution"}]
SEARCH = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
HEADERS = {"anthropic-version": "2023-06-01"}
SHELL = {
    "call": {
        "name": "shell",
        "arguments": {"commands": ["echo out", "echo err >&2; echo hi > /mnt/data/b.txt; exit 3"]},
    }
}


def when(text: str, turn: int, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": list(reply)}


SCRIPT = {
    "fragment": 6,
    "answers": [
        when("again", 1, call("print(value)")),
        when("shell", 1, {"text": "I look."}, SHELL),
        when("broken", 1, {"call": {"name": "code_interpreter", "arguments": '{"cod'}}),
        when("mixed", 1, call("1"), {"call": {"name": "add", "arguments": {"n": 1}}}),
        when("recall", 1, {"text": "<<find /seen-[a-z]+/>>"}),
        when("/^# run/", 1, call("<<text>>")),
        {"reply": [{"text": "Result: <<output>>"}]},
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with code_server("local", tmp_path_factory.mktemp("messages") / "s", script=SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http(headers=HEADERS) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def request(text: Any, tools: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "scripted", "max_tokens": 1000, "messages": messages, "tools": tools, **more}


def stream(http, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post("/v1/messages?beta=true", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = read_events(answer.text)
    check_stream(events)
    return fold_events(events)


def whole(http, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def replay(body: dict[str, Any], message: dict[str, Any], text: str) -> dict[str, Any]:
    """The next request of a client that sends the answer back as it was."""
    said = {"role": "assistant", "content": message["content"]}
    return {**body, "messages": [*body["messages"], said, {"role": "user", "content": text}]}


# ── code ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [stream, whole])
def test_code_runs_in_a_container(http, answer):
    code = '# run "quoted" \\ ü\nimport sys\nprint("one")\nprint("two", file=sys.stderr)\n6 * 7'
    message = answer(http, request(code, PYTHON))
    use, result, text = message["content"]

    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": code})
    assert result == {
        "type": "code_execution_tool_result",
        "tool_use_id": use["id"],
        "content": {
            "type": "code_execution_result",
            "stdout": "one\n42",
            "stderr": "two\n",
            "return_code": 0,
            "content": [],
        },
    }
    assert text["text"].startswith("Result: one")
    assert message["stop_reason"] == "end_turn"
    assert message["container"]["id"].startswith("cntr_")
    assert message["container"]["expires_at"].endswith("Z")


def test_a_container_is_reused_by_its_id(http, sdk):
    first = sdk.beta.messages.create(**request("# run\nvalue = 'kept'", CODE))
    again = request("again", CODE, container=first.container.id)
    kept = whole(http, again)
    by_object = whole(http, {**again, "container": {"id": first.container.id}})
    fresh = whole(http, request("again", CODE))

    assert [message["content"][1]["content"]["stdout"] for message in (kept, by_object)] == ["kept\n", "kept\n"]
    assert kept["container"]["id"] == first.container.id
    assert fresh["content"][1]["content"]["return_code"] == 1
    assert "NameError" in fresh["content"][1]["content"]["stderr"]
    assert fresh["container"]["id"] != first.container.id


def test_a_container_that_does_not_exist_is_an_error(http):
    answer = http.post("/v1/messages", json=request("again", CODE, container="cntr_" + "0" * 32))

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_commands_of_the_shell(http):
    message = stream(http, request("shell", CODE))
    text, use, result, _ = message["content"]
    (output,) = result["content"].pop("content")

    assert text == {"type": "text", "text": "I look."}
    assert (use["name"], use["input"]["command"].split("\n")[0]) == ("bash_code_execution", "echo out")
    assert result == {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": use["id"],
        "content": {"type": "bash_code_execution_result", "stdout": "out\n", "stderr": "err\n", "return_code": 3},
    }
    assert output["type"] == "bash_code_execution_output"
    assert http.get(f"/v1/files/{output['file_id']}/content").text == "hi\n"


def test_a_call_that_cannot_run_is_an_error_block(http):
    use, result, _ = stream(http, request("broken", PYTHON))["content"]

    assert use["input"] == {"code": ""}
    assert result["content"] == {"type": "code_execution_tool_result_error", "error_code": "unavailable"}


def test_hosted_and_client_calls_in_one_answer(http):
    add = {"name": "add", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    message = stream(http, request("mixed", [*PYTHON, add]))

    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["server_tool_use", "code_execution_tool_result", "tool_use"]
    assert message["stop_reason"] == "tool_use"


def test_blocks_of_hosted_calls_are_read_back(http):
    body = request("# run\nprint('seen-' + 'output')", CODE)
    message = whole(http, body)
    answer = whole(http, replay(body, message, "recall"))

    assert answer["content"][-1]["text"] == "seen-output"


def test_blocks_of_another_server_are_read(http):
    edit = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "text_editor_code_execution"}
    edited = {"type": "text_editor_code_execution_tool_result", "tool_use_id": "srvtoolu_1"}
    search = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search"}
    found = {"type": "web_search_result", "url": "u", "title": "seen-title", "encrypted_content": "EqQBforeign"}
    content = [
        {**edit, "input": {"path": "seen-path"}},
        {**edited, "content": {"type": "x", "content": "seen-view"}},
        {**search, "input": {"query": "seen-query"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": [found]},
    ]
    body = request("hello", [])
    answer = whole(http, replay(body, {"content": content}, "recall"))

    assert answer["content"][0]["text"].split() == ["seen-path", "seen-view", "seen-query", "seen-title"]


def test_tool_choice_names_hosted_tools(http):
    message = whole(http, request("# run\n1", PYTHON, tool_choice={"type": "tool", "name": "code_execution"}))

    assert message["content"][0]["type"] == "server_tool_use"


@pytest.mark.parametrize(
    "more, message",
    [
        ({"container": {"skills": [{"skill_id": "x"}]}}, "container.skills: Skills are not available on this wire."),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers: MCP servers are not"),
        ({"tools": [{**CODE[0], "allowed_callers": ["code_execution_20260120"]}]}, "tools.0.allowed_callers: Calls"),
    ],
)
def test_what_hosted_tools_lack_is_refused_by_name(http, more, message):
    answer = http.post("/v1/messages", json={**request("hello", CODE), **more})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_go_into_a_container_and_come_out(http, sdk):
    given = sdk.beta.files.upload(file=("in.txt", b"from the user"))
    assert (given.type, given.filename, given.mime_type, given.size_bytes) == ("file", "in.txt", "text/plain", 13)
    code = "# run\nopen('/mnt/data/out.csv', 'w').write(open('/mnt/data/in.txt').read().upper())"
    upload = {"type": "container_upload", "file_id": given.id}
    message = whole(http, request([upload, {"type": "text", "text": code}], CODE))
    result = message["content"][1]["content"]
    (output,) = [
        one for one in result["content"] if sdk.beta.files.retrieve_metadata(one["file_id"]).filename == "out.csv"
    ]

    assert result["return_code"] == 0
    assert sdk.beta.files.download(output["file_id"]).read() == b"FROM THE USER"
    assert sdk.beta.files.retrieve_metadata(output["file_id"]).mime_type == "text/csv"
    assert sdk.beta.files.delete(output["file_id"]).type == "file_deleted"
    assert http.get(f"/v1/files/{output['file_id']}").status_code == 404

    more = sdk.beta.files.upload(file=("more.txt", b"second"))
    text = "# run\nprint(open('/mnt/data/more.txt').read())"
    content = [{"type": "container_upload", "file_id": more.id}, {"type": "text", "text": text}]
    named = whole(http, request(content, CODE, container=message["container"]["id"]))
    assert named["content"][1]["content"]["stdout"] == "second\n"


def test_uploaded_files_in_the_shape_of_this_wire(sdk, server):
    ids = [sdk.beta.files.upload(file=(f"{number}.txt", b"x")).id for number in range(3)]
    listed = sdk.beta.files.list(limit=2)
    rest = sdk.beta.files.list(limit=2, page=listed.next_page)
    with server.http(headers=HEADERS) as http:
        earlier = http.get("/v1/files", params={"limit": 2, "after_id": ids[1]}).json()
        for name in ("page", "after_id", "before_id"):
            refused = http.get("/v1/files", params={name: "file_none"}).json()["error"]["message"]
            assert refused.startswith(f"{name}: ")
    with server.http() as plain:
        assert plain.get(f"/v1/files/{ids[0]}").json()["object"] == "file"

    assert [file.id for file in listed.data] == [ids[2], ids[1]]
    assert (earlier["data"][0]["id"], rest.data[0].id) == (ids[0], ids[0])
    assert sdk.beta.files.download(ids[0]).read() == b"x"
    assert sdk.beta.files.delete(ids[0]).id == ids[0]
    with pytest.raises(anthropic.NotFoundError):
        sdk.beta.files.retrieve_metadata(ids[0])


# ── web search ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    with web_search_server(tmp_path_factory.mktemp("web") / "s") as running:
        yield running


def test_web_search_with_results_citations_and_usage(web):
    with web.server.http(headers=HEADERS) as http:
        body = request("tea and cite", SEARCH, tool_choice={"type": "auto"})
        message = stream(http, body)
        again = whole(http, replay(body, message, "again"))
    use, result, text = message["content"]
    tea = f"{web.site.url}/tea"

    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "web_search", {"query": "tea"})
    assert (result["type"], result["tool_use_id"]) == ("web_search_tool_result", use["id"])
    found = {one["url"]: one for one in result["content"]}
    assert (found[tea]["type"], found[tea]["title"]) == ("web_search_result", "Tea prices")
    assert {(one["type"], one["url"]) for one in text["citations"]} == {("web_search_result_location", tea)}
    assert text["citations"][0]["cited_text"]
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1
    assert "Tea prices" in json.dumps(again["content"])


def test_pages_that_the_search_opens_are_fetches(web):
    with web.server.http(headers=HEADERS) as http:
        message = stream(http, request(f"open {web.site.url}/tea", SEARCH))
    use, result, _ = message["content"]

    assert (use["name"], result["type"]) == ("web_fetch", "web_fetch_tool_result")
    assert result["content"]["url"] == use["input"]["url"] == f"{web.site.url}/tea"
    assert result["content"]["content"]["source"]["data"]


def test_blocked_domains_are_refused(web):
    with web.server.http(headers=HEADERS) as http:
        answer = http.post("/v1/messages", json=request("x", [{**SEARCH[0], "blocked_domains": ["a.example"]}]))

    assert answer.json()["error"]["message"].startswith("tools.0.blocked_domains:")
