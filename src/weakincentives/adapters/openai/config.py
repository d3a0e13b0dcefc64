"""Configuration of the OpenAI adapter: model parameters, client, container, compaction, tools for every prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from weakincentives.adapters.openai.file_types import WARN_OF_UNSUPPORTED, FileTypes
from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import MEMORY_TIERS, CodeInterpreterConfig
from weakincentives.adapters.openai.native_tools.file_search_section import FileSearchConfig
from weakincentives.adapters.openai.native_tools.registry import by_config, capabilities
from weakincentives.adapters.openai.native_tools.web_search_section import WebSearchConfig
from weakincentives.adapters.openai.wire import RESERVED_PARAMETERS, Role
from weakincentives.prompt import NativeDeclaration

_PLAIN_PARAMETERS = (
    *("temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "truncation"),
    *("service_tier", "prompt_cache_key", "safety_identifier", "store"),
)
"""The fields of `OpenAIModelConfig` that are sent unchanged, under the same names."""


MIN_COMPACT_THRESHOLD = 1000
"""The smallest `compact_threshold` that the API takes."""


@dataclass(frozen=True, kw_only=True)
class OpenAIModelConfig:
    """Parameters of every request. For None the provider's default applies.

    `store=False` stores nothing at the provider; reasoning is then sent back encrypted.
    `prompt_role` is the role of the prompt's message. The default is `user`, because some models do not answer a
    conversation without a user message.
    `native_tools` lists the provider-run tools of a model, such as `{"my-model": {"code_interpreter"}}`; for a model
    that is not listed the request is sent, and an error of the server names the rejected tool.
    `stream=True` streams responses; the session's subscribers get `ModelProgress`.
    `extra` are parameters without a field here.
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
        if taken := sorted(RESERVED_PARAMETERS & self.extra.keys()):
            raise ValueError(f"extra cannot hold {taken[0]!r}, which the adapter sets itself")
        if unknown := sorted({name for names in self.native_tools.values() for name in names} - capabilities().keys()):
            raise ValueError(f"native_tools names {unknown[0]!r}; known are: {', '.join(capabilities())}")

    def parameters(self) -> dict[str, Any]:
        """The parameters of a request that depend on this configuration only."""
        reasoning = {"effort": self.reasoning_effort, "summary": self.reasoning_summary}
        parameters: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN_PARAMETERS}
        parameters["reasoning"] = {key: value for key, value in reasoning.items() if value is not None} or None
        parameters["metadata"] = dict(self.metadata) if self.metadata else None
        return {**{key: value for key, value in parameters.items() if value is not None}, **self.extra}


@dataclass(frozen=True, kw_only=True)
class OpenAIClientConfig:
    """The arguments of the SDK's client. For None the SDK reads the environment.

    `timeout` is the maximum of seconds for one request; a deadline reduces it.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    timeout: float | None = None
    default_headers: Mapping[str, str] | None = field(default=None, repr=False, hash=False)

    def arguments(self) -> dict[str, Any]:
        """The given values, for the client's constructor."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ContainerConfig:
    """The container of a workspace.

    `mode="auto"` reuses a container of this session, if one is running and has enough memory, and workspaces with equal
    configurations share it; "explicit" creates one for this workspace alone. `expires_after` is the idle timeout in
    minutes; without it the provider's default applies.
    `container_id` is the id of an existing container: it is used, never deleted, and not replaced when it expires.
    `archives=False` uses only OpenAI's own API, also on a server with the archive extension.
    `file_types` are the types that may be uploaded; by default others are logged and uploaded, because OpenAI documents
    no types for containers. None checks nothing.
    `delete_on_cleanup=False` leaves the container running when the last workspace that uses it is cleaned up.
    """

    memory_limit: str = "4g"
    mode: Literal["auto", "explicit"] = "explicit"
    expires_after: int | None = None
    container_id: str | None = None
    archives: bool = True
    file_types: FileTypes | None = WARN_OF_UNSUPPORTED
    delete_on_cleanup: bool = True

    def __post_init__(self) -> None:
        if self.memory_limit not in MEMORY_TIERS:
            raise ValueError(f"memory_limit must be one of {', '.join(MEMORY_TIERS)}, not {self.memory_limit!r}")
        if self.mode not in ("auto", "explicit"):
            raise ValueError(f"mode must be 'auto' or 'explicit', not {self.mode!r}")
        if self.expires_after is not None and self.expires_after < 1:
            raise ValueError(f"expires_after is in minutes, at least 1, not {self.expires_after!r}")
        if self.container_id is not None and not self.container_id.strip():
            raise ValueError("container_id is empty: give the id of a container, or None to have one created")
        if self.file_types is not None and not isinstance(self.file_types, FileTypes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
            raise TypeError(f"file_types must be FileTypes(allowed=…) or None, not {self.file_types!r}")


@dataclass(frozen=True)
class CompactionConfig:
    """Context compaction: a long history is replaced by a shorter window with an encrypted summary.

    The evaluations of a session are one conversation: each continues the window of the one before.

    `threshold_tokens`: compact when the input of a request has more tokens. With `enabled=False` nothing is compacted
    or continued, and only `zdr_mode` applies.
    `zdr_mode` is zero data retention: `store=false` with every request, so that the provider keeps nothing; reasoning
    is sent back encrypted.
    `mode="server"` has the provider compact while it answers (`context_management`), "client" calls the endpoint
    `/responses/compact`, and "auto" uses the first of them that the server supports.
    `model` is the model that compacts; by default the adapter's.
    """

    enabled: bool = True
    threshold_tokens: int = 100_000
    zdr_mode: bool = False
    mode: Literal["auto", "server", "client"] = "auto"
    model: str | None = None

    def __post_init__(self) -> None:
        for name in ("enabled", "zdr_mode"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        tokens = self.threshold_tokens
        if type(tokens) is not int:
            raise TypeError(f"threshold_tokens must be a whole number of tokens, not {tokens!r}")
        if tokens < MIN_COMPACT_THRESHOLD:
            raise ValueError(f"threshold_tokens must be at least {MIN_COMPACT_THRESHOLD}, not {tokens!r}")
        if self.mode not in ("auto", "server", "client"):
            raise ValueError(f"mode must be 'auto', 'server' or 'client', not {self.mode!r}")
        if self.model is not None and not isinstance(self.model, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
            raise TypeError(f"model must be the name of a model or None, not {self.model!r}")
        if self.model is not None and not self.model.strip():
            raise ValueError("model is empty: name the model that compacts, or None for the adapter's")


@dataclass(frozen=True)
class OpenAIHostedToolsConfig:
    """Provider-run tools for every prompt of an adapter.

    Instead of True, give the tool's configuration for other settings. `others` are configurations of other
    provider-run tools, such as `McpConfig(…)`, or declarations in wire form.
    """

    code_interpreter: bool | CodeInterpreterConfig = False
    file_search: FileSearchConfig | None = None
    web_search: bool | WebSearchConfig = False
    others: tuple[Any, ...] = ()

    def declarations(self) -> tuple[NativeDeclaration, ...]:
        """The declarations, in the form in which sections declare tools."""
        named = {name: getattr(self, name) for name in ("code_interpreter", "file_search", "web_search")}
        given = [
            capabilities()[name].declaration(None if config is True else config, origin=f"hosted_tools.{name}")
            for name, config in named.items()
            if config is not None and config is not False
        ]
        return (*given, *(_declaration(config, f"hosted_tools.others[{at}]") for at, config in enumerate(self.others)))


def _declaration(config: object, origin: str) -> NativeDeclaration:
    if isinstance(config, Mapping):
        declaration = NativeDeclaration.of(cast("Mapping[str, Any]", config))
        return replace(declaration, provider=PROVIDER, origin=origin)
    capability = by_config().get(type(config))
    if capability is None:
        known = ", ".join(kind.__name__ for kind in by_config())
        raise ValueError(f"{origin} is {config!r}, which configures no tool. Give one of: {known}")
    return capability.declaration(config, origin=origin)
