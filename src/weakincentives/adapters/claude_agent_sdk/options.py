"""The options of the Claude Agent SDK for one evaluation, as plain data. No I/O."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk.config import ClaudeAgentSDKModelConfig
from weakincentives.adapters.claude_agent_sdk.messages import SERVER

MAX_LINE_BYTES = 64 << 20
_SYSTEM_PROMPT_REQUEST = "Carry out the task of the system prompt."


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the options of one evaluation depend on. `tools` are those of the CLI, `own_tools` those of the prompt."""

    model: str
    config: ClaudeAgentSDKModelConfig
    directory: Path
    tools: tuple[str, ...]
    own_tools: Collection[str]
    private: Path
    max_turns: int
    launcher: Path
    key_file: Path | None = None
    system_prompt_file: Path | None = None
    output_schema: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    resume: str | None = None
    persist: bool = False


def build_options(settings: RunSettings) -> dict[str, Any]:
    """The arguments of `ClaudeAgentOptions`, except for callbacks and the MCP server."""
    flags = {"restricted": None} if settings.persist else {"restricted": None, "no-session-persistence": None}
    approved = [*([f"mcp__{SERVER}"] if settings.own_tools else []), *(["Bash"] if "Bash" in settings.tools else [])]
    options: dict[str, Any] = {
        "model": settings.model,
        "cli_path": str(settings.launcher),
        "cwd": str(settings.directory),
        "tools": list(settings.tools),
        "allowed_tools": approved,
        "permission_mode": "acceptEdits",
        "setting_sources": [],
        "strict_mcp_config": True,
        "skills": [],
        "verbatim_prompts": True,
        "include_partial_messages": True,
        "max_turns": settings.max_turns,
        "max_buffer_size": MAX_LINE_BYTES,
        "thinking": {"type": "adaptive" if settings.config.thinking else "disabled"},
        "settings": json.dumps(_cli_settings(settings)),
        "extra_args": flags,
    }
    optional = {
        "effort": settings.config.effort,
        "sandbox": settings.sandbox,
        "resume": settings.resume,
        "output_format": settings.output_schema and {"type": "json_schema", "schema": settings.output_schema},
        "system_prompt": settings.system_prompt_file and {"type": "file", "path": str(settings.system_prompt_file)},
    }
    return {**options, **{name: value for name, value in optional.items() if value is not None}}


def _cli_settings(settings: RunSettings) -> dict[str, Any]:
    """Settings of the CLI: the program that prints the key, and what no tool may read."""
    private = f"/{settings.private}/**"  # a rule with two slashes is an absolute path
    cli: dict[str, Any] = {"permissions": {"deny": [f"Read({private})", f"Edit({private})"]}}
    if settings.key_file is not None:
        cli["apiKeyHelper"] = f"cat {shlex.quote(str(settings.key_file))}"
    return cli


def user_message(text: str, config: ClaudeAgentSDKModelConfig) -> str:
    """The first message of the user: the prompt's text, unless that is the system prompt."""
    return text if config.prompt_role == "user" else _SYSTEM_PROMPT_REQUEST
