from __future__ import annotations

import pytest

from weakincentives.adapters.openai import (
    CodeInterpreterConfig,
    CompactionConfig,
    ContainerConfig,
    FileSearchConfig,
    McpConfig,
    OpenAIClientConfig,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
    WebSearchConfig,
)


def test_only_given_parameters_are_sent():
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
def test_reserved_parameters_are_refused_in_extra(name):
    with pytest.raises(ValueError, match=f"extra cannot hold '{name}'"):
        OpenAIModelConfig(extra={name: 1})


def test_native_tools_refuses_unknown_capabilities():
    with pytest.raises(ValueError, match="native_tools names 'telepathy'; known are: apply_patch"):
        OpenAIModelConfig(native_tools={"m": {"telepathy"}})


def test_repr_hides_keys_and_headers():
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


def test_no_hosted_tools_by_default():
    assert OpenAIHostedToolsConfig().declarations() == ()
    assert len(OpenAIHostedToolsConfig(web_search=WebSearchConfig()).declarations()) == 1


def test_unknown_config_type_in_others_is_refused():
    with pytest.raises(
        ValueError, match=r"hosted_tools.others\[0\] is 7, which configures no tool. Give one of: Apply"
    ):
        OpenAIHostedToolsConfig(others=(7,)).declarations()


def test_default_memory_of_workspace_is_4g_and_of_tool_1g():
    assert ContainerConfig() == ContainerConfig(memory_limit="4g", mode="explicit")


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"memory_limit": "8g"}, "memory_limit must be one of 1g, 4g, 16g, 64g, not '8g'"),
        ({"mode": "shared"}, "mode must be 'auto' or 'explicit', not 'shared'"),
        ({"expires_after": 0}, "expires_after is in minutes, at least 1, not 0"),
        ({"container_id": " "}, "container_id is empty"),
    ],
)
def test_invalid_container_config_is_refused(given, expected):
    with pytest.raises(ValueError, match=expected):
        ContainerConfig(**given)


def test_compaction_defaults():
    config = CompactionConfig()

    assert (config.enabled, config.threshold_tokens, config.zdr_mode, config.mode) == (True, 100_000, False, "auto")
    assert CompactionConfig(threshold_tokens=1000) == CompactionConfig(True, 1000)


@pytest.mark.parametrize(
    "fields, kind, expected",
    [
        ({"threshold_tokens": 999}, ValueError, "threshold_tokens must be at least 1000, not 999"),
        ({"threshold_tokens": 5000.0}, TypeError, "threshold_tokens must be a whole number of tokens, not 5000.0"),
        ({"threshold_tokens": True}, TypeError, "threshold_tokens must be a whole number"),
        ({"mode": "fast"}, ValueError, "mode must be 'auto', 'server' or 'client', not 'fast'"),
        ({"enabled": "yes"}, TypeError, "enabled must be True or False, not 'yes'"),
        ({"zdr_mode": None}, TypeError, "zdr_mode must be True or False, not None"),
        ({"model": 5}, TypeError, "model must be the name of a model or None, not 5"),
        ({"model": " "}, ValueError, "model is empty"),
    ],
)
def test_wrong_compaction_values_are_refused(fields, kind, expected):
    with pytest.raises(kind, match=expected):
        CompactionConfig(**fields)
