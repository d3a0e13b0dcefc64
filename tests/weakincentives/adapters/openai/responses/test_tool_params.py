from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters.openai import (
    CodeInterpreterConfig,
    FileSearchConfig,
    McpConfig,
    OpenAICodeInterpreterSection,
    OpenAICodeInterpreterTool,
    OpenAIFileSearchSection,
    OpenAIMcpSection,
)
from weakincentives.adapters.openai.native_tools.registry import capabilities
from weakincentives.adapters.openai.responses.tool_params import build_tool_params, find_capability, resolve_tool_choice
from weakincentives.adapters.turn import NamedTool
from weakincentives.errors import NativeToolError
from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    NativeTool,
    Prompt,
    ProviderTool,
    RenderedPrompt,
    Section,
    Tool,
    ToolContext,
    ToolResult,
)


@dataclass
class Query:
    query: str


@dataclass
class Corpus:
    corpus_ids: tuple[str, ...]


def echo(params: Query, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(params.query)


ECHO = Tool[Query, str](name="echo", description="Echo.", handler=echo)
WEB = NativeTool[Query, dict](name="web_search", description="Search.")


class PlainSection(Section[None]):
    """Declares a tool in wire form."""

    def __init__(self, **declared: Any) -> None:
        self.declared = declared
        super().__init__(title="Plain", key="plain")

    def render(self, params: object, depth: int, number: str) -> str:
        return ""

    def native_tools(self, params: object = None) -> tuple[Mapping[str, Any], ...]:
        return (self.declared,)


def render(*sections: Section[Any], tools: tuple[Tool[Any, Any], ...] = ()) -> RenderedPrompt[Any]:
    task = MarkdownSection(title="Task", key="task", template="Do it.", tools=tools)
    return Prompt(ns="n", key="k", sections=[*sections, task]).render()


def params_of(rendered: RenderedPrompt[Any], allowed: Any = None):
    return build_tool_params(rendered, prompt_name="k", allowed=allowed)


def test_function_tools_come_first_and_includes_are_unique():
    mcp = [OpenAIMcpSection(default_params=McpConfig(server_label=name, server_url="https://x/")) for name in "ab"]
    params = params_of(render(OpenAICodeInterpreterSection(), *mcp, tools=(ECHO, WEB)))

    assert [tool["type"] for tool in params.wire] == ["function", "code_interpreter", "mcp", "mcp", "web_search"]
    assert params.includes == ["code_interpreter_call.outputs", "web_search_call.action.sources"]


def test_four_declaration_forms_are_equal():
    config = CodeInterpreterConfig({"type": "auto", "memory_limit": "4g"})
    provider_tool = ProviderTool[None, dict, CodeInterpreterConfig](
        name="python", description="Run.", provider="openai", capability="code_interpreter", config=config
    )
    ways = [
        render(OpenAICodeInterpreterSection(default_params=config)),
        render(tools=(OpenAICodeInterpreterTool(name="python", container={"type": "auto", "memory_limit": "4g"}),)),
        render(tools=(provider_tool,)),
        render(
            PlainSection(type="built_in", name="code_interpreter", container={"type": "auto", "memory_limit": "4g"})
        ),
        render(PlainSection(type="code_interpreter", container={"type": "auto", "memory_limit": "4g"})),
    ]

    for rendered in ways:
        assert params_of(rendered).wire == [
            {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}}
        ]


def test_native_tool_without_config_gets_defaults():
    tool = NativeTool[None, dict](name="code_interpreter", description="Run.")

    assert params_of(render(tools=(tool,))).wire[0]["container"] == {"type": "auto", "memory_limit": "1g"}


def test_file_search_without_a_store_is_not_declared(caplog):
    params = params_of(render(OpenAIFileSearchSection()))

    assert params.wire == []
    assert "file_search (section 'openai_file_search') has nothing to work on" in caplog.text


@pytest.mark.parametrize(
    "section, expected",
    [
        (
            PlainSection(type="built_in", name="telepathy"),
            "'telepathy' is no tool that OpenAI runs. Known are: .*shell",
        ),
        (PlainSection(type="telepathy"), "'telepathy' is no tool"),
        (PlainSection(name="web_search"), "'' is no tool"),
        (
            PlainSection(type="web_search", parameters={}),
            "'parameters' is no field of web_search; allowed are: filters",
        ),
        (PlainSection(type="built_in", name="apply_patch", strict=True), "'strict' is no field of apply_patch"),
        (PlainSection(type="mcp"), "server_label must name the server"),
        (PlainSection(type="code_interpreter", container={"type": "auto", "memory_limit": "8g"}), "1g, 4g, 16g, 64g"),
        (PlainSection(type="code_interpreter", container={}), "type 'auto' or the id"),
        (PlainSection(type="shell", environment="local"), "environment must have a type, one of local, container_auto"),
        (PlainSection(type="shell", environment={"type": "host"}), "environment.type must be one of local"),
        (
            PlainSection(type="shell", environment={"type": "container_reference"}),
            "environment.container_id must be the id of a container",
        ),
        (PlainSection(type="web_search", filters={"allowed_domains": {1}, "x": object()}), "cannot be encoded as JSON"),
    ],
)
def test_invalid_declaration_error_names_its_origin(section, expected):
    with pytest.raises(NativeToolError, match=expected) as caught:
        params_of(render(section))

    assert (caught.value.phase, caught.value.prompt_name) == ("request", "k")
    assert "section 'plain'" in caught.value.message


def test_config_of_another_tool_is_refused():
    declared = NativeDeclaration("web_search", "web_search", config=FileSearchConfig(), origin="somewhere")
    section = PlainSection(type="web_search")
    section.native_tools = lambda params=None: (declared,)
    with pytest.raises(NativeToolError, match="its config must be a WebSearchConfig"):
        params_of(render(section))


def test_incompatible_declared_types_are_refused():
    tool = NativeTool[Corpus, dict](name="file_search", description="Search.")
    with pytest.raises(NativeToolError, match=r"tool 'file_search' .section 'task'.: params Corpus does not fit"):
        params_of(render(tools=(tool,)))


def test_tools_not_allowed_for_the_model_are_refused():
    rendered = render(tools=(WEB,))

    assert params_of(rendered, {"web_search"}).wire
    with pytest.raises(NativeToolError, match=r"this model does not have 'web_search'. It has: file_search"):
        params_of(rendered, {"file_search"})
    with pytest.raises(NativeToolError, match="It has: none"):
        find_capability(rendered.native_tools[0], "k", ())


def test_two_mcp_servers_with_one_label_collide():
    section = PlainSection(type="mcp", server_label="docs", server_url="https://x/")
    other = OpenAIMcpSection(default_params=McpConfig(server_label="docs", server_url="https://y/"))
    with pytest.raises(NativeToolError, match="section 'plain' declares 'mcp:docs' too"):
        params_of(render(section, other))


def test_with_container_sets_the_container_of_a_section():
    params = params_of(render(OpenAICodeInterpreterSection(), tools=(ECHO, WEB)))
    assert params.needs_container()
    moved = params.with_container("cntr_1")

    assert moved is not None
    assert moved.wire[1:] == [{"type": "code_interpreter", "container": "cntr_1"}, {"type": "web_search"}]
    assert not params_of(render(tools=(WEB,))).needs_container()


NATIVES = params_of(
    render(
        tools=(OpenAICodeInterpreterTool(name="python"), WEB),
    )
).native


@pytest.mark.parametrize(
    "given, meant, wire",
    [
        ("auto", "auto", "auto"),
        ("none", "none", "none"),
        ("required", "required", "required"),
        (NamedTool("echo"), NamedTool("echo"), {"type": "function", "name": "echo"}),
        ({"type": "function", "name": "echo"}, NamedTool("echo"), {"type": "function", "name": "echo"}),
        (NamedTool("python"), NamedTool("python"), {"type": "code_interpreter"}),
        (NamedTool("code_interpreter"), NamedTool("python"), {"type": "code_interpreter"}),
        ({"type": "code_interpreter"}, NamedTool("python"), {"type": "code_interpreter"}),
        ({"type": "built_in", "name": "code_interpreter"}, NamedTool("python"), {"type": "code_interpreter"}),
        ({"type": "built_in", "name": "web_search"}, NamedTool("web_search"), {"type": "web_search"}),
    ],
)
def test_tool_choice_forms(given, meant, wire):
    params = params_of(render(tools=(ECHO, OpenAICodeInterpreterTool(name="python"), WEB)))
    choice = resolve_tool_choice(given, ["echo"], params.native)

    assert choice == meant
    assert params.tool_choice(choice) == wire


def test_mcp_tool_choice_names_its_label():
    params = params_of(render(OpenAIMcpSection(default_params=McpConfig(server_label="docs", server_url="https://x/"))))
    choice = resolve_tool_choice({"type": "mcp", "server_label": "docs"}, [], params.native)

    assert params.tool_choice(choice) == {"type": "mcp", "server_label": "docs"}


@pytest.mark.parametrize(
    "given, expected",
    [
        ("sometimes", "must be 'auto', 'none', 'required', or name a tool, and is 'sometimes'"),
        (None, "must be 'auto'"),
        (NamedTool("shell"), "names 'shell', which is not offered. Tools: echo, python, web_search"),
        ({"type": "file_search"}, "names 'file_search', which is not offered"),
        ({"type": "built_in", "name": "telepathy"}, "names built_in 'telepathy'; known are: apply_patch"),
        ({"type": "built_in"}, "tool_choice must be"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice must be"),
        ({"type": "telepathy"}, "with one of apply_patch"),
        ({}, "tool_choice must be"),
    ],
)
def test_invalid_tool_choice_is_refused(given, expected):
    with pytest.raises(ValueError, match=expected):
        resolve_tool_choice(given, ["echo"], NATIVES)


def test_owner_of_a_call():
    params = params_of(render(OpenAIMcpSection(default_params=McpConfig(server_label="docs", server_url="https://x/"))))
    mcp = capabilities()["mcp"]

    owner = params.owner(mcp, {"server_label": "docs"})
    assert owner is not None
    assert owner.declaration.name == "docs"
    assert params.owner(mcp, {"server_label": "other"}) is None
