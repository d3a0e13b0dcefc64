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

# Declarations with secrets, and what of them is kept.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a key": ({**MCP, "authorization": SECRET}, {**MCP, "authorization": None}),
    "headers": (
        {**MCP, "headers": {"x-key": SECRET, "x-other": SECRET}},
        {**MCP, "headers": {"x-key": REDACTED, "x-other": REDACTED}},
    ),
    "a password in an address": (
        {**MCP, "server_url": f"https://me:{SECRET}@x.example/mcp?a=b#c"},
        {
            **MCP,
            "server_url": "https://x.example/mcp?a=b#c",
        },
    ),
    "a container": (
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "network_policy": {**POLICY, "domain_secrets": SECRETS}},
        },
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "network_policy": {**POLICY, "domain_secrets": None}},
        },
    ),
    "a shell": (
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
def test_a_declaration_is_kept_without_its_secrets(case):
    given, kept = CASES[case]
    tools = declared(given)

    assert SECRET in str(tools)
    assert without_secrets(tools) == declared(kept)
    assert SECRET not in str(without_secrets(tools))


@pytest.mark.parametrize("case", CASES)
def test_so_is_an_item_that_adds_tools(case):
    given, _ = CASES[case]
    item = {"type": "additional_tools", "role": "developer", "tools": [given, "odd", 3]}

    assert SECRET not in str(item_without_secrets(item))
    assert item_without_secrets(item)["tools"][1:] == ["odd", 3]
    assert item["tools"][0] is given


def test_what_has_no_secrets_stays_as_it_is():
    tools = declared(
        {"type": "function", "name": "f", "description": REDACTED, "parameters": {"authorization": "x"}},
        MCP,
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "shell"},
    )
    item = {"type": "message", "role": "user", "content": "x", "tools": [{"type": "mcp", "authorization": "x"}]}

    assert all(cut is tool for cut, tool in zip(without_secrets(tools), tools, strict=True))
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
def test_what_makes_no_sense_does_no_harm(odd):
    cut = item_without_secrets({"type": "additional_tools", "tools": [odd]})["tools"][0]

    assert cut.get("headers") is None
    assert "x@" not in str(cut.get("server_url"))
