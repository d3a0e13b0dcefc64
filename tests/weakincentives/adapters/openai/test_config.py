from __future__ import annotations

import pytest

from weakincentives.adapters.openai import (
    CodeInterpreterConfig,
    ContainerConfig,
    FileSearchConfig,
    McpConfig,
    OpenAIClientConfig,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
    WebSearchConfig,
)


def test_only_what_was_given_is_sent():
    assert OpenAIModelConfig().parameters() == {}
    config = OpenAIModelConfig(
        temperature=0.0,
        max_output_tokens=99,
        parallel_tool_calls=False,
        reasoning_effort="low",
        metadata={"run": "7"},
        store=False,
        extra={"prompt_cache_retention": "24h"},
    )
    assert config.parameters() == {
        "temperature": 0.0,
        "max_output_tokens": 99,
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "metadata": {"run": "7"},
        "store": False,
        "prompt_cache_retention": "24h",
    }


@pytest.mark.parametrize("name", ["input", "model", "tools", "stream", "background", "store"])
def test_what_the_adapter_settles_cannot_be_given_behind_its_back(name):
    with pytest.raises(ValueError, match=f"extra cannot hold '{name}'"):
        OpenAIModelConfig(extra={name: 1})


def test_the_list_of_what_models_have_names_only_what_there_is():
    with pytest.raises(ValueError, match="native_tools names 'telepathy'; known are: apply_patch"):
        OpenAIModelConfig(native_tools={"m": {"telepathy"}})


def test_keys_and_headers_are_not_shown():
    config = OpenAIClientConfig(api_key="sk-secret", default_headers={"x-token": "secret"}, timeout=5)

    assert "secret" not in repr(config)
    assert config.arguments() == {"api_key": "sk-secret", "default_headers": {"x-token": "secret"}, "timeout": 5}


def test_hosted_tools_become_declarations_with_their_origin():
    config = CodeInterpreterConfig("cntr_1")
    mcp = McpConfig(server_label="docs", server_url="https://x/")
    tools = OpenAIHostedToolsConfig(
        code_interpreter=config,
        file_search=FileSearchConfig(("vs_1",)),
        web_search=True,
        others=(mcp, {"type": "built_in", "name": "shell"}),
    )

    assert [(one.capability, one.name, one.origin) for one in tools.declarations()] == [
        ("code_interpreter", "code_interpreter", "hosted_tools.code_interpreter"),
        ("file_search", "file_search", "hosted_tools.file_search"),
        ("web_search", "web_search", "hosted_tools.web_search"),
        ("mcp", "docs", "hosted_tools.others[0]"),
        ("shell", "shell", "hosted_tools.others[1]"),
    ]
    assert [one.config for one in tools.declarations()][:3] == [config, FileSearchConfig(("vs_1",)), None]
    assert {one.provider for one in tools.declarations()} == {"openai"}


def test_none_are_on_unless_somebody_wants_them():
    assert OpenAIHostedToolsConfig().declarations() == ()
    assert len(OpenAIHostedToolsConfig(web_search=WebSearchConfig()).declarations()) == 1


def test_what_configures_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"hosted_tools.others\[0\] is 7, which configures no tool. Give one of: Apply"
    ):
        OpenAIHostedToolsConfig(others=(7,)).declarations()


def test_the_container_of_a_workspace_has_more_memory_than_the_tool_s():
    assert ContainerConfig() == ContainerConfig(memory_limit="4g", mode="explicit")


@pytest.mark.parametrize(
    "given, told",
    [
        ({"memory_limit": "8g"}, "memory_limit must be one of 1g, 4g, 16g, 64g, not '8g'"),
        ({"mode": "shared"}, "mode must be 'auto' or 'explicit', not 'shared'"),
        ({"expires_after": 0}, "expires_after is in minutes, at least 1, not 0"),
        ({"container_id": " "}, "container_id is empty"),
    ],
)
def test_a_container_that_cannot_be_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        ContainerConfig(**given)
