from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antwort.api.requests import CreateResponse, decode
from antwort.api.secrets import REDACTED, item_without_secrets, without_secrets

SECRET = "hunter2"
POLICY = {"type": "allowlist", "allowed_domains": ["x.example"]}
SECRETS = [{"domain": "x.example", "name": "KEY", "value": SECRET}]
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://x.example/mcp"}

# Declarations with secrets, and the same without.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "authorization": ({**MCP, "authorization": SECRET}, {**MCP, "authorization": None}),
    "headers": (
        {**MCP, "headers": {"x-key": SECRET, "x-other": SECRET}},
        {**MCP, "headers": None},
    ),
    "password in server_url": (
        {**MCP, "server_url": f"https://me:{SECRET}@x.example/mcp?a=b#c"},
        {
            **MCP,
            "server_url": "https://x.example/mcp?a=b#c",
        },
    ),
    "code_interpreter": (
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "network_policy": {**POLICY, "domain_secrets": SECRETS}},
        },
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "network_policy": {**POLICY, "domain_secrets": None}},
        },
    ),
    "shell": (
        {
            "type": "shell",
            "environment": {"type": "container_auto", "network_policy": {**POLICY, "domain_secrets": SECRETS}},
        },
        {
            "type": "shell",
            "environment": {"type": "container_auto", "network_policy": {**POLICY, "domain_secrets": None}},
        },
    ),
}


def declared(*tools):
    return decode(msgspec.json.encode({"tools": tools}), CreateResponse).tools or []


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_stripped_from_a_declaration(case):
    tool, stripped = CASES[case]
    tools = declared(tool)

    assert SECRET in str(tools)
    assert without_secrets(tools) == declared(stripped)
    assert SECRET not in str(without_secrets(tools))


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_stripped_from_an_additional_tools_item(case):
    tool, _ = CASES[case]
    item = {"type": "additional_tools", "role": "developer", "tools": [tool, "odd", 3]}

    assert SECRET not in str(item_without_secrets(item))
    assert item_without_secrets(item)["tools"][1:] == ["odd", 3]
    assert item["tools"][0] is tool


def test_a_declaration_without_secrets_is_unchanged():
    tools = declared(
        {"type": "function", "name": "f", "description": REDACTED, "parameters": {"authorization": "x"}},
        MCP,
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "shell"},
    )
    item = {"type": "message", "role": "user", "content": "x", "tools": [{"type": "mcp", "authorization": "x"}]}

    assert all(stripped is tool for stripped, tool in zip(without_secrets(tools), tools, strict=True))
    assert item_without_secrets(item) is item


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "mcp", "headers": "x", "server_url": 3},
        {"type": "mcp", "server_url": "http://[x@y"},
        {"type": "code_interpreter", "container": {"network_policy": "x"}},
        {"type": "shell", "environment": 3},
        {"type": 3},
    ],
)
def test_malformed_declarations_are_stripped_without_errors(odd):
    stripped = item_without_secrets({"type": "additional_tools", "tools": [odd]})["tools"][0]

    assert stripped.get("headers") is None
    assert "x@" not in str(stripped.get("server_url"))
