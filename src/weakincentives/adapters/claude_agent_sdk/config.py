"""Configuration of the Claude Agent SDK adapter: model parameters, the CLI process, its tools and its sandbox."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]
PromptRole: TypeAlias = Literal["user", "system"]

BUILTIN_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep", "Bash")
"""The tools of the CLI that the adapter can offer. They need a workspace."""

RESERVED_VARIABLES = re.compile(r"(?:ANTHROPIC|CLAUDE)_|(?:HOME|PATH|SHELL|TMPDIR)$")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIN_CONTEXT_TOKENS = 10_000


@dataclass(frozen=True, kw_only=True)
class ClaudeAgentSDKModelConfig:
    """Parameters of the model. For None the default of the CLI applies.

    `max_context_tokens` is the size of the context window, near which the CLI compacts its history; the CLI knows it
    for Anthropic's models only, and would otherwise assume 1,000,000.
    `prompt_role` is where the prompt's text goes: the first message of the user, or the system prompt, which the
    compaction of the CLI leaves as it is.
    `thinking` enables extended thinking, as far as the model supports it.
    `stream=True` notifies the session's subscribers of `ModelProgress`.
    """

    max_output_tokens: int | None = None
    max_context_tokens: int | None = 200_000
    effort: Effort | None = None
    thinking: bool = False
    prompt_role: PromptRole = "user"
    stream: bool = False

    def __post_init__(self) -> None:
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ValueError(f"max_output_tokens must be at least 1, not {self.max_output_tokens!r}")
        if self.max_context_tokens is not None and self.max_context_tokens < _MIN_CONTEXT_TOKENS:
            raise ValueError(
                f"max_context_tokens must be at least {_MIN_CONTEXT_TOKENS}, not {self.max_context_tokens!r}"
            )
        if self.prompt_role not in ("user", "system"):
            raise ValueError(f"prompt_role must be 'user' or 'system', not {self.prompt_role!r}")
        if self.effort not in (None, "low", "medium", "high", "xhigh", "max"):
            raise ValueError(f"effort must be low, medium, high, xhigh or max, not {self.effort!r}")


@dataclass(frozen=True, kw_only=True)
class ClaudeAgentSDKClientConfig:
    """The API that the CLI calls, and its process.

    `api_key` and `base_url` are read from `ANTHROPIC_API_KEY`, or `ANTHROPIC_AUTH_TOKEN`, and `ANTHROPIC_BASE_URL` if
    they are None. `cli_path` is a `claude` program other than the one of the package.
    `environment` are variables for the CLI besides the few that it gets by default, such as a proxy. Commands of the
    model can read them.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    cli_path: str | os.PathLike[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, hash=False)

    def __post_init__(self) -> None:
        for name, value in self.environment.items():
            if RESERVED_VARIABLES.match(name):
                raise ValueError(f"environment cannot hold {name!r}, which the adapter sets itself")
            if not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
                raise ValueError(f"environment holds {name!r}, which is not a valid variable")

    def resolve(self, environment: Mapping[str, str]) -> ClaudeAgentSDKClientConfig:
        """A copy with the values of the environment for what is left out."""
        key = self.api_key or environment.get("ANTHROPIC_API_KEY") or environment.get("ANTHROPIC_AUTH_TOKEN") or None
        base_url = self.base_url or environment.get("ANTHROPIC_BASE_URL") or None
        return ClaudeAgentSDKClientConfig(
            api_key=key, base_url=base_url, cli_path=self.cli_path, environment=self.environment
        )


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """The network of commands. By default they have none; `allowed_domains` are reached through a proxy of the CLI."""

    allowed_domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.allowed_domains, str) or not all(self.allowed_domains):
            raise ValueError(f"allowed_domains must be a tuple of host names, not {self.allowed_domains!r}")


@dataclass(frozen=True, kw_only=True)
class ClaudeAgentSDKToolsConfig:
    """The tools of the CLI, and the sandbox of its commands.

    `builtin` are the tools that prompts with a workspace get. `Bash` is left out, with a warning in the log, where its
    sandbox is not available; `require_bash=True` makes that an error.
    `hidden_paths` are host directories that commands cannot read, besides home directories and other places where
    programs keep secrets; `visible_paths` are directories below those that they can read all the same.
    """

    builtin: tuple[str, ...] = BUILTIN_TOOLS
    require_bash: bool = False
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    hidden_paths: tuple[str | os.PathLike[str], ...] = ()
    visible_paths: tuple[str | os.PathLike[str], ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.builtin if name not in BUILTIN_TOOLS]:
            raise ValueError(f"builtin names {unknown[0]!r}; known are: {', '.join(BUILTIN_TOOLS)}")
        if self.require_bash and "Bash" not in self.builtin:
            raise ValueError("require_bash=True contradicts builtin, which does not name Bash")
        for path in (*self.hidden_paths, *self.visible_paths):
            if not Path(path).is_absolute():
                raise ValueError(f"hidden_paths and visible_paths must be absolute, not {os.fspath(path)!r}")
