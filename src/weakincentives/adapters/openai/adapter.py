"""`OpenAIAdapter`: prompts evaluated by OpenAI's Responses API, or by any server that speaks it.

The story of `evaluate` is told in `adapters.core`. This adapter's part of it: `render` adds the tools of
`hosted_tools`; `choose` reads `tool_choice`; `connect` makes a `Conversation`, which refuses what cannot work and then
sends one request after the other. What comes back is read in `reading`, tool by tool in `native_tools`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from weakincentives.adapters.core import DEFAULT_MAX_TURNS, Connection, Evaluation, ProviderAdapter
from weakincentives.adapters.openai.citations import FileCitation, download
from weakincentives.adapters.openai.config import OpenAIClientConfig, OpenAIHostedToolsConfig, OpenAIModelConfig
from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.responses.conversation import Conversation
from weakincentives.adapters.openai.responses.tool_params import (
    PLAIN_CHOICES,
    find_capability,
    offer_natives,
    resolve_choice,
)
from weakincentives.adapters.openai.sdk import Transport, faults
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.adapters.turn import ToolChoice
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import ProviderFault

if TYPE_CHECKING:
    from openai import OpenAI

AnyToolChoice: TypeAlias = ToolChoice | Mapping[str, Any]
"""Ours, or the API's own form: `{"type": "function", "name": …}`, `{"type": "code_interpreter"}`, and so on."""


class OpenAIAdapter(ProviderAdapter):
    """Evaluates prompts with a model behind the Responses API.

    Give either a `client` of OpenAI's SDK, or a `client_config` to make one from; without both, one is made from the
    environment when it is first needed. `hosted_tools` are offered to the model with every prompt.

    `close`, or the end of a `with` block, closes the connections of a client that was made here; one of the caller's is
    the caller's to close. A workspace that works with this client is cleaned up before.
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
        tool_choice: AnyToolChoice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(
            tool_choice=cast("ToolChoice", tool_choice), max_turns=max_turns, throttle=throttle, clock=clock
        )
        if not model:
            raise ValueError("model is empty: name the model to ask, such as model='gpt-5'")
        if client is not None and client_config is not None:
            raise ValueError("give client or client_config, not both: a client is already configured")
        if inspect.iscoroutinefunction(getattr(client, "post", None)):
            raise ValueError("client is asynchronous, and evaluations are not: give an openai.OpenAI")
        self.model = model
        self.model_config = model_config or OpenAIModelConfig()
        self.native_tools = hosted_tools.declarations() if hosted_tools else ()
        self._transport = Transport(client, client_config)
        for declared in self.native_tools:
            find_capability(declared, "", self._allowed)

    @property
    def client(self) -> OpenAI:
        """The SDK's client, with its own retries off."""
        return self._transport.client

    @property
    def _allowed(self) -> Collection[str] | None:
        return self.model_config.native_tools.get(self.model)

    def resolve_tool_choice(self, evaluation: Evaluation) -> ToolChoice:
        rendered = evaluation.rendered
        if self.tool_choice in PLAIN_CHOICES and (self.tool_choice != "required" or rendered.tools):
            return self.tool_choice
        natives = offer_natives(rendered, prompt_name=evaluation.prompt.name, allowed=self._allowed)
        try:
            return resolve_choice(self.tool_choice, [tool.name for tool in rendered.tools], natives)
        except ValueError as error:
            raise evaluation.error(str(error)) from error

    def connect(self, evaluation: Evaluation) -> Connection:
        conversation = Conversation(
            evaluation,
            transport=self._transport,
            model=self.model,
            config=self.model_config,
            allowed=self._allowed,
        )
        try:
            with faults():
                _ = self.client
        except ProviderFault as fault:
            raise evaluation.error(f"there is no client: {fault}") from fault
        return conversation

    def download(self, citation: ContainerFile | FileCitation, dest: str | os.PathLike[str]) -> Path:
        """Write a file that an answer cites to `dest`, or into it where that is a directory.

        It is tried again as requests are; a `ProviderFault` says why it could not be had.
        """

        def once() -> Path:
            with faults():
                return download(self.client, citation, dest)

        return with_backoff(once, policy=self.throttle, clock=self.clock)

    def close(self) -> None:
        """Close connections that are ours. What nobody closes goes with the adapter."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
