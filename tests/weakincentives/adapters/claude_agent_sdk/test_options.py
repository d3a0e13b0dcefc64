from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKModelConfig
from weakincentives.adapters.claude_agent_sdk.options import RunSettings, build_options, user_message


def options(**more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "model": "m",
        "config": ClaudeAgentSDKModelConfig(),
        "directory": Path("/work"),
        "tools": ("Read", "Bash"),
        "own_tools": ["mcp__wink__run"],
        "private": Path("/session/private"),
        "max_turns": 7,
        "launcher": Path("/session/private/claude"),
    }
    return build_options(RunSettings(**{**given, **more}))


def test_options_approve_own_tools_and_bash_only():
    assert options()["allowed_tools"] == ["mcp__wink", "Bash"]
    assert options(own_tools=[], tools=("Read",))["allowed_tools"] == []
    assert options()["tools"] == ["Read", "Bash"]
    assert options()["max_turns"] == 7


def test_key_is_printed_by_a_program_and_its_file_is_denied():
    settings = json.loads(options(key_file=Path("/session/private/the key"))["settings"])

    assert settings["apiKeyHelper"] == "cat '/session/private/the key'"
    assert settings["permissions"]["deny"] == ["Read(//session/private/**)", "Edit(//session/private/**)"]
    assert "apiKeyHelper" not in json.loads(options()["settings"])


def test_optional_parts():
    plain = options()
    assert not {"effort", "sandbox", "resume", "output_format", "system_prompt"} & plain.keys()
    assert plain["extra_args"] == {"restricted": None, "no-session-persistence": None}
    assert plain["thinking"] == {"type": "disabled"}

    config = ClaudeAgentSDKModelConfig(effort="low", thinking=True)
    full = options(
        config=config, output_schema={"type": "object"}, system_prompt_file=Path("/s"), resume="id", persist=True
    )
    assert full["output_format"] == {"type": "json_schema", "schema": {"type": "object"}}
    assert full["system_prompt"] == {"type": "file", "path": "/s"}
    assert (full["effort"], full["thinking"], full["resume"]) == ("low", {"type": "adaptive"}, "id")
    assert full["extra_args"] == {"restricted": None}


def test_message_of_the_user():
    assert user_message("Do it.", ClaudeAgentSDKModelConfig()) == "Do it."
    assert "system prompt" in user_message("Do it.", ClaudeAgentSDKModelConfig(prompt_role="system"))
