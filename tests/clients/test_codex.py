"""Codex CLI, unmodified: it repairs a small repository through the server, and continues its session.

The scripted model calls the tools that Codex declares. They depend on the name of the model: for the models that Codex
knows, a custom tool in a namespace runs JavaScript, which calls the other tools; for other names there are functions.
Codex keeps the history itself and sends `store: false`, so the turns are those of the server's log.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fixtures_clients import PROGRAMS, client_environment, log_lines, requests, run_client
from fixtures_server import Server, run_server

TASK = "Repair the module, so that its test passes."
NEXT_TASK = "Which test was that?"
FILES = {
    "prices.py": "def total(prices):\n    return sum(prices) - 1\n",
    "test_prices.py": """\
import unittest

from prices import total


class PricesTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
""",
}
PATCH = """\
*** Begin Patch
*** Update File: prices.py
@@
-    return sum(prices) - 1
+    return sum(prices)
*** End Patch
"""
SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string"}},
    "required": ["customer"],
    "additionalProperties": False,
}
SWITCHING_PROTOCOLS = 101
RUN_TEST = shlex.join([sys.executable, "-B", "-m", "unittest", "test_prices.py"])


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


def javascript(source: str) -> dict[str, Any]:
    """A call of the tool that the models of Codex's catalogue get."""
    return call("functions__exec", input=f"text({source})")


def script(steps: list[dict[str, Any]], tools: list[str]) -> dict[str, Any]:
    """One step per turn, where the model is offered the tool of the turn and has read the output of the step before."""
    outputs = ["", "sum(prices) - 1", "FAILED (failures=1)", "", "OK"]
    replies = [[{"reasoning": "I read the module first."}, steps[0]], *([step] for step in steps[1:])]
    replies.append([{"text": "The test passes."}])
    return {
        "fragment": 16,
        "answers": [
            {"when": {"text": NEXT_TASK}, "reply": [{"text": "<<find /PricesTest\\.test_total/>>"}]},
            *(
                {"when": {"text": TASK, "turn": turn, "tool": tool, "output": output}, "reply": reply}
                for turn, (tool, output, reply) in enumerate(zip(tools, outputs, replies, strict=True), 1)
            ),
        ],
    }


CODE_MODE = script(
    [
        javascript("(await tools.exec_command({cmd: 'cat prices.py'})).output"),
        javascript(f"(await tools.exec_command({{cmd: {json.dumps(RUN_TEST)}}})).output"),
        javascript(f"await tools.apply_patch({json.dumps(PATCH)})"),
        javascript(f"(await tools.exec_command({{cmd: {json.dumps(RUN_TEST)}}})).output"),
    ],
    tools=["functions__exec", "functions__wait", "clock__sleep", "collaboration__spawn_agent", "functions__exec"],
)
FUNCTIONS = script(
    [
        call("exec_command", cmd="cat prices.py"),
        call("exec_command", cmd=RUN_TEST),
        call("exec_command", cmd=f"apply_patch <<'END'\n{PATCH}END\n"),
        call("exec_command", cmd=RUN_TEST),
    ],
    tools=["exec_command", "write_stdin", "view_image", "multi_agent_v1__spawn_agent", "exec_command"],
)
# A model of the catalogue that gets functions, a custom tool, and a search for the tools of MCP servers.
TOOL_SEARCH = {
    "fragment": 16,
    "answers": [
        {
            "when": {"turn": 1},
            "reply": [call("exec_command", cmd=RUN_TEST), call("exec_command", cmd="cat prices.py")],
        },
        {"when": {"turn": 2, "any": "FAILED (failures=1)"}, "reply": [call("apply_patch", input=PATCH)]},
        {"when": {"turn": 3}, "reply": [call("tool_search", query="customer")]},
        {"when": {"turn": 4, "tool": "mcp__crm__customer"}, "reply": [call("mcp__crm__customer", number=7)]},
        {"when": {"turn": 5}, "reply": [{"text": '{"customer": "<<find /Ada Lovelace/>>"}'}]},
    ],
}

# The first output exceeds the threshold. Codex then asks for a compaction, and its next request begins with the result.
COMPACTION = {
    "fragment": 16,
    "answers": [
        {"when": {"text": "Summarize the conversation"}, "reply": [{"text": "Summary: <<find /fact-7/>>"}]},
        {
            "when": {"any": "Summary: fact-7", "output": "still here"},
            "reply": [{"text": "<<find /fact-7|still here/>>"}],
        },
        {
            "when": {"any": "Summary: fact-7", "tool": "functions__exec"},
            "reply": [javascript("(await tools.exec_command({cmd: 'echo still here'})).output")],
        },
        {
            "when": {"turn": 1},
            "reply": [
                {"reasoning": "A long output."},
                javascript(
                    "(await tools.exec_command({cmd: 'echo fact-7; seq 9000', max_output_tokens: 9000})).output"
                ),
            ],
        },
    ],
}

ONLY_THE_URL = 'openai_base_url = "{url}/v1"\n'
OWN_PROVIDER = """\
model_provider = "antwort"

[model_providers.antwort]
name = "antwort"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
"""
# `required`: Codex waits for the server, so that the first search finds its tool.
MCP_SERVER = f"""
[mcp_servers.crm]
required = true
command = "{sys.executable}"
args = ["{PROGRAMS / "mcp_server.py"}"]
"""
IGNORE_WEB_SEARCH = {"tools": {"unavailable": "ignore"}}


def own_provider(model: str) -> str:
    return f'model = "{model}"\n{OWN_PROVIDER}'


@dataclass(frozen=True)
class Setup:
    """A configuration of Codex, and the script and the settings of the server."""

    config: str
    script: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)
    websocket: bool = False
    """Whether Codex uses a WebSocket. It begins each one with a request that asks no model."""


SETUPS = {
    "its default model, only the URL changed": Setup(ONLY_THE_URL, CODE_MODE, websocket=True),
    "its newest model": Setup(own_provider("gpt-6-astra"), CODE_MODE),
    "a model that it does not know": Setup(own_provider("scripted"), FUNCTIONS, IGNORE_WEB_SEARCH),
}


class Codex:
    """Codex with a home directory and a repository of its own."""

    def __init__(self, directory: Path, server: Server, config: str) -> None:
        self.repository = directory / "repository"
        self.repository.mkdir()
        for name, text in FILES.items():
            (self.repository / name).write_text(text, encoding="utf-8")
        for words in (["init", "--quiet"], ["add", "."]):
            subprocess.run(["git", *words], cwd=self.repository, check=True)
        home = directory / "codex"
        home.mkdir()
        # Its reports could not be sent, and Codex would wait for them at its end.
        text = config.replace("{url}", server.url) + "\n[analytics]\nenabled = false\n"
        (home / "config.toml").write_text(text, encoding="utf-8")
        self._environment = {
            **client_environment(directory, server),
            "CODEX_HOME": str(home),
            "CODEX_API_KEY": "none",
        }

    @property
    def is_repaired(self) -> bool:
        """Whether the test passes, with the module as the patch changes it."""
        module = (self.repository / "prices.py").read_text(encoding="utf-8")
        test = subprocess.run(shlex.split(RUN_TEST), cwd=self.repository, capture_output=True, check=False)
        return module == FILES["prices.py"].replace(" - 1", "") and test.returncode == 0

    def run(self, *words: str) -> list[dict[str, Any]]:
        """Run `codex exec`, and return its events. The namespace of the tests replaces its own sandbox."""
        options = ["--json", "--dangerously-bypass-approvals-and-sandbox"]
        output = run_client(["codex", "exec", *words[:-1], *options, words[-1]], self.repository, self._environment)
        return [json.loads(line) for line in output.splitlines()]


def completed(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The completed items of a kind."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == kind]


def created_responses(server: Server) -> list[tuple[str, bool]]:
    """The model that gave each response, and whether the response is stored."""
    return [(line["model"], line["stored"]) for line in log_lines(server) if line.get("action") == "response.create"]


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_codex_edits_and_tests_a_repository_and_resumes(setup, tmp_path):
    with run_server(tmp_path / "server", setup.server, script=setup.script) as server:
        codex = Codex(tmp_path, server, setup.config)
        first = codex.run(TASK)
        second = codex.run("resume", "--last", NEXT_TASK)
        statuses = [line["status"] for line in requests(server)]
        responses = created_responses(server)

    assert codex.is_repaired
    assert [item["exit_code"] for item in completed(first, "command_execution")] == [0, 1, 0]
    assert [item["status"] for item in completed(first, "file_change")] == ["completed"]
    assert [item["text"] for item in completed(first, "agent_message")] == ["The test passes."]
    assert [item["text"] for item in completed(second, "agent_message")] == ["PricesTest.test_total"]
    connections = 2 if setup.websocket else 0
    assert responses == [("scripted", False)] * (6 + connections)
    assert sorted(statuses) == [SWITCHING_PROTOCOLS] * connections + [200] * (6 + connections)


def test_codex_searches_for_tools_calls_in_parallel_and_answers_in_a_schema(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    config = own_provider("gpt-5.5") + MCP_SERVER
    with run_server(tmp_path / "server", IGNORE_WEB_SEARCH, script=TOOL_SEARCH) as server:
        codex = Codex(tmp_path, server, config)
        events = codex.run("--output-schema", str(schema), TASK)
        statuses = [line["status"] for line in requests(server)]
        responses = created_responses(server)

    assert codex.is_repaired
    assert sorted(item["exit_code"] for item in completed(events, "command_execution")) == [0, 1]
    assert [(item["server"], item["tool"]) for item in completed(events, "mcp_tool_call")] == [("crm", "customer")]
    assert [json.loads(item["text"]) for item in completed(events, "agent_message")] == [{"customer": "Ada Lovelace"}]
    assert responses == [("scripted", False)] * 5
    assert statuses == [200] * 5


def test_codex_compacts_its_history_and_goes_on_with_its_tools(tmp_path):
    with run_server(tmp_path / "server", script=COMPACTION) as server:
        codex = Codex(tmp_path, server, "model_auto_compact_token_limit = 18000\n" + ONLY_THE_URL)
        events = codex.run(TASK)
        responses = created_responses(server)

    assert [item["exit_code"] for item in completed(events, "command_execution")] == [0, 0]
    assert [item["text"] for item in completed(events, "agent_message")] == ["fact-7\nstill here"]
    assert len(responses) == 5  # the first one asks no model
