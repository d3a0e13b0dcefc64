from __future__ import annotations

import pytest

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig
from weakincentives.adapters.claude_agent_sdk.process.directories import SessionDirectories
from weakincentives.adapters.claude_agent_sdk.process.environment import cli_environment


@pytest.fixture
def directories():
    created = SessionDirectories()
    yield created
    created.remove()


def test_only_listed_variables_of_the_host_go_along(directories):
    host = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
        "ANTHROPIC_API_KEY": "x",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "HTTPS_PROXY": "http://user:secret@proxy",
    }
    client = ClaudeAgentSDKClientConfig(api_key="key", base_url="http://a", environment={"MINE": "1"})
    environment = cli_environment(
        host, directories, client, ClaudeAgentSDKModelConfig(), max_attempts=1, search_path=["/bwrap", "/socat"]
    )

    assert not {"AWS_SECRET_ACCESS_KEY", "ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "HTTPS_PROXY"} & {*environment}
    assert "key" not in environment.values()
    assert environment["PATH"] == "/bwrap:/bin:/socat"
    assert environment["LANG"] == "C.UTF-8"
    assert environment["MINE"] == "1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://a"
    assert environment["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert environment["CLAUDE_CODE_MAX_RETRIES"] == "0"
    for name in ("HOME", "TMPDIR", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_TMPDIR", "XDG_RUNTIME_DIR"):
        assert environment[name].startswith(str(directories.root))


def test_window_and_output_are_limited_as_configured(directories):
    model = ClaudeAgentSDKModelConfig(max_context_tokens=50_000, max_output_tokens=1000)
    environment = cli_environment({}, directories, ClaudeAgentSDKClientConfig(), model, max_attempts=3)

    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "50000"
    assert environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1000"
    assert environment["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert "ANTHROPIC_BASE_URL" not in environment
