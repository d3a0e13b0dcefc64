from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters.openai import (
    AutoContainerConfig,
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    ContainerFile,
    ExistingContainerRef,
    OpenAICodeInterpreterTool,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import container_param, parse_container
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import HostMount
from weakincentives.prompt import MarkdownSection, Prompt, PromptOverrides, ToolContext, ToolOverride, ToolResult

MOUNT = {"host_path": "data", "mount_path": "/workspace/data", "include_glob": ["*.csv"], "max_bytes": 10}
WRITTEN = {"type": "auto", "memory_limit": "4g", "file_ids": ["file_1"], "host_mounts": [MOUNT]}


def test_container_is_parsed_from_wire_form():
    assert parse_container(WRITTEN) == AutoContainerConfig(
        memory_limit="4g", file_ids=("file_1",), host_mounts=(HostMount(**MOUNT),)
    )
    assert parse_container("cntr_1") == parse_container({"id": "cntr_1"}) == ExistingContainerRef("cntr_1")
    assert parse_container({"id": "cntr_1", "memory_limit": "16g"}) == ExistingContainerRef("cntr_1", "16g")
    assert parse_container({"type": "auto"}) == AutoContainerConfig()
    mounted = AutoContainerConfig(host_mounts=(HostMount("x"),))
    assert parse_container({"type": "auto", "host_mounts": [HostMount("x")]}) == parse_container(mounted) == mounted


@pytest.mark.parametrize("tier", ["8g", "", "1G", "2g", 4, None])
@pytest.mark.parametrize("form", [dict, AutoContainerConfig, ExistingContainerRef])
def test_unknown_memory_limit_error_names_the_four(tier, form):
    given: Any = {"type": "auto", "memory_limit": tier} if form is dict else None
    if form is AutoContainerConfig:
        given = AutoContainerConfig(memory_limit=tier)
    if form is ExistingContainerRef:
        given = ExistingContainerRef("cntr_1", tier)
    if form is not AutoContainerConfig and tier is None:
        assert parse_container(given)
        return
    with pytest.raises(ValueError, match=r"container.memory_limit must be one of 1g, 4g, 16g, 64g, not"):
        parse_container(given)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, "needs type 'auto' or the id of a container"),
        ({"type": "explicit"}, "needs type 'auto'"),
        ({"id": ""}, "container.id must be the id"),
        ({"id": None}, "container.id must be the id"),
        ("", "container.id must be the id"),
        (" ", "container.id must be the id"),
        ({"id": "cntr_1", "file_ids": []}, "container.file_ids is not known; allowed are: id, memory_limit"),
        ({"type": "auto", "id": "cntr_1"}, "container.id is not known; allowed are: type, memory_limit"),
        ({"type": "auto", "file_ids": "file_1"}, "container.file_ids must be a list"),
        ({"type": "auto", "file_ids": [7]}, "container.file_ids must be ids"),
        ({"type": "auto", "file_ids": ["f"] * 51}, "at most 50 files, not 51"),
        ({"type": "auto", "host_mounts": [{"path": "x"}]}, "container.host_mounts has .* which is not a HostMount"),
        ({"type": "auto", "host_mounts": [{"host_path": ""}]}, "which is not a HostMount"),
        ({"type": "auto", "network_policy": {"type": "open"}}, "container.network_policy must be"),
        ({"type": "auto", "network_policy": {"type": "disabled", "allowed_domains": []}}, "network_policy must be"),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, "must be a list that names at least one"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": "a.example"}},
            "must be a list that names at least one",
        ),
        ({"type": "auto", "network_policy": {"type": ["disabled"]}}, "container.network_policy must be"),
        ({"type": "auto", "host_mounts": 7}, "container.host_mounts must be a list, not 7"),
        (AutoContainerConfig(file_ids="file_1"), "container.file_ids must be ids of uploaded files, not 'file_1'"),  # pyright: ignore[reportArgumentType] - the point
        (AutoContainerConfig(file_ids=None), "container.file_ids must be ids"),  # pyright: ignore[reportArgumentType] - the same
        (AutoContainerConfig(host_mounts=("data",)), "container.host_mounts must be HostMounts"),  # pyright: ignore[reportArgumentType] - the same
        (7, "container must be an id"),
    ],
)
def test_invalid_container_error_names_the_field(given, expected):
    with pytest.raises(ValueError, match=expected):
        parse_container(given)


@pytest.mark.parametrize("roots", ["/srv/data", Path("/srv/data")])
def test_single_path_as_allowed_host_roots_is_refused(roots):
    with pytest.raises(PromptValidationError, match="allowed_host_roots must be a list of directories"):
        OpenAICodeInterpreterTool(allowed_host_roots=roots)


def test_wire_form_has_no_host_mounts():
    policy = {"type": "allowlist", "allowed_domains": ["a.example"]}
    config = AutoContainerConfig(file_ids=("a",), network_policy=policy, host_mounts=(HostMount("x"),))

    assert container_param(config, ["b"]) == {
        "type": "auto",
        "memory_limit": "1g",
        "file_ids": ["a", "b"],
        "network_policy": policy,
    }
    assert container_param(WRITTEN) == {"type": "auto", "memory_limit": "4g", "file_ids": ["file_1"]}
    assert container_param(ExistingContainerRef("cntr_1", "4g")) == container_param({"id": "cntr_1"}) == "cntr_1"


def test_repr_hides_network_policy_secrets():
    secret = {"domain": "a.example", "name": "TOKEN", "value": "s3cret"}
    policy = {"type": "allowlist", "allowed_domains": ["a.example"], "domain_secrets": [secret]}

    assert "s3cret" not in repr(AutoContainerConfig(network_policy=policy))
    assert parse_container(AutoContainerConfig(network_policy=policy)).memory_limit == "1g"


def test_tool_declares_code_interpreter():
    tool = OpenAICodeInterpreterTool(container=WRITTEN, allowed_host_roots=["roots"])
    declared = tool.declaration()

    assert (declared.capability, declared.name, declared.provider) == ("code_interpreter", "code_interpreter", "openai")
    assert declared.config == CodeInterpreterConfig(WRITTEN, ("roots",))
    assert tool.container == {"type": "auto", "memory_limit": "4g", "file_ids": ["file_1"]}
    assert OpenAICodeInterpreterTool().container == {"type": "auto", "memory_limit": "1g"}


def by_result(result: CodeInterpreterResult, context: ToolContext) -> ToolResult[CodeInterpreterResult]:
    return ToolResult.ok(result)


def by_mapping(result: dict[str, object], context: ToolContext) -> ToolResult[dict[str, object]]:
    return ToolResult.ok(result)


def bare(result, context):
    return ToolResult.ok(result)


def on_call(params: CodeInterpreterCall, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(params.code)


def on_nothing(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("")


@pytest.mark.parametrize(
    "hook, handler, params, result",
    [
        (None, None, CodeInterpreterCall, CodeInterpreterResult),
        (by_result, None, CodeInterpreterCall, CodeInterpreterResult),
        (by_mapping, None, CodeInterpreterCall, dict[str, object]),
        (bare, None, CodeInterpreterCall, CodeInterpreterResult),
        (None, on_call, CodeInterpreterCall, str),
        (None, on_nothing, type(None), type(None)),
    ],
)
def test_types_are_inferred_from_hook_or_handler(hook, handler, params, result):
    tool: Any = OpenAICodeInterpreterTool(handle_provider_output=hook, handler=handler)

    assert (tool.params_type, tool.result_type) == (params, result)


def test_types_can_be_given_as_type_arguments():
    tool = OpenAICodeInterpreterTool[None, dict](name="python", handle_provider_output=bare)

    assert (tool.params_type, tool.result_type) == (type(None), dict)


def test_tool_is_a_provider_tool():
    tool = OpenAICodeInterpreterTool(name="python", accepts_overrides=True, container=WRITTEN)
    other = dataclasses.replace(tool, description="In other words.")

    assert other.config == tool.config
    assert hash(tool) == hash(OpenAICodeInterpreterTool(name="python", accepts_overrides=True))
    with pytest.raises(PromptValidationError, match="tool name"):
        OpenAICodeInterpreterTool(name="Not A Name")
    section = MarkdownSection(title="T", key="t", template="x", tools=[tool])
    prompt = Prompt(ns="n", key="k", sections=[section])
    (described,) = prompt.template.descriptor.tools
    overrides = PromptOverrides("n", "k", tools={"python": ToolOverride(described.hash, "Better words.")})
    rendered = Prompt(prompt.template, overrides=overrides).render()
    assert rendered.native_tools[0].tool is not None
    assert rendered.native_tools[0].tool.description == "Better words."
    assert rendered.native_tools[0].config == tool.config


def test_result_renders_logs_or_images_and_files():
    assert CodeInterpreterResult(logs="42").render() == "42"
    assert CodeInterpreterResult().render() == "(no output)"
    result = CodeInterpreterResult(images=("data:,x",), files=(ContainerFile("c", "f", "a.txt"),))
    assert result.render() == "(no text; made: 1 image(s), a.txt)"
