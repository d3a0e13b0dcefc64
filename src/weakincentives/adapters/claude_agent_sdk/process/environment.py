"""The environment of the CLI process: a fixed list of variables, and nothing else of the host's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from weakincentives.adapters.claude_agent_sdk.config import ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig
from weakincentives.adapters.claude_agent_sdk.process.directories import SessionDirectories

_INHERITED = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "USER",
    "LOGNAME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
)
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_TOOL_TIMEOUT_MS = 24 * 3600 * 1000
"""Of calls of the prompt's tools. The deadline limits them; a call that the CLI gives up could not be undone."""

_SWITCHES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes with every version, and breaks caches of prompts
    "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "MCP_TOOL_TIMEOUT": str(_TOOL_TIMEOUT_MS),
    "TERM": "dumb",
}


def cli_environment(
    host: Mapping[str, str],
    directories: SessionDirectories,
    client: ClaudeAgentSDKClientConfig,
    model: ClaudeAgentSDKModelConfig,
    *,
    max_attempts: int,
    search_path: Sequence[str] = (),
) -> dict[str, str]:
    """The variables of the CLI. Commands of the model can read all of them, so none has the key.

    The first directory of `search_path` goes before the host's PATH, and the others after it.
    """
    inherited = {name: host[name] for name in _INHERITED if name in host}
    numbers = {
        "CLAUDE_CODE_MAX_RETRIES": max_attempts - 1,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": model.max_context_tokens,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": model.max_output_tokens,
    }
    return {
        **inherited,
        **client.environment,
        **_SWITCHES,
        **{name: str(number) for name, number in numbers.items() if number is not None},
        **({"ANTHROPIC_BASE_URL": client.base_url} if client.base_url else {}),
        "PATH": os.pathsep.join([*search_path[:1], host.get("PATH") or _DEFAULT_PATH, *search_path[1:]]),
        "SHELL": "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh",
        "HOME": str(directories.home),
        "TMPDIR": str(directories.temporary),
        "CLAUDE_CONFIG_DIR": str(directories.config),
        "XDG_RUNTIME_DIR": str(directories.temporary),
        "CLAUDE_CODE_TMPDIR": str(directories.temporary),
    }
