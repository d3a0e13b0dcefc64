"""Event streams of the server process, scenario by scenario: order and keys are those of OpenAI's wire.

`stream_grammar` has the rules. Where the reference pages lie beside this clone, the rules are compared with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from fake_mcp_servers import FakeMcpServer
from fake_search_api import Found, fake_search_api
from fake_upstream import CannedReply, running_upstream, sse_frame
from fixtures_code_interpreter import AUTO, OUTPUTS, call, code_server
from fixtures_web_search import SEARCH, SOURCES
from fixtures_web_search import call as call_function
from fixtures_web_search import search as web_search
from stream_grammar import EVENTS, ITEMS, RESPONSE_KEYS, SentEvent, check_stream, read_frames

from antwort.conformance.grammar import check_stream as tolerant_check

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
EVENTS_PAGE = REFERENCE / "openai-events.txt"
TOOLS_PAGE = REFERENCE / "hosted-tool-streams.md"
RECORDING = REFERENCE / "openai-code-interpreter-stream.jsonl"

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
SHOUT = {"type": "custom", "name": "shout"}
LONG = [{"role": role, "content": f"{role} {at} " + "why " * 60} for at in range(12) for role in ("user", "assistant")]


def add(number: int) -> dict[str, Any]:
    return {"call": {"name": "add", "arguments": {"n": number}}}


def fault(code: str = "server_error", status: int = 502) -> dict[str, Any]:
    return {"fault": {"code": code, "status": status}}


SHOUTED = {"call": {"name": "shout", "arguments": {"input": "HEY you"}}}
BROKEN_CODE = {"call": {"name": "code_interpreter", "arguments": '{"code": "print(1)'}}
WRITES = call("open('/mnt/data/a.txt', 'w').write('1')")


class Scenario(NamedTuple):
    """A request, the replies of the model to it, and the expected items with the final event."""

    replies: list[list[dict[str, Any]]]
    items: list[str]
    """The type of each item, with its status unless that is `completed` or the type has none."""
    request: Mapping[str, Any] = MappingProxyType({})
    end: str = "completed"
    finish: str | None = None


MESSAGE, FUNCTION, CUSTOM, CODE = "message", "function_call", "custom_tool_call", "code_interpreter_call"
BOTH = {"tools": [ADD, SHOUT]}
CODING = {"tools": [AUTO, ADD], "include": OUTPUTS}
FORCED = {"type": "function", "name": "add"}
DONE = [{"text": "Done."}]

SCENARIOS: dict[str, Scenario] = {
    "text": Scenario([[{"text": "Hello, world."}]], [MESSAGE]),
    "text without obfuscation": Scenario(
        [[{"text": "Hello."}]], [MESSAGE], {"stream_options": {"include_obfuscation": False}}
    ),
    "text with logprobs": Scenario([[{"text": "Hi."}]], [MESSAGE], {"include": ["message.output_text.logprobs"]}),
    "empty reply": Scenario([[{"text": ""}]], []),
    "refusal": Scenario([[{"refusal": "I will not."}]], [MESSAGE]),
    "text and refusal": Scenario([[{"text": "Well."}, {"refusal": "No."}]], [MESSAGE]),
    "reasoning text": Scenario([[{"reasoning": "Hm, well."}, {"text": "Yes."}]], ["reasoning", MESSAGE]),
    "reasoning summary": Scenario(
        [[{"summary": "It thinks."}, {"text": "Yes."}]], ["reasoning", MESSAGE], {"reasoning": {"summary": "auto"}}
    ),
    "encrypted reasoning": Scenario(
        [[{"reasoning": "Hm."}, {"text": "Yes."}]],
        ["reasoning", MESSAGE],
        {"include": ["reasoning.encrypted_content"]},
    ),
    "function call": Scenario([[add(1)]], [FUNCTION], BOTH),
    "custom tool call": Scenario([[SHOUTED]], [CUSTOM], BOTH),
    "text and function call": Scenario([[{"text": "I add."}, add(1)]], [MESSAGE, FUNCTION], BOTH),
    "parallel function calls": Scenario([[add(1), add(2), add(3)]], [FUNCTION] * 3, BOTH),
    "parallel function and custom calls": Scenario([[add(1), SHOUTED, add(2)]], [FUNCTION, CUSTOM, FUNCTION], BOTH),
    "text between function calls": Scenario([[add(1), {"text": "Or."}, add(2)]], [FUNCTION, MESSAGE, FUNCTION], BOTH),
    "forced function call": Scenario([[SHOUTED], [add(1)]], [FUNCTION], {**BOTH, "tool_choice": FORCED}),
    "forced function call that is not made": Scenario(
        [[SHOUTED]] * 3, [], {**BOTH, "tool_choice": FORCED}, end="failed"
    ),
    "code interpreter": Scenario(
        [[{"reasoning": "Hm."}, call("1 + 1")], [{"text": "2."}]], ["reasoning", CODE, MESSAGE], CODING
    ),
    "code interpreter, outputs not included": Scenario([[call("1 + 1")], DONE], [CODE, MESSAGE], {"tools": [AUTO]}),
    "code interpreter with a citation": Scenario(
        [[WRITES], [{"text": "See [a](sandbox:/mnt/data/a.txt)."}]], [CODE, MESSAGE], CODING
    ),
    "parallel code interpreter calls": Scenario(
        [[call("x = 1"), call("x + 1"), call("x + 2")], DONE], [CODE, CODE, CODE, MESSAGE], CODING
    ),
    "code that raises": Scenario([[call("1 / 0")], DONE], [CODE, MESSAGE], CODING),
    "code interpreter call with broken arguments": Scenario([[BROKEN_CODE], DONE], [f"{CODE} failed", MESSAGE], CODING),
    "failing code interpreter call beside another": Scenario(
        [[BROKEN_CODE, call("1")], DONE], [f"{CODE} failed", CODE, MESSAGE], CODING
    ),
    "code interpreter, then function call": Scenario([[call("1"), add(1)]], [CODE, FUNCTION], CODING),
    "function call, then code interpreter": Scenario([[add(1), call("1")]], [FUNCTION, CODE], CODING),
    "text, code interpreter, text, function calls": Scenario(
        [[{"text": "First."}, call("1"), {"text": "Then."}, add(1), add(2)]],
        [MESSAGE, CODE, MESSAGE, FUNCTION, FUNCTION],
        CODING,
    ),
    "more calls than max_tool_calls": Scenario(
        [[call("1"), call("2")], DONE], [CODE, MESSAGE], {**CODING, "max_tool_calls": 1}
    ),
    "compaction by context_management": Scenario(
        [[{"text": "Facts."}], [{"text": "Yes."}]],
        ["compaction", MESSAGE],
        {"input": LONG, "context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    ),
    "compaction by trigger": Scenario(
        [[{"text": "Facts."}]], ["compaction"], {"input": [*LONG, {"type": "compaction_trigger"}]}
    ),
    "error before the output": Scenario([[fault("rate_limit_exceeded", 429)]], [], end="failed"),
    "error in a text": Scenario([[{"text": "Half an "}, fault()]], [f"{MESSAGE} incomplete"], end="failed"),
    "error in reasoning": Scenario([[{"reasoning": "Half a "}, fault()]], ["reasoning"], end="failed"),
    "error in a function call": Scenario([[add(1), fault()]], [f"{FUNCTION} incomplete"], BOTH, end="failed"),
    "error in parallel calls": Scenario(
        [[add(1), add(2), call("1"), fault()]], [FUNCTION, FUNCTION, f"{CODE} incomplete"], CODING, end="failed"
    ),
    "compaction whose summary fails": Scenario(
        [[{"text": "Half"}, fault()]], ["compaction"], {"input": [*LONG, {"type": "compaction_trigger"}]}
    ),
    "text cut off by max_output_tokens": Scenario(
        [[{"text": "Too long"}]], [f"{MESSAGE} incomplete"], {"max_output_tokens": 16}, "incomplete", "length"
    ),
    "function call cut off by max_output_tokens": Scenario(
        [[add(1), {"call": {"name": "add", "arguments": '{"n": '}}]],
        [FUNCTION, f"{FUNCTION} incomplete"],
        BOTH,
        "incomplete",
        "length",
    ),
    "code interpreter call cut off by max_output_tokens": Scenario(
        [[call("1"), call("2"), add(1)]], [f"{CODE} incomplete", FUNCTION], CODING, "incomplete", "length"
    ),
    "text cut off by the content filter": Scenario(
        [[{"text": "Well"}]], [f"{MESSAGE} incomplete"], {}, "incomplete", "content_filter"
    ),
}

FOREVER: dict[str, Any] = {"delay": 600}
CANCELLED: dict[str, Scenario] = {
    "cancelled text": Scenario([[{"text": "Half an "}, FOREVER]], [f"{MESSAGE} incomplete"]),
    "cancelled function call": Scenario(
        [[add(1), {"call": {"name": "add", "arguments": '{"n'}}, FOREVER]], [FUNCTION, f"{FUNCTION} incomplete"], BOTH
    ),
    "cancelled code": Scenario([[call("while True: pass"), call("2"), add(1)]], [f"{CODE} incomplete"], CODING),
    "cancelled compaction": Scenario(
        [[{"text": "Half"}, FOREVER]], [], {"input": [*LONG, {"type": "compaction_trigger"}]}
    ),
}
"""Background responses that are cancelled once their last item has begun."""

CLIENT_TOOL_SEARCH = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": {}}
CALL_IN_NAMESPACE = {"call": {"name": "crm__get", "arguments": {"id": 7}}}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{"type": "function", "name": "get"}]}
SCENARIOS |= {
    "tool_search, run by the client": Scenario(
        [[{"call": {"name": "tool_search", "arguments": {"goal": "weather"}}}]],
        ["tool_search_call"],
        {"tools": [CLIENT_TOOL_SEARCH]},
    ),
    "function of a namespace": Scenario([[CALL_IN_NAMESPACE]], ["function_call"], {"tools": [CRM]}),
}

WEB = "web_search_call"
SEARCHING: dict[str, Any] = {"tools": [SEARCH, ADD], "include": SOURCES}
CITES = {"text": "It is [tea](https://tea.example/tea), see [1] and [2]: https://tea.example/tea."}
OPENS = call_function("open_page", url="http://127.0.0.1:9/")
SCENARIOS |= {
    "web_search": Scenario(
        [[{"reasoning": "Hm."}, web_search("tea", "oolong")], [{"reasoning": "Enough."}, CITES]],
        ["reasoning", WEB, "reasoning", MESSAGE],
        SEARCHING,
    ),
    "web_search, sources not included": Scenario([[web_search("tea")], [CITES]], [WEB, MESSAGE], {"tools": [SEARCH]}),
    "web_search that finds nothing": Scenario([[web_search("xylophone")], DONE], [WEB, MESSAGE], SEARCHING),
    "parallel web searches": Scenario(
        [[web_search("tea"), web_search("oolong")], DONE], [WEB, WEB, MESSAGE], SEARCHING
    ),
    "web_search that fails": Scenario([[web_search("forbidden")], DONE], [f"{WEB} failed", MESSAGE], SEARCHING),
    "web_search with broken arguments": Scenario(
        [[{"call": {"name": "web_search", "arguments": '{"queries": ["te'}}], DONE],
        [f"{WEB} failed", MESSAGE],
        SEARCHING,
    ),
    "page that cannot be opened": Scenario([[OPENS], DONE], [f"{WEB} failed", MESSAGE], SEARCHING),
    "web_search, then function call": Scenario([[web_search("tea"), add(1)]], [WEB, FUNCTION], SEARCHING),
    "web_search cut off by max_output_tokens": Scenario(
        [[web_search("tea"), add(1)]], [f"{WEB} incomplete", FUNCTION], SEARCHING, "incomplete", "length"
    ),
    "error in a web_search": Scenario([[web_search("tea"), fault()]], [f"{WEB} incomplete"], SEARCHING, end="failed"),
}
CANCELLED["cancelled call of the local shell"] = Scenario(
    [[{"call": {"name": "shell", "arguments": '{"commands": ["ls'}}, FOREVER]],
    ["shell_call incomplete"],
    {"tools": [{"type": "shell"}]},
)
CANCELLED["cancelled web_search"] = Scenario([[web_search("silent")]], [f"{WEB} incomplete"], SEARCHING)

PATCH, SHELL_CALL, COMPUTER = "apply_patch_call", "shell_call", "computer_call"
UPDATES = call_function("apply_patch", type="update_file", path="a.py", diff="@@ def f():\n-    a\n+    b\n")
CREATES = call_function("apply_patch", type="create_file", path="new.py", diff="+a\n+\n+b")
DELETES = call_function("apply_patch", type="delete_file", path="old.py")
BROKEN_PATCH = call_function("apply_patch", type="update_file", path="a.py", diff="a\nb\n")
RUNS = call_function("shell", commands=["ls -l", "cat a.py | head -3"], timeout_ms=1000, max_output_length=100)
EXECUTES = call_function("local_shell", command=["ls", "-l"], env={"A": "b"})
CLICKS = call_function("computer", actions=[{"type": "click", "x": 1, "y": 2}, {"type": "screenshot"}])
SCROLLS = call_function("computer", action={"type": "scroll", "x": 1, "y": 2, "scroll_y": 100})
DISPLAY = {"display_width": 800, "display_height": 600, "environment": "browser"}
PATCHING: dict[str, Any] = {"tools": [{"type": "apply_patch"}, {"type": "shell"}, AUTO, ADD], "include": OUTPUTS}
SCENARIOS |= {
    "apply_patch": Scenario(
        [[{"reasoning": "Hm."}, UPDATES, CREATES, DELETES]], ["reasoning", PATCH, PATCH, PATCH], PATCHING
    ),
    "apply_patch that creates an empty file": Scenario(
        [[call_function("apply_patch", type="create_file", path="empty", diff="")]], [PATCH], PATCHING
    ),
    "broken patch, then a correct one": Scenario([[BROKEN_PATCH], [UPDATES]], [PATCH], PATCHING),
    "two broken patches": Scenario([[BROKEN_PATCH], [BROKEN_PATCH], DONE], [MESSAGE], PATCHING),
    "broken patch beside a correct one": Scenario([[BROKEN_PATCH, UPDATES], [UPDATES]], [PATCH, PATCH], PATCHING),
    "forced apply_patch that is broken": Scenario(
        [[BROKEN_PATCH], [BROKEN_PATCH], DONE], [MESSAGE], {**PATCHING, "tool_choice": {"type": "apply_patch"}}
    ),
    "code interpreter, then apply_patch and function call": Scenario(
        [[call("1"), UPDATES, add(1)]], [CODE, PATCH, FUNCTION], PATCHING
    ),
    "apply_patch, text and code interpreter": Scenario(
        [[UPDATES, {"text": "Then."}, call("1")]], [PATCH, MESSAGE, CODE], PATCHING
    ),
    "apply_patch cut off by max_output_tokens": Scenario(
        [[UPDATES, add(1)]], [FUNCTION], PATCHING, "incomplete", "length"
    ),
    "error beside an apply_patch": Scenario([[UPDATES, fault()]], [], PATCHING, end="failed"),
    "shell, local": Scenario([[{"text": "I look."}, RUNS, RUNS]], [MESSAGE, SHELL_CALL, SHELL_CALL], PATCHING),
    "shell, local, then code interpreter": Scenario([[RUNS, call("1")]], [SHELL_CALL, CODE], PATCHING),
    "shell, local, cut off by max_output_tokens": Scenario(
        [[RUNS, {"call": {"name": "shell", "arguments": '{"commands": ["ls", "rm -r'}}]],
        [f"{SHELL_CALL} incomplete"],
        PATCHING,
        "incomplete",
        "length",
    ),
    "error in a call of the local shell": Scenario(
        [[RUNS, fault()]], [f"{SHELL_CALL} incomplete"], PATCHING, end="failed"
    ),
    "call of the local shell without a command": Scenario(
        [[call_function("shell", commands=[])], [{"call": {"name": "shell", "arguments": '{"command": "ls"}'}}]],
        [SHELL_CALL],
        PATCHING,
    ),
    "local_shell": Scenario([[EXECUTES]], ["local_shell_call"], {"tools": [{"type": "local_shell"}]}),
    "computer": Scenario([[CLICKS]], [COMPUTER], {"tools": [{"type": "computer"}]}),
    "computer_use_preview": Scenario(
        [[SCROLLS]], [COMPUTER], {"tools": [{"type": "computer_use_preview", **DISPLAY}], "truncation": "auto"}
    ),
}

MCP = {"type": "mcp", "server_label": "crm", "require_approval": "never"}
LISTED, MCP_CALL = "mcp_list_tools", "mcp_call"
CUSTOMER = call_function("crm__customer", number=7)
SCENARIOS |= {
    "mcp": Scenario([[CUSTOMER], DONE], [LISTED, MCP_CALL, MESSAGE], {"tools": [MCP]}),
    "mcp, two calls": Scenario([[CUSTOMER, CUSTOMER], DONE], [LISTED, MCP_CALL, MCP_CALL, MESSAGE], {"tools": [MCP]}),
    "mcp, failed call": Scenario(
        [[call_function("crm__fail", reason="x")], DONE], [LISTED, f"{MCP_CALL} failed", MESSAGE], {"tools": [MCP]}
    ),
    "mcp, bad arguments": Scenario(
        [[{"call": {"name": "crm__customer", "arguments": "{"}}], [CUSTOMER], DONE],
        [LISTED, MCP_CALL, MESSAGE],
        {"tools": [MCP]},
    ),
    "mcp approval": Scenario(
        [[CUSTOMER]], [LISTED, "mcp_approval_request"], {"tools": [{**MCP, "require_approval": "always"}]}
    ),
    "mcp, then function call": Scenario([[CUSTOMER, add(1)]], [LISTED, MCP_CALL, FUNCTION], {"tools": [MCP, ADD]}),
}
CANCELLED["cancelled mcp_call"] = Scenario(
    [[call_function("crm__wait")]], [LISTED, f"{MCP_CALL} incomplete"], {"tools": [MCP]}
)

SHELL, OUTPUT = "shell_call", "shell_call_output"
SHELLING: dict[str, Any] = {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}, AUTO, ADD]}


def shell(*commands: str, **more: int) -> dict[str, Any]:
    return {"call": {"name": "shell", "arguments": {"commands": list(commands), **more}}}


BROKEN_SHELL = {"call": {"name": "shell", "arguments": '{"commands": ["echo 1'}}
SCENARIOS |= {
    "shell": Scenario(
        [[{"reasoning": "Hm."}, shell("echo a; echo b >&2", "exit 3")], DONE],
        ["reasoning", SHELL, OUTPUT, MESSAGE],
        SHELLING,
    ),
    "shell command that times out": Scenario(
        [[shell("sleep 60", timeout_ms=200)], DONE], [SHELL, OUTPUT, MESSAGE], SHELLING
    ),
    "shell with a citation": Scenario(
        [[shell("echo 1 > a.txt")], [{"text": "See [a](sandbox:/mnt/data/a.txt)."}]],
        [SHELL, OUTPUT, MESSAGE],
        SHELLING,
    ),
    "parallel shell calls and code": Scenario(
        [[shell("echo 1 > a"), call("open('a').read()"), shell("cat a")], DONE],
        [SHELL, OUTPUT, CODE, SHELL, OUTPUT, MESSAGE],
        SHELLING,
    ),
    "shell, then function call": Scenario([[shell("true"), add(1)]], [SHELL, OUTPUT, FUNCTION], SHELLING),
    "more shell calls than max_tool_calls": Scenario(
        [[shell("true"), shell("false")], DONE], [SHELL, OUTPUT, MESSAGE], {**SHELLING, "max_tool_calls": 1}
    ),
    "shell with broken arguments": Scenario([[BROKEN_SHELL], DONE], [SHELL, OUTPUT, MESSAGE], SHELLING),
    "shell with a command in place of the list": Scenario(
        [[{"call": {"name": "shell", "arguments": {"command": "echo 1"}}}], DONE], [SHELL, OUTPUT, MESSAGE], SHELLING
    ),
    "shell cut off by max_output_tokens": Scenario(
        [[shell("true"), add(1)]], [f"{SHELL} incomplete", FUNCTION], SHELLING, "incomplete", "length"
    ),
    "error in a shell call": Scenario([[shell("true"), fault()]], [f"{SHELL} incomplete"], SHELLING, end="failed"),
}
CANCELLED["cancelled shell command"] = Scenario(
    [[shell("echo begun; sleep 600")]], [SHELL, f"{OUTPUT} incomplete"], SHELLING
)

UNAVAILABLE: dict[str, dict[str, Any]] = {
    "file_search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "image_generation": {"type": "image_generation"},
    "programmatic_tool_calling": {"type": "programmatic_tool_calling"},
}
"""The tools of the page that this server does not have. One that becomes available needs scenarios above."""


def model_script(scenario: Scenario) -> dict[str, Any]:
    """The replies of a scenario by turn. Each scenario has a model of its own, so that all can share a server."""
    more = {} if scenario.finish is None else {"finish": scenario.finish}
    answers = []
    for turn, reply in enumerate(scenario.replies, 1):
        when = {} if turn == len(scenario.replies) else {"when": {"turn": turn}}
        answers.append({**when, "reply": reply, **more})
    if "context_management" in scenario.request:
        answers[0]["when"] = {"text": "/^Summarize the conversation above/"}
    return {"fragment": 4, "answers": answers}


def model_name(name: str) -> str:
    return re.sub(r"\W+", "-", name)


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    directory = tmp_path_factory.mktemp("server")
    models: dict[str, Any] = {"default": "chat", "chat": {"kind": "chat_completions", "base_url": upstream.url}}
    for name, scenario in (SCENARIOS | CANCELLED).items():
        path = directory / f"{model_name(name)}.yaml"
        path.write_text(json.dumps(model_script(scenario)), encoding="utf-8")
        models[model_name(name)] = {"kind": "scripted", "script": path.name}
    engine = {"enabled": True, "engine": "searxng"}
    with (
        fake_search_api([Found("https://tea.example/tea", "Tea", "Oolong is tea.")]) as api,
        FakeMcpServer().running() as crm,
        code_server(
            "local",
            directory,
            models=models,
            web_search={**engine, "url": api.url},
            mcp={"enabled": True, "servers": {"crm": {"url": crm.url}}},
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http() as http:
        yield http


def stream(http, name: str, scenario: Scenario, **more: Any) -> list[SentEvent]:
    body = {"model": model_name(name), "input": "Go.", **scenario.request, "stream": True, **more}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return read_frames(answer.content)


def sent_items(events: list[SentEvent]) -> list[str]:
    """The items at their end, as in `Scenario.items`."""
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [f"{item['type']} {item.get('status')}".removesuffix(" completed").removesuffix(" None") for item in done]


def check(events: list[SentEvent], scenario: Scenario, *, background: bool = False) -> None:
    obfuscated = "stream_options" not in scenario.request
    check_stream(events, background=background, obfuscated=obfuscated)
    assert sent_items(events) == scenario.items
    assert events[-1]["type"] == f"response.{scenario.end}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stream_has_the_order_and_the_keys_of_the_wire(http, name):
    scenario = SCENARIOS[name]
    events = stream(http, name, scenario)

    check(events, scenario)
    assert http.get(f"/v1/responses/{events[-1]['response']['id']}").json()["status"] == scenario.end


RESUMED = [
    "text",
    "broken patch, then a correct one",
    "parallel code interpreter calls",
    "error in a text",
    "text cut off by max_output_tokens",
]


@pytest.mark.parametrize("name", RESUMED)
def test_a_background_stream_and_its_resumed_rest_have_the_order_and_the_keys_of_the_wire(http, name):
    scenario = SCENARIOS[name]
    events = stream(http, name, scenario, background=True)
    path = f"/v1/responses/{events[0]['response']['id']}"
    resumed = read_frames(http.get(path, params={"stream": True, "starting_after": 3}).content)

    check(events, scenario, background=True)
    assert resumed == events[4:]


LAST_EVENTS = {
    "cancelled text": "response.output_text.delta",
    "cancelled function call": "response.output_item.added",
    "cancelled code": "response.code_interpreter_call.interpreting",
    "cancelled compaction": "response.output_item.added",
    "cancelled call of the local shell": "response.shell_call_command.delta",
    "cancelled web_search": "response.web_search_call.searching",
    "cancelled mcp_call": "response.mcp_call_arguments.done",
    "cancelled shell command": "response.shell_call_output_content.delta",
}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_cancelled_stream_has_the_order_and_the_keys_of_the_wire(http, name):
    scenario = CANCELLED[name]
    last_index = max(0, len(scenario.items) - 1)
    body = {"model": model_name(name), "input": "Go.", **scenario.request, "stream": True, "background": True}
    with http.stream("POST", "/v1/responses", json=body) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        path = f"/v1/responses/{next(lines)['response']['id']}"
        next(one for one in lines if (one["type"], one.get("output_index")) == (LAST_EVENTS[name], last_index))
        assert http.post(f"{path}/cancel").json()["status"] == "cancelled"
    events = read_frames(http.get(path, params={"stream": True}).content)

    check(events, scenario._replace(end="incomplete"), background=True)
    assert events[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_every_tool_without_a_scenario_is_unavailable(http, name):
    answer = http.post("/v1/responses", json={"model": "text", "input": "Go.", "tools": [UNAVAILABLE[name]]})

    assert answer.status_code == 400, f"'{name}' is available: add its scenarios, and remove it from UNAVAILABLE"


# ── calls that the model writes at the same time ─────────────────────────────────────────────────────────────────────


def call_chunk(index: int, arguments: str, name: str | None = None) -> bytes:
    start = {"id": f"call_{index}", "type": "function"} if name else {}
    function = {"arguments": arguments} | ({"name": name} if name else {})
    delta = {"tool_calls": [{"index": index, **start, "function": function}]}
    return sse_frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def finish_chunk(reason: str) -> bytes:
    return sse_frame({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


ANSWER = CannedReply([sse_frame({"choices": [{"delta": {"content": "Done."}, "finish_reason": "stop"}]})])


def interleaved(*names: str, fields: tuple[str, ...], reason: str = "tool_calls") -> CannedReply:
    """Calls whose arguments arrive in turns."""
    begun = [call_chunk(at, f'{{"{fields[at]}": "', name) for at, name in enumerate(names)]
    rest = [call_chunk(at, part) for part in ("1 +", " 1", '"}') for at in range(len(names))]
    return CannedReply([*begun, *rest, finish_chunk(reason)])


@pytest.mark.parametrize(
    "names, fields, items",
    [
        (["add", "add", "add"], ("n", "n", "n"), [FUNCTION] * 3),
        (["shout", "add", "shout"], ("input", "n", "input"), [CUSTOM, FUNCTION, CUSTOM]),
        (["code_interpreter", "code_interpreter"], ("code", "code"), [CODE, CODE, MESSAGE]),
        (["add", "code_interpreter", "shout"], ("n", "code", "input"), [FUNCTION, CODE, CUSTOM]),
    ],
)
def test_parallel_calls_an_item_is_done_before_the_next_is_added(http, upstream, names, fields, items):
    upstream.set_replies(interleaved(*names, fields=fields), ANSWER)
    scenario = Scenario([], items, {"model": "chat", "tools": [ADD, SHOUT, AUTO], "include": OUTPUTS})
    events = stream(http, "chat", scenario)

    check(events, scenario)
    texts = [
        item.get("arguments") or item.get("input") or item.get("code") for item in events[-1]["response"]["output"]
    ]
    assert all("1 + 1" in text for text in texts if text)


def test_arguments_of_sequential_calls_are_streamed_in_parts(http):
    name = "parallel function calls"
    events = stream(http, name, SCENARIOS[name])

    deltas = [event["output_index"] for event in events if event["type"].endswith("arguments.delta")]
    assert deltas == [0, 0, 1, 1, 2, 2]


# ── the reference pages ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not EVENTS_PAGE.is_file(), reason="the page does not lie beside this clone")
def test_the_keys_of_events_are_those_of_the_page():
    fields: dict[str, set[str]] = {}
    name = ""
    for line in EVENTS_PAGE.read_text(encoding="utf-8").partition("## B.")[0].splitlines():
        if re.fullmatch(r"(response\.\S+|error)", line):
            name = line
        elif found := re.match(r"    (\w+\??): ", line):
            fields.setdefault(name, set()).add(found[1])
    for kind, rule in EVENTS.items():
        if kind == "error":  # really sent nested, as the end of the page says
            continue
        if kind.startswith("apply_patch_call"):  # sent, and not in the SDK, as the end of the page says
            continue
        listed = fields[kind if kind == "error" else f"response.{kind}"]
        required = {field for field in listed if not field.endswith("?")}
        given = rule.keys | rule.optional_keys | {"sequence_number"}
        assert required <= given <= {field.removesuffix("?") for field in listed}, kind


@pytest.mark.skipif(not TOOLS_PAGE.is_file(), reason="the page does not lie beside this clone")
def test_every_scenario_of_the_page_is_implemented_or_listed():
    rows = re.findall(
        r"^\| (?:\*\*)?([\w, ]+?)(?:\*\*)? *(?:\(.*?\) *)?\|", TOOLS_PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    others = {
        "compaction": "compaction by trigger",
        "reasoning summaries": "reasoning summary",
        "tool_search": "tool_search, run by the client",
    }
    known = UNAVAILABLE.keys() | SCENARIOS.keys()

    assert len(rows) > 10
    assert [row for row in rows if row != "tool" and others.get(row, row) not in known] == []


@pytest.mark.skipif(not RECORDING.is_file(), reason="the recording does not lie beside this clone")
def test_the_recording_follows_the_grammar():
    events = [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]
    tolerant_check(events)
    assert {key for event in events if "response" in event for key in event["response"]} <= RESPONSE_KEYS
    for event in events:
        if "response" in event:  # newer responses have more keys than the recorded one
            event["response"] = {**dict.fromkeys(RESPONSE_KEYS), **event["response"]}

    check_stream(events)
    assert {item["type"] for item in events[-1]["response"]["output"]} <= ITEMS.keys()
