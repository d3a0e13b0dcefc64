from __future__ import annotations

from typing import Any

import pytest
from fake_responses_api import load

from weakincentives.adapters.openai import McpConfig, OpenAIMcpSection
from weakincentives.adapters.openai.native_tools import McpApproval, McpCall, McpDecision, McpResult
from weakincentives.adapters.openai.native_tools.capability import (
    ClientMustRun,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
)
from weakincentives.adapters.openai.native_tools.mcp_section import CAPABILITY
from weakincentives.adapters.turn import ToolOutput
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import Prompt

NO_CONTEXT: Any = None
DOCS = McpConfig(
    server_label="docs", server_url="https://docs.example/mcp", authorization="secret", headers={"x": "secret"}
)
LISTED, ASKED = load("mcp")[0]["output"]
CALLED, FAILED, DENIED, _ = load("mcp")[1]["output"]


def test_declaration_and_repr_without_secrets():
    assert CAPABILITY.declare(DOCS) == {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://docs.example/mcp",
        "authorization": "secret",
        "headers": {"x": "secret"},
    }
    assert "secret" not in repr(DOCS)
    narrow = McpConfig(server_label="a", connector_id="c", allowed_tools=("search",), require_approval="never")
    assert CAPABILITY.declare(narrow) == {
        "type": "mcp",
        "server_label": "a",
        "connector_id": "c",
        "allowed_tools": ["search"],
        "require_approval": "never",
    }
    assert CAPABILITY.declare(McpConfig(server_label="crm")) == {"type": "mcp", "server_label": "crm"}


@pytest.mark.parametrize(
    "config, expected",
    [
        (None, "it needs a server: give McpConfig"),
        (McpConfig(server_label="", server_url="x"), "server_label is empty"),
        (McpConfig(server_label="a", authorization="x"), "need a server_url, connector_id or tunnel_id"),
        (McpConfig(server_label="a", headers={"a": "b"}), "need a server_url, connector_id or tunnel_id"),
        (McpConfig(server_label="a", server_url="x", connector_id="y"), "not server_url and connector_id"),
        (McpConfig(server_label="a", server_url="x", require_approval="sometimes"), "'always', 'never' or a filter"),
        ({"type": "mcp", "server_url": "x"}, "server_label must name"),
    ],
)
def test_invalid_config_is_refused(config, expected):
    with pytest.raises(ToolConfigError, match=expected):
        CAPABILITY.declare(config)


def test_prompt_may_have_several_servers_with_different_labels():
    other = McpConfig(server_label="other", server_url="https://x/")
    sections = [OpenAIMcpSection(default_params=config) for config in (DOCS, other)]
    rendered = Prompt(ns="n", key="k", sections=sections).render()

    assert [declared.name for declared in rendered.native_tools] == ["docs", "other"]
    with pytest.raises(PromptValidationError, match="'docs' is declared by"):
        Prompt(ns="n", key="k", sections=[sections[0], OpenAIMcpSection(default_params=DOCS, key="again")])


def read(item: dict[str, Any], config: McpConfig = DOCS) -> Any:
    return CAPABILITY.parse_call(item, ResponseContext(), config)


def test_list_tools_is_recorded_only_if_it_failed():
    assert read(LISTED) is None
    ran = read({**LISTED, "error": "the server is down"})
    assert isinstance(ran, ProviderRan)
    assert (ran.params, ran.result.success) == (McpCall("docs", "list_tools"), False)
    assert "the server is down" in ran.result.message


def test_call_has_arguments_and_output():
    ran = read(CALLED)

    assert ran.params == McpCall("docs", "search", '{"q": "tea"}')
    assert ran.result.value == McpResult("Tea is a drink.")
    assert ran.result.render() == "Tea is a drink."
    assert read({**CALLED, "output": None}).result.render() == "(no output)"


def test_failure_has_error_type_and_code():
    assert read(FAILED).result.message == (
        'mcp_call failed (mcp_tool_execution_error): [{"type":"text","text":"q is missing"}]'
    )
    assert read(DENIED).result.message == "mcp_call failed (http_error 401): Unauthorized"


@pytest.mark.parametrize(
    "approve, decision, reason",
    [
        (None, False, "McpConfig has no `approve` function"),
        (lambda request, context: request.name == "search", True, None),
        (lambda request, context: False, False, None),
        (lambda request, context: McpDecision(approve=False, reason="too curious"), False, "too curious"),
    ],
)
def test_approval_is_decided_by_approve_and_denied_by_default(approve, decision, reason):
    config = McpConfig(server_label="docs", server_url="https://x/", approve=approve)
    reading = read(ASKED, config)

    assert isinstance(reading, ClientMustRun)
    assert reading.params == McpApproval("docs", "search", '{"q": "tea"}')
    result = reading.run(NO_CONTEXT)
    assert result.success
    answer = reading.answer(ToolOutput("mcpr_1", "docs", result.render(), success=True, value=result.value))
    assert answer == {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": decision,
        **({"reason": reason} if reason else {}),
    }


def test_raising_approve_function_denies_the_call():
    answer = read(ASKED).answer(ToolOutput("mcpr_1", "docs", "Tool docs failed: ValueError", success=False))

    assert (answer["approve"], answer["reason"]) == (False, "Tool docs failed: ValueError")
