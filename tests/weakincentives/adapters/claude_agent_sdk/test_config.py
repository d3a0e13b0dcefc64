from __future__ import annotations

import pytest

from weakincentives.adapters.claude_agent_sdk import (
    ClaudeAgentSDKClientConfig,
    ClaudeAgentSDKModelConfig,
    ClaudeAgentSDKToolsConfig,
    NetworkPolicy,
)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ClaudeAgentSDKModelConfig(max_output_tokens=0),
        lambda: ClaudeAgentSDKModelConfig(max_context_tokens=5),
        lambda: ClaudeAgentSDKModelConfig(prompt_role="developer"),  # pyright: ignore - the point of the test
        lambda: ClaudeAgentSDKModelConfig(effort="extreme"),  # pyright: ignore - the point of the test
        lambda: ClaudeAgentSDKClientConfig(environment={"ANTHROPIC_API_KEY": "x"}),
        lambda: ClaudeAgentSDKClientConfig(environment={"CLAUDE_CONFIG_DIR": "x"}),
        lambda: ClaudeAgentSDKClientConfig(environment={"PATH": "x"}),
        lambda: ClaudeAgentSDKClientConfig(environment={"A B": "x"}),
        lambda: ClaudeAgentSDKClientConfig(environment={"A": "x\0"}),
        lambda: NetworkPolicy(allowed_domains="example.com"),  # pyright: ignore - the point of the test
        lambda: ClaudeAgentSDKToolsConfig(builtin=("WebFetch",)),
        lambda: ClaudeAgentSDKToolsConfig(builtin=("Read",), require_bash=True),
        lambda: ClaudeAgentSDKToolsConfig(hidden_paths=("relative",)),
    ],
)
def test_wrong_configuration_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must|cannot|names|holds|contradicts"):
        wrong()


def test_key_and_address_are_read_from_the_environment():
    environment = {"ANTHROPIC_AUTH_TOKEN": "token", "ANTHROPIC_BASE_URL": "http://a", "ANTHROPIC_API_KEY": ""}
    resolved = ClaudeAgentSDKClientConfig(environment={"HTTPS_PROXY": "x"}).resolve(environment)

    assert (resolved.api_key, resolved.base_url, resolved.environment) == ("token", "http://a", {"HTTPS_PROXY": "x"})
    given = ClaudeAgentSDKClientConfig(api_key="key", base_url="http://b").resolve(environment)
    assert (given.api_key, given.base_url) == ("key", "http://b")
    assert "key" not in repr(given)
    assert ClaudeAgentSDKClientConfig().resolve({}).api_key is None
