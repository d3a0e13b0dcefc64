"""How an adapter is set up: the model's parameters, the way to the server, and the tools that every prompt gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import MEMORY_TIERS, CodeInterpreterConfig
from weakincentives.adapters.openai.native_tools.file_search_section import FileSearchConfig
from weakincentives.adapters.openai.native_tools.registry import by_config, capabilities
from weakincentives.adapters.openai.native_tools.web_search_section import WebSearchConfig
from weakincentives.adapters.openai.wire import RESERVED, Role
from weakincentives.prompt import NativeDeclaration


@dataclass(frozen=True, kw_only=True)
class OpenAIModelConfig:
    """Parameters of every request. What is left at None is the provider's to choose.

    `store=False` keeps nothing at the provider; what the model thought is then sent along sealed.
    `prompt_role` is who says the prompt. It is the user, because some models will not answer a
    conversation in which nobody has asked anything.
    `native_tools` says which tools of the provider's a model has, such as
    `{"my-model": {"code_interpreter"}}`; a model that is not listed is asked, and its refusal told.
    `stream=True` has answers sent as they are written, and tells the session's subscribers: `ModelProgress`.
    `extra` are parameters that have no name here.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    metadata: Mapping[str, str] | None = field(default=None, hash=False)
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    stream: bool = False
    prompt_role: Role = "user"
    native_tools: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]], hash=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        if taken := sorted(RESERVED & self.extra.keys()):
            raise ValueError(f"extra cannot hold {taken[0]!r}, which the adapter settles itself")
        if unknown := sorted({name for names in self.native_tools.values() for name in names} - capabilities().keys()):
            raise ValueError(f"native_tools names {unknown[0]!r}; known are: {', '.join(capabilities())}")

    def parameters(self) -> dict[str, Any]:
        """The part of a request that follows from these alone."""
        reasoning = {"effort": self.reasoning_effort, "summary": self.reasoning_summary}
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning": {key: value for key, value in reasoning.items() if value is not None} or None,
            "truncation": self.truncation,
            "service_tier": self.service_tier,
            "metadata": dict(self.metadata) if self.metadata else None,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "store": self.store,
        }
        return {**{key: value for key, value in given.items() if value is not None}, **self.extra}


@dataclass(frozen=True, kw_only=True)
class OpenAIClientConfig:
    """The way to the server. What is left at None is taken from the environment, as OpenAI's SDK does.

    `timeout` is the most seconds for one request; a deadline makes it less.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    timeout: float | None = None
    default_headers: Mapping[str, str] | None = field(default=None, repr=False, hash=False)

    def arguments(self) -> dict[str, Any]:
        """What was given, for the client's constructor."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ContainerConfig:
    """The container of a workspace.

    `mode="auto"` uses a container that this session already has, if one is alive and has the memory; "explicit" makes
    one for this workspace alone. `expires_after` are minutes of idleness; without them the provider decides.
    `container_id` is a container of yours: it is used, but never deleted, and never replaced when it is gone.
    `archives=False` uses nothing that OpenAI's own API has not, also where the server offers to take whole archives.
    """

    memory_limit: str = "4g"
    mode: Literal["auto", "explicit"] = "explicit"
    expires_after: int | None = None
    container_id: str | None = None
    archives: bool = True

    def __post_init__(self) -> None:
        if self.memory_limit not in MEMORY_TIERS:
            raise ValueError(f"memory_limit must be one of {', '.join(MEMORY_TIERS)}, not {self.memory_limit!r}")
        if self.mode not in ("auto", "explicit"):
            raise ValueError(f"mode must be 'auto' or 'explicit', not {self.mode!r}")
        if self.expires_after is not None and self.expires_after < 1:
            raise ValueError(f"expires_after are minutes, at least 1, not {self.expires_after!r}")
        if self.container_id is not None and not self.container_id.strip():
            raise ValueError("container_id is empty: give the id of a container, or None to have one made")


@dataclass(frozen=True)
class OpenAIHostedToolsConfig:
    """Provider-run tools for every prompt of an adapter.

    Where True is not enough, give the tool's configuration. `others` are configurations of
    any other tool that the provider has, such as `McpConfig(…)`, or declarations in its own form.
    """

    code_interpreter: bool | CodeInterpreterConfig = False
    file_search: FileSearchConfig | None = None
    web_search: bool | WebSearchConfig = False
    others: tuple[Any, ...] = ()

    def declarations(self) -> tuple[NativeDeclaration, ...]:
        """What a prompt's sections would declare."""
        named = {name: getattr(self, name) for name in ("code_interpreter", "file_search", "web_search")}
        asked = [
            capabilities()[name].declaration(None if config is True else config, origin=f"hosted_tools.{name}")
            for name, config in named.items()
            if config is not None and config is not False
        ]
        return (*asked, *(_other(config, f"hosted_tools.others[{at}]") for at, config in enumerate(self.others)))


def _other(config: object, origin: str) -> NativeDeclaration:
    if isinstance(config, Mapping):
        plain = NativeDeclaration.of(cast("Mapping[str, Any]", config))
        return replace(plain, provider=PROVIDER, origin=origin)
    capability = by_config().get(type(config))
    if capability is None:
        known = ", ".join(kind.__name__ for kind in by_config())
        raise ValueError(f"{origin} is {config!r}, which configures no tool. Give one of: {known}")
    return capability.declaration(config, origin=origin)
