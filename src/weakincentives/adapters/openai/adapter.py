"""`OpenAIAdapter`: evaluates prompts with the Responses API of OpenAI, or of any server that implements it.

`adapters.core` drives the agent loop. This adapter adds `native_tools`, from `hosted_tools`; `resolve_tool_choice`,
which also takes the API's own forms; and `connect`, which creates a `ResponsesConversation`: it checks the prompt and
then sends the requests. Responses are parsed in `responses.parsing`, tool by tool in `native_tools`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from weakincentives.adapters.core import DEFAULT_MAX_TURNS, Connection, Evaluation, ProviderAdapter
from weakincentives.adapters.openai.citations import FileCitation, download
from weakincentives.adapters.openai.compaction.manager import CompactionManager, RequestLimits
from weakincentives.adapters.openai.compaction.state import ConversationLock
from weakincentives.adapters.openai.compaction.support import ServerSupport
from weakincentives.adapters.openai.config import (
    CompactionConfig,
    OpenAIClientConfig,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.responses.conversation import ResponsesConversation, open_client
from weakincentives.adapters.openai.responses.tool_params import (
    find_capability,
    native_tool_params,
    resolve_tool_choice,
)
from weakincentives.adapters.openai.sdk import SdkClient, translate_errors
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.prompt import ToolChoice
from weakincentives.prompt.tool import PLAIN_TOOL_CHOICES
from weakincentives.runtime import Session

if TYPE_CHECKING:
    from openai import OpenAI

AnyToolChoice: TypeAlias = ToolChoice | Mapping[str, Any]
"""A `ToolChoice`, or the API's own form: `{"type": "function", "name": …}`, `{"type": "code_interpreter"}`, …"""


_COMPACTION_PARAMETERS = ("instructions", "prompt_cache_key", "service_tier")
"""Parameters of responses that the compaction endpoint takes too."""

_MANAGED_PARAMETERS = ("context_management", "previous_response_id", "conversation")
"""Parameters of `extra` that contradict compaction, which sends the whole window with every request."""


class OpenAIAdapter(ProviderAdapter[Any]):
    """Evaluates prompts with a model behind the Responses API.

    Give either a `client` of OpenAI's SDK, or a `client_config` to create one; without both, a client is created from
    the environment on first use. `hosted_tools` are added to the tools of every prompt. With `compaction`, evaluations
    continue the conversation of their session, and long histories are compacted; None turns both off.

    `close`, or the end of a `with` block, closes a client that was created here; it does not close a `client` that was
    given. Clean up a workspace that uses this client before.
    """

    provider = PROVIDER

    def __init__(
        self,
        *,
        model: str,
        model_config: OpenAIModelConfig | None = None,
        client_config: OpenAIClientConfig | None = None,
        client: OpenAI | None = None,
        hosted_tools: OpenAIHostedToolsConfig | None = None,
        compaction: CompactionConfig | None = None,
        tool_choice: AnyToolChoice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        wire_choice = tool_choice if isinstance(tool_choice, Mapping) else None
        plain_choice = "auto" if isinstance(tool_choice, Mapping) else tool_choice
        super().__init__(tool_choice=plain_choice, max_turns=max_turns, throttle=throttle, clock=clock)
        if not model:
            raise ValueError("model is empty: name the model to ask, such as model='gpt-5'")
        if client is not None and client_config is not None:
            raise ValueError("give client or client_config, not both: a client is already configured")
        if inspect.iscoroutinefunction(getattr(client, "post", None)):
            raise ValueError("client is asynchronous, and evaluations are not: give an openai.OpenAI")
        self.model = model
        self.model_config = _resolve_config(model_config or OpenAIModelConfig(), compaction)
        self.compaction = compaction
        self._support: dict[str, ServerSupport] = {}  # by base URL
        self.native_tools = hosted_tools.declarations() if hosted_tools else ()
        self._wire_tool_choice = wire_choice  # in the API's own form; it takes precedence over `tool_choice`
        self._sdk = SdkClient(client, client_config)
        for declared in self.native_tools:
            find_capability(declared, "", self._allowed_tools)

    @property
    def client(self) -> OpenAI:
        """The SDK's client, with its own retries off."""
        return self._sdk.client

    @property
    def _allowed_tools(self) -> Collection[str] | None:
        return self.model_config.native_tools.get(self.model)

    def resolve_tool_choice(self, evaluation: Evaluation) -> ToolChoice:
        rendered = evaluation.rendered
        own_choice = self.tool_choice if self._wire_tool_choice is None else self._wire_tool_choice
        choice = own_choice if rendered.tool_choice is None else rendered.tool_choice
        if (
            not isinstance(choice, Mapping)
            and choice in PLAIN_TOOL_CHOICES
            and (choice != "required" or rendered.tools)
        ):
            return choice
        native = native_tool_params(rendered, prompt_name=evaluation.prompt.name, allowed=self._allowed_tools)
        try:
            return resolve_tool_choice(choice, [tool.name for tool in rendered.tools], native)
        except ValueError as error:
            raise evaluation.error(str(error)) from error

    def connect(self, evaluation: Evaluation) -> Connection:
        conversation = ResponsesConversation(
            evaluation, self._sdk, self.model, self.model_config, self._compaction_manager(evaluation)
        )
        open_client(self._sdk, evaluation)
        return conversation

    def _compaction_manager(self, evaluation: Evaluation) -> CompactionManager | None:
        """The manager of the session's conversation, or of a separate one if another evaluation continues that."""
        if self.compaction is None or not self.compaction.enabled:
            return None
        session, limits = evaluation.session, evaluation.limits
        conversation = session.shared(ConversationLock, ConversationLock, reuse=lambda _: True)
        if conversation.lock.acquire(blocking=False):
            evaluation.cleanup.callback(conversation.lock.release)
        else:
            session = Session(dispatcher=session.dispatcher)
        parameters = self.model_config.parameters()
        return CompactionManager(
            self._sdk,
            self.compaction,
            session,
            model=self.model,
            parameters={name: parameters[name] for name in _COMPACTION_PARAMETERS if name in parameters},
            limits=RequestLimits(self.throttle, self.clock, limits.deadline, limits.tracker),
            support=self._support.setdefault(str(open_client(self._sdk, evaluation).base_url), ServerSupport()),
        )

    def download(self, citation: ContainerFile | FileCitation, dest: str | os.PathLike[str]) -> Path:
        """Write a cited file to `dest`, or into it if that is a directory.

        The download is retried as requests are. Raises `ProviderFault`.
        """

        def attempt() -> Path:
            with translate_errors():
                return download(self.client, citation, dest)

        return with_backoff(attempt, policy=self.throttle, clock=self.clock)

    def close(self) -> None:
        """Close the connections of a client that was created here."""
        self._sdk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve_config(config: OpenAIModelConfig, compaction: CompactionConfig | None) -> OpenAIModelConfig:
    """The model configuration together with compaction; `ValueError` if they contradict each other."""
    if compaction is None:
        return config
    if not isinstance(compaction, CompactionConfig):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
        raise TypeError(f"compaction must be a CompactionConfig or None, not {compaction!r}")
    if taken := [name for name in _MANAGED_PARAMETERS if name in config.extra]:
        raise ValueError(f"extra cannot hold {taken[0]!r} together with compaction, which sends the whole window")
    if not compaction.zdr_mode:
        return config
    if config.store:
        raise ValueError("OpenAIModelConfig(store=True) contradicts zdr_mode=True: remove one of them")
    return replace(config, store=False)
