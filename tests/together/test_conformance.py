"""`antwort conformance`: the server passes all of it, and a server that breaks one rule of the wire does not."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from fake_wrong_server import Fault, ProxiedAnswer, ProxiedRequest, wrong_server
from fixtures_conformance import conforming_server

from antwort.cli import main
from antwort.conformance.suite import ALL_CHECKS

NOT_PASSED = {
    "file_search": "not supported",
    "containers:expired": "skipped",  # it waits for more than a minute
}
"""All that this server does not pass: areas, or single checks. A tool that becomes available is removed from here."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with conforming_server(tmp_path_factory.mktemp("server") / "s") as running:
        yield running


@pytest.fixture(scope="module")
def server(servers):
    return servers[0]


@pytest.fixture(scope="module")
def mcp_url(servers):
    return servers[1]


@pytest.fixture(scope="module")
def proxy(server):
    with wrong_server(server.url) as running:
        yield running


class Run(NamedTuple):
    """A run of the command: its result, and the outcomes of its JSON file."""

    result: Result
    outcomes: dict[str, dict[str, Any]]

    def having(self, verdict: str) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome["verdict"] == verdict}


@pytest.fixture
def run(server, tmp_path):
    def run_suite(url: str, *only: str, arguments: Sequence[str] = ()) -> Run:
        file = tmp_path / "outcomes.json"
        selected = [argument for name in only for argument in ("--only", name)]
        options = ["--json", str(file), "--other-key-env", "OTHER_KEY", "--timeout", "20", *selected, *arguments]
        keys = {"ANTWORT_API_KEY": server.keys["a"], "OTHER_KEY": server.keys["b"]}
        result = CliRunner().invoke(main, ["conformance", url, *options], env=keys)
        document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"outcomes": []}
        outcomes = {f"{one['area']}:{one['behaviour']}": one for one in document["outcomes"]}
        return Run(result, outcomes)

    return run_suite


# ── this server ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_this_server_passes_every_check(server, mcp_url, run):
    done = run(server.url, arguments=["--mcp-url", mcp_url])

    checks = [f"{area}:{behaviour}" for area, behaviours in ALL_CHECKS.items() for behaviour in behaviours]
    expected = {name: NOT_PASSED.get(name, NOT_PASSED.get(name.partition(":")[0], "passed")) for name in checks}
    assert {name: outcome["verdict"] for name, outcome in done.outcomes.items()} == expected, done.result.output
    assert done.result.exit_code == 0


@pytest.mark.long
def test_an_expired_container_is_refused_and_can_be_retrieved(server, run):
    done = run(server.url, "containers:expired", arguments=["--slow"])

    assert done.having("passed") == {"containers:expired"}, done.result.output


def test_objects_of_the_run_are_deleted(server, run):
    done = run(server.url, "files:created", "containers:in-response", f"{CODE}:item", "tenants:containers")

    assert done.result.exit_code == 0, done.result.output
    with server.http(headers={"authorization": f"Bearer {server.keys['a']}"}) as http:
        assert http.get("/v1/files").json()["data"] == []
        assert [one for one in http.get("/v1/containers").json()["data"] if one["name"] == "conformance"] == []


# ── a server that breaks a rule ──────────────────────────────────────────────────────────────────────────────────────


def on_events(change: Callable[[list[dict[str, Any]]], Any]) -> Fault:
    return Fault(change_answer=lambda request, answer: answer.change_events(change))


def on_json(change: Callable[[Any], Any], *, path: str = "", method: str = "", key: str = "") -> Fault:
    """A fault of JSON answers, of those whose request has this path, method and key."""

    def change_answer(request: ProxiedRequest, answer: ProxiedAnswer) -> None:
        if path in request.path and method in request.method and (not key or key in request.body):
            answer.change_json(change)

    return Fault(change_answer=change_answer)


def on_request(change: Callable[[ProxiedRequest], object]) -> Fault:
    return Fault(change_request=change)


def first(events: list[dict[str, Any]], kind: str) -> int:
    return next(at for at, event in enumerate(events) if event["type"].endswith(kind))


def renumber(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return events


def swap(kind: str) -> Callable[[list[dict[str, Any]]], Any]:
    def change(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        at = first(events, kind)
        events[at], events[at + 1] = events[at + 1], events[at]
        return renumber(events)

    return change


def drop(kind: str) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda events: renumber([event for event in events if not event["type"].endswith(kind)])


def edit(kind: str, change: Callable[[dict[str, Any]], object]) -> Callable[[list[dict[str, Any]]], Any]:
    def change_events(events: list[dict[str, Any]]) -> None:
        if any(event["type"].endswith(kind) for event in events):
            change(events[first(events, kind)])

    return change_events


def with_ids(request: ProxiedRequest, answer: ProxiedAnswer) -> None:
    answer.content = answer.content.replace(b"event: ", b"id: 1\nevent: ")


def answer_with(status: int, body: bytes) -> Fault:
    """One answer for every request, which is not sent on."""
    return on_request(lambda request: ProxiedAnswer(status, {"content-type": "application/json"}, body))


def accept_what_is_refused(request: ProxiedRequest, answer: ProxiedAnswer) -> None:
    if answer.status >= 400:
        answer.status = 200


def replay_all(request: ProxiedRequest) -> None:
    request.path = request.path.replace("starting_after=", "ignored=").replace("&ignored", "&starting_after=-1&ignored")


def use_first_key(server: Any) -> Callable[[ProxiedRequest], None]:
    def change(request: ProxiedRequest) -> None:
        request.headers["authorization"] = f"Bearer {server.keys['a']}"

    return change


def remove(*names: str) -> Callable[[ProxiedRequest], None]:
    def change(request: ProxiedRequest) -> None:
        for name in names:
            request.body.pop(name, None)

    return change


def fail_code(response: dict[str, Any]) -> None:
    if "on purpose" in json.dumps(response):
        response["status"], response["error"] = "failed", {"code": "server_error", "message": "It broke."}


def free_choice(request: ProxiedRequest) -> None:
    if request.body.get("tools"):
        request.body["tool_choice"] = "auto"


def ignore_none(request: ProxiedRequest) -> None:
    if request.body.get("tool_choice") == "none":
        del request.body["tool_choice"]


def hide_failures(response: dict[str, Any]) -> None:
    """As a server does whose items look as if nothing had failed."""
    for item in response.get("output", ()):
        if "outputs" in item:
            item["outputs"] = []
        if item["type"] == "shell_call_output":
            for entry in item["output"]:
                entry["outcome"] = {"type": "exit", "exit_code": 0}
        if item.get("status") == "failed":
            item["status"] = "completed"


def refuse_with(param: str | None, message: str, *, key: str = "model") -> Fault:
    """A 400 for every request with this key."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    refusal = ProxiedAnswer(400, {"content-type": "application/json"}, json.dumps({"error": error}).encode())
    return on_request(lambda request: refusal if key in request.body else None)


def change_file(request: ProxiedRequest, answer: ProxiedAnswer) -> None:
    if request.path.endswith("/content"):
        answer.content = answer.content[:-1]


def rename_call(events: list[dict[str, Any]]) -> None:
    events[first(events, "output_item.done")]["item"]["id"] = "msg_0"


def lose_last_item(events: list[dict[str, Any]]) -> None:
    events[-1]["response"]["output"].pop()


def show_outputs(response: dict[str, Any]) -> None:
    for item in response.get("output", ()):
        if item["type"] == "code_interpreter_call":
            item["outputs"] = [{"type": "logs", "logs": "1"}]


def extend_items(response: dict[str, Any]) -> None:
    for item in response.get("output", ()):
        item["novel"] = 1


def hide_tools(response: dict[str, Any]) -> None:
    response["tools"] = []


def prefix_texts(response: dict[str, Any]) -> None:
    for item in response.get("output", ()):
        for part in item.get("content", ()):
            part["text"] = f"Sure: {part['text']}"


def drop_key(name: str) -> Callable[[Any], None]:
    return lambda body: body.pop(name, None)


def drop_item_key(kind: str, name: str) -> Callable[[dict[str, Any]], None]:
    def change(response: dict[str, Any]) -> None:
        for item in response.get("output", ()):
            if item["type"] == kind:
                del item[name]

    return change


def forget_chain(request: ProxiedRequest) -> None:
    if "previous_response_id" in request.body:
        request.headers["x-previous"] = request.body.pop("previous_response_id")


def echo_chain(request: ProxiedRequest, answer: ProxiedAnswer) -> None:
    if "x-previous" in request.headers:
        answer.change_json(lambda body: body.update(previous_response_id=request.headers["x-previous"]))


def move_citations(response: dict[str, Any], end: int | None) -> None:
    for item in response.get("output", ()):
        for part in item.get("content", ()):
            for one in part["annotations"]:
                one["end_index"] = one["start_index"] if end is None else end


CODE = "code_interpreter"
FAULTS: dict[str, tuple[Fault, str]] = {
    "events in the wrong order": (on_events(swap("output_item.added")), "text:stream"),
    "an event is missing": (on_events(drop("code_interpreter_call.in_progress")), f"{CODE}:stream"),
    "an event without a key": (
        on_events(edit("output_text.delta", lambda event: event.pop("content_index"))),
        "text:stream",
    ),
    "an item without a key": (
        on_json(drop_item_key("code_interpreter_call", "container_id")),
        f"{CODE}:item",
    ),
    "another item id at the end": (on_events(rename_call), "text:stream"),
    "a gap in the sequence": (
        on_events(edit("output_text.done", lambda event: event.update(sequence_number=99))),
        "text:numbers",
    ),
    "numbers from 1": (
        on_events(lambda events: [event.update(sequence_number=at) for at, event in enumerate(events, 1)] and None),
        "function:numbers",
    ),
    "a final response without an item": (on_events(lose_last_item), "text:fold"),
    "deltas that do not add up": (
        on_events(edit("output_text.delta", lambda event: event.update(delta="x"))),
        "text:fold",
    ),
    "arguments that do not add up": (
        on_events(edit("function_call_arguments.done", lambda event: event.update(arguments="{}"))),
        "function:fold",
    ),
    "id lines": (Fault(change_answer=with_ids), "text:stream"),
    "tools that are not echoed": (on_json(hide_tools, key="tools"), "function:echoed"),
    "outputs without include": (on_json(show_outputs), f"{CODE}:include"),
    "no sources with include": (on_request(remove("include")), "web_search:include"),
    "another stored response": (
        on_json(lambda body: body.update(output=[]), path="/responses/resp_", method="GET"),
        "text:stored",
    ),
    "input items without ids": (
        on_json(lambda body: [one.pop("id") for one in body.get("data", ())] and None, path="/input_items"),
        "text:inputs",
    ),
    "a chain that is forgotten": (on_request(remove("previous_response_id")), "text:chained"),
    "a chain that is echoed and forgotten": (
        Fault(forget_chain, echo_chain),
        "responses:continued",
    ),
    "a citation behind the text": (on_json(lambda body: move_citations(body, 1000)), "web_search:item"),
    "a citation of nothing": (on_json(lambda body: move_citations(body, None)), "web_search:item"),
    "store: false is ignored": (on_request(remove("store")), "text:replayed"),
    "max_tool_calls is ignored": (on_request(remove("max_tool_calls")), f"{CODE}:max-calls"),
    "background is ignored": (on_request(remove("background")), "text:background"),
    "starting_after is ignored": (on_request(replay_all), "text:resumed"),
    "unknown parameters are ignored": (on_request(remove("conformance_unknown")), "text:unknown"),
    "a failed response after failed code": (on_json(fail_code), f"{CODE}:failure"),
    "tool_choice is ignored": (on_request(free_choice), "function:forced"),
    "tool_choice of a hosted tool is ignored": (on_request(free_choice), f"{CODE}:forced"),
    "tool_choice: none is ignored": (on_request(ignore_none), "shell:forced"),
    "an exception that is not shown": (on_json(hide_failures), f"{CODE}:failure"),
    "an exit code that is not shown": (on_json(hide_failures), "shell:failure"),
    "a page that was not opened": (on_json(hide_failures), "web_search:failure"),
    "a 400 that mentions the text": (refuse_with(None, "The text cannot be read."), "structured-output:item"),
    "a 400 that mentions functions": (refuse_with(None, "Unknown error in a function of shell."), "function:item"),
    "a 400 for a valid declaration": (refuse_with("tools[0].function", "Field required."), "function:item"),
    "a 400 for a valid include": (refuse_with("input", "Unknown input.", key="include"), "text:include"),
    "refusals with status 200": (Fault(change_answer=accept_what_is_refused), "errors:unknown-parameter"),
    "errors without param": (
        on_json(lambda body: body.get("error") and body["error"].pop("param", None) and None),
        "errors:unknown-path",
    ),
    "changed contents": (Fault(change_answer=change_file), "files:content"),
    "pages without has_more": (on_json(drop_key("has_more")), "containers:listed"),
    "context_management is ignored": (on_request(remove("context_management")), "compaction:management"),
    "a schema that is ignored": (on_json(prefix_texts), "structured-output:item"),
    "an internal error": (answer_with(500, b'{"error": {}}'), "text:item"),
    "an answer that is no JSON": (answer_with(200, b"<html>"), "text:item"),
}
"""A fault, and a check that must fail."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check(proxy, run, name):
    proxy.fault, failing = FAULTS[name]
    done = run(proxy.url, failing, arguments=["--model", "scripted"])

    assert done.having("failed") == {failing}, done.result.output
    assert done.result.exit_code == 1
    assert f"FAILED {failing.replace(':', ': ')}" in done.result.stdout
    assert done.outcomes[failing]["expected"]
    assert done.outcomes[failing]["request"]["url"].startswith(proxy.url)


def test_objects_of_another_tenant_that_are_visible_fail_every_check_of_tenants(server, proxy, run):
    proxy.fault = on_request(use_first_key(server))
    done = run(proxy.url, "tenants", arguments=["--model", "scripted"])

    assert done.having("failed") == set(done.outcomes)


@pytest.mark.parametrize("status, body", [(200, b"{}"), (200, b'{"id": "x", "output": [], "data": []}'), (500, b"[]")])
def test_a_server_with_one_answer_for_everything_passes_no_check(proxy, run, status, body, mcp_url):
    proxy.fault = answer_with(status, body)
    done = run(proxy.url, arguments=["--model", "scripted", "--mcp-url", mcp_url])

    assert done.having("passed") == set()
    assert done.result.exit_code == 1


def encrypt_again(answer: ProxiedAnswer) -> None:
    """As a server does that encrypts the reasoning with each answer."""
    number = itertools.count()

    def change(value: Any) -> None:
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            change(one)
        if isinstance(value, dict) and value.get("type") == "reasoning":
            value["encrypted_content"] = f"{answer.headers.get('x-request-id')}-{next(number)}"

    answer.change_json(change)
    answer.change_events(change)


TOLERATED = {
    "no obfuscation": on_events(lambda events: [event.pop("obfuscation", None) for event in events] and None),
    "new keys": on_events(lambda events: [event.update(novel=1) for event in events] and None),
    "new keys of items": on_json(extend_items),
    "new ciphertexts": Fault(change_answer=lambda request, answer: encrypt_again(answer)),
    "an unknown event": on_events(lambda events: renumber([*events[:-1], {"type": "response.novel"}, events[-1]])),
}


@pytest.mark.parametrize("name", ["no obfuscation", "new keys", "new keys of items"])
def test_additions_to_the_wire_are_tolerated(proxy, run, name):
    proxy.fault = TOLERATED[name]
    done = run(proxy.url, "text", f"{CODE}:stream", f"{CODE}:item", arguments=["--model", "scripted"])

    assert done.result.exit_code == 0, done.result.output


def test_reasoning_may_be_encrypted_again_with_each_answer(proxy, run):
    proxy.fault = TOLERATED["new ciphertexts"]
    checks = [f"reasoning:{name}" for name in ("item", "stream", "fold", "include", "stored", "background", "resumed")]
    done = run(proxy.url, *checks, arguments=["--model", "scripted"])

    assert done.having("passed") == set(checks), done.result.output


def test_an_unknown_event_is_tolerated(proxy, run):
    proxy.fault = TOLERATED["an unknown event"]
    done = run(proxy.url, "text:stream", "text:numbers", "text:fold", arguments=["--model", "scripted"])

    assert done.result.exit_code == 0, done.result.output


def refuse_shell(request: ProxiedRequest) -> ProxiedAnswer | None:
    if "shell" not in json.dumps(request.body.get("tools")):
        return None
    error = {"message": "There is no shell.", "type": "invalid_request_error", "param": "tools[0].type", "code": None}
    return ProxiedAnswer(400, {"content-type": "application/json"}, json.dumps({"error": error}).encode())


def test_the_report_has_a_table_and_the_reasons(proxy, run):
    proxy.fault = on_request(refuse_shell)
    done = run(proxy.url, "text", "shell", "errors:limit", arguments=["--model", "scripted"])

    lines = done.result.stdout.splitlines()
    assert next(line for line in lines if line.startswith("text ")).split() == ["text", *["ok"] * 12]
    assert next(line for line in lines if line.startswith("shell ")).split() == ["shell", *["n/s"] * 15]
    assert "errors        limit ok" not in done.result.stderr
    assert any(line.startswith("errors ") and "limit ok" in line for line in lines)
    assert "not supported: shell (15 checks): There is no shell." in done.result.stdout
    assert "13 passed, 15 not supported" in lines[-1]
    assert "text: 12 passed" in done.result.stderr
    assert done.result.exit_code == 0


def test_a_model_that_does_not_call_the_tool_is_inconclusive(proxy, run):
    def forget(request: ProxiedRequest) -> None:
        if "tools" in request.body:
            request.body |= {"input": "hello", "tool_choice": "auto"}

    proxy.fault = on_request(forget)
    done = run(proxy.url, "function", "web_search", arguments=["--model", "scripted"])

    assert done.having("inconclusive") == set(done.outcomes)
    assert "inconclusive: function (13 checks): the model did not call the tool" in done.result.stdout
    assert done.result.exit_code == 0


def test_a_model_that_writes_too_much_is_inconclusive(proxy, run):
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    proxy.fault = on_json(lambda response: response.update(cut), path="/responses")
    done = run(proxy.url, "text:item", "text:chained", arguments=["--model", "scripted"])

    assert done.having("inconclusive") == {"text:item", "text:chained"}
    assert "the model wrote more than 4000 tokens" in done.result.stdout


def test_control_characters_of_a_server_are_not_printed(proxy, run):
    proxy.fault = answer_with(500, b'{"error": "\x1b]0;title\x07[red]"}')
    done = run(proxy.url, "text", arguments=["--model", "scripted"])

    assert "\x1b" not in done.result.stdout
    assert "[red]" in done.result.stdout


def test_keys_that_a_server_returns_are_not_reported(proxy, run, server, tmp_path):
    def echo(request: ProxiedRequest) -> ProxiedAnswer:
        key = request.headers.get("authorization", "")
        return ProxiedAnswer(500, {"content-type": "application/json"}, json.dumps({"error": f"of {key}"}).encode())

    proxy.fault = on_request(echo)
    done = run(proxy.url, "text", "tenants", arguments=["--model", "scripted"])
    listed = run(proxy.url)

    report = done.result.output + (tmp_path / "outcomes.json").read_text(encoding="utf-8")
    assert "of Bearer $API_KEY" in report
    assert listed.result.exit_code == 2
    for key in (server.keys["a"], server.keys["b"]):
        assert key not in report + listed.result.output


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"error": "\\ud800"}',
        b'{"id": "%b", "output": []}' % (b"x" * 70_000),
    ],
    ids=["deep", "less deep", "surrogate", "long id"],
)
def test_hostile_json_fails_checks_and_not_the_suite(proxy, run, body):
    proxy.fault = answer_with(200, body)
    done = run(proxy.url, "text", "responses", "files", "containers", arguments=["--model", "scripted"])

    assert done.having("passed") == set()
    assert len(done.outcomes) > 20
    assert done.result.exit_code == 1
    assert isinstance(done.result.exception, SystemExit)


def test_names_of_models_are_printed_without_control_characters(proxy, run):
    proxy.fault = on_json(lambda body: body.update(data=[{"id": "\x1b]0;a\x07"}, {"id": "b" * 9999}]), path="/models")
    output = run(proxy.url).result.output
    proxy.fault = answer_with(500, b"\x1b]0;title\x07")
    output += run(proxy.url).result.output

    assert "\x1b" not in output
    assert len(output) < 2000


@pytest.mark.parametrize("key", ["sk-secrét", "sk-secret\n", "sk-sec ret"])
def test_a_key_that_cannot_be_sent_is_not_shown(proxy, key):
    result = CliRunner().invoke(main, ["conformance", proxy.url], env={"ANTWORT_API_KEY": key})

    assert (result.exit_code, "sk-sec" in result.output) == (2, False)
    assert "The API key contains" in result.stderr


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("required, exit_code", [("text", 0), ("shell", 1), ("shell:item", 1), ("shell:stream", 0)])
def test_a_required_check_that_is_not_supported_exits_with_1(proxy, run, required, exit_code):
    proxy.fault = on_request(refuse_shell)
    done = run(proxy.url, "text:item", "shell:item", arguments=["--model", "scripted", "--require", required])

    assert done.result.exit_code == exit_code


def test_list_prints_all_checks_without_a_server():
    result = CliRunner().invoke(main, ["conformance", "--list"])

    assert result.stdout.splitlines() == [f"{area}: {', '.join(names)}" for area, names in ALL_CHECKS.items()]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["ftp://127.0.0.1"], "is not the URL of a server"),
        (["http://127.0.0.1:9"], "http://127.0.0.1:9/v1/models cannot be read"),
        (["http://127.0.0.1:9", "--only", "txt"], "'txt' is no check"),
        (["http://127.0.0.1:9", "--key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (["http://127.0.0.1:9", "--json", "missing/outcomes.json"], "The directory of missing/outcomes.json does not"),
        ([], "Missing argument 'URL'"),
    ],
)
def test_a_suite_that_cannot_run_exits_with_2(arguments, message):
    result = CliRunner().invoke(main, ["conformance", *arguments])

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_missing_key_is_explained(server):
    result = CliRunner().invoke(main, ["conformance", server.url], env={"ANTWORT_API_KEY": ""})

    assert result.exit_code == 2
    assert "set ANTWORT_API_KEY" in result.stderr


def test_the_key_of_openai_is_sent_to_openai_only(proxy, server):
    seen: list[str | None] = []
    proxy.fault = on_request(lambda request: seen.append(request.headers.get("authorization")))
    CliRunner().invoke(main, ["conformance", proxy.url], env={"OPENAI_API_KEY": "sk-secret", "ANTWORT_API_KEY": ""})

    assert seen == [None]


def test_several_models_are_listed(proxy, run):
    proxy.fault = on_json(lambda body: body.update(data=[{"id": "small"}, {"id": "large"}]), path="/models")
    done = run(proxy.url, "text")

    assert done.result.exit_code == 2
    assert "The server lists 2 models: name one with --model (small, large)." in done.result.stderr


def test_the_command_runs_as_a_process(server, tmp_path):
    command = [sys.executable, "-m", "antwort", "conformance", server.url, "--only", "text:item"]
    environment = {"ANTWORT_API_KEY": server.keys["a"], "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.splitlines()[-1].partition(" · ")[0]) == (0, "1 passed")
