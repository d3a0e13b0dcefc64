"""MCP servers of the configuration: one at a URL with credentials, and a program in a jail."""

from __future__ import annotations

import sys
from pathlib import Path

import openai
import pytest
from fixtures_mcp import mcp_server
from fixtures_server import Server

from antwort.config import ConfigError, parse
from weakincentives.adapters.openai import McpConfig, OpenAIAdapter, OpenAIMcpSection
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Session

PROGRAM = Path(__file__).parents[1] / "support" / "mcp_stdio_program.py"
NEVER = {"type": "mcp", "require_approval": "never"}


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    program = {
        "command": [sys.executable, str(PROGRAM)],
        "folders": sorted({sys.prefix, sys.base_prefix, str(PROGRAM.parent)}),
        "environment": {"MODE": "test"},
        "environment_from": ["ANTWORT_FILES_TOKEN"],
    }
    secrets = {"CRM_TOKEN": "hunter2", "ANTWORT_FILES_TOKEN": "hunter3"}
    with mcp_server(directory, {"allow_urls": False, "servers": {"files": program}}, environment=secrets) as running:
        yield running


@pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
def test_a_program_of_the_configuration_runs_in_a_jail(env):
    assert "mcp        no servers by URL; configured: files (program in a jail)" in env.server.banner
    with env.server.client() as client:
        tool = {**NEVER, "server_label": "files"}
        response = client.responses.create(model="scripted", input="the program", tools=[tool])

    called = next(item for item in response.output if item.type == "mcp_call")
    assert called.status == "completed"
    assert {"MODE=test", "ANTWORT_FILES_TOKEN=hunter3"} <= set(called.output.split())
    assert "CRM_TOKEN" not in called.output
    assert response.tools[0].to_dict()["server_url"] is None


@pytest.mark.parametrize(
    "tool, param, message",
    [
        ({"server_label": "other"}, "tools[0].server_label", "Configured servers: 'files'."),
        ({"server_label": "files", "authorization": "x"}, "tools[0].authorization", "The configuration has"),
        ({"server_label": "files", "headers": {"a": "b"}}, "tools[0].headers", "The configuration has"),
        ({"server_label": "x", "server_url": "https://x.example/"}, "tools[0].server_url", "of its configuration only"),
    ],
)
def test_what_a_request_may_not_say_of_them(env, tool, param, message):
    with env.server.client() as client, pytest.raises(openai.BadRequestError, match=message) as caught:
        client.responses.create(model="scripted", input="hello", tools=[{**NEVER, **tool}])

    assert caught.value.param == param


def test_a_server_of_the_configuration_gets_its_credentials_and_may_be_private(tmp_path, env):
    crm = {
        "url": env.crm.private_url,
        "authorization_env": "ANTWORT_CRM_TOKEN",
        "headers_env": {"X-Team": "TEAM"},
        "description": "Customers of the tea shop.",
        "allowed_tools": ["customer"],
    }
    secrets = {"ANTWORT_CRM_TOKEN": "hunter2", "TEAM": "tea"}
    with mcp_server(tmp_path, {"servers": {"crm": crm}}, environment=secrets) as running:
        with running.server.client() as client:
            response = client.responses.create(
                model="scripted", input="customer 7", tools=[{**NEVER, "server_label": "crm"}]
            )

            section = OpenAIMcpSection(default_params=McpConfig(server_label="crm", require_approval="never"))
            task = MarkdownSection(title="Task", key="task", template="customer 7")
            prompt = Prompt(PromptTemplate(ns="mcp", key="crm", sections=[task, section]))
            with OpenAIAdapter(model="scripted", client=client) as adapter:
                assert adapter.evaluate(prompt, session=Session()).text == "I read: Ada Lovelace"
        assert "hunter2" not in response.to_json() + running.server.read_log()

    assert response.output_text == "I read: Ada Lovelace"
    assert [tool.name for tool in response.output[0].tools] == ["customer"]
    assert any(one.get("x-team") == "tea" for one in env.crm.headers)


def test_a_variable_that_is_not_set_is_an_error_at_start(tmp_path):
    servers = {"crm": {"url": "https://crm.example/mcp", "authorization_env": "NOT_SET"}}
    config = {"providers": {"code_interpreter": {"enabled": False}, "mcp": {"servers": servers}}}
    with pytest.raises(AssertionError):
        Server(tmp_path, config)
    log = (tmp_path / "log").read_text(encoding="utf-8")

    assert "providers.mcp.servers.crm: the environment variable NOT_SET is not set" in log


@pytest.mark.parametrize(
    "settings, reason",
    [
        ("{a: {}}", "servers.a: needs either a `url` or a `command`"),
        ("{a: {url: 'http://u:p@x/'}}", "servers.a.url: must be a URL"),
        ("{a: {url: 'http://x/', network: true}}", "servers.a.network: is for a server with a `command`"),
        ("{a: {command: [x], headers_env: {a: B}}}", "servers.a.headers_env: is for a server with a `url`"),
        ("{a: {command: [x], folders: [y]}}", "servers.a.folders: must be absolute paths"),
        ("{a b: {url: 'http://x/'}}", "servers.a b: a label has up to 64 letters"),
        ("{a: {urls: x}}", "servers.a.urls: unknown key. Did you mean url?"),
        ("{a: 3}", "servers.a: must be a mapping"),
        ("[a]", "servers: must be a mapping"),
    ],
)
def test_an_invalid_configuration_names_the_key(settings, reason):
    with pytest.raises(ConfigError, match=f"line 1: providers.mcp.{reason}"):
        parse(f"providers: {{mcp: {{servers: {settings}}}}}", {})


def test_the_secrets_of_servers_may_have_any_variable():
    text = "providers: {mcp: {servers: {a: {url: 'http://x/', authorization_env: ANTWORT_A}}}}"

    assert parse(text, {"ANTWORT_A": "x"}).providers.mcp.servers["a"].authorization_env == "ANTWORT_A"
    assert parse("", {"ANTWORT_PROVIDERS_MCP_TIMEOUT": "7"}).providers.mcp.timeout == 7
