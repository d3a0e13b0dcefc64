"""`ScriptedAdapter`: a provider adapter whose model replies from a list, for tests and examples without a provider.

Only the model is fake. The agent loop, tools, rollback, limits, retries and events are those of every adapter.

    >>> from weakincentives.testing import ScriptedAdapter, call, say
    >>> from weakincentives.prompt import MarkdownSection, Prompt
    >>> from weakincentives.runtime import Session
    >>> prompt = Prompt(ns="doc", key="hello", sections=[MarkdownSection(title="Task", key="task", template="Greet.")])
    >>> ScriptedAdapter([say("Hello!")]).evaluate(prompt, session=Session()).text
    'Hello!'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weakincentives.adapters.core import DEFAULT_MAX_TURNS, Connection, ProviderAdapter
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.adapters.turn import ModelReply, ModelRequest, NativeCall, ToolCall
from weakincentives.budget import TokenUsage
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.prompt import ToolChoice, ToolResult
from weakincentives.serde import dump_json

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

ScriptedReply: TypeAlias = ModelReply | Exception | Callable[[ModelRequest], ModelReply]
"""One reply of the script: a reply, an exception to raise, or a function of the request."""


def say(answer: object, *, usage: TokenUsage | None = None) -> ModelReply:
    """A reply with text, or with a dataclass or a list of dataclasses as JSON."""
    payload: object = {"items": cast("list[object]", answer)} if isinstance(answer, list) else answer
    text = payload if isinstance(payload, str) else dump_json(payload)
    return ModelReply(text=text, usage=usage or TokenUsage())


def call(name: str, /, *, usage: TokenUsage | None = None, **arguments: object) -> ModelReply:
    """A reply that calls one client-run tool. For a tool with a parameter called `usage`, use `calls`."""
    return calls((name, arguments), usage=usage)


def calls(*requested: tuple[str, object], usage: TokenUsage | None = None, text: str | None = None) -> ModelReply:
    """A reply that calls several client-run tools."""
    tool_calls = tuple(
        ToolCall(f"call_{index}_{name}", name, dump_json(params)) for index, (name, params) in enumerate(requested)
    )
    return ModelReply(text=text, calls=tool_calls, usage=usage or TokenUsage())


def native(
    name: str,
    /,
    *,
    params: object = None,
    result: ToolResult[object],
    provider: str,
    text: str | None = None,
    usage: TokenUsage | None = None,
) -> ModelReply:
    """A reply in which the provider ran one of its tools, followed by `text`."""
    native_call = NativeCall(f"native_{name}", name, name, provider, params, result)
    return ModelReply(text=text, native_calls=(native_call,), usage=usage or TokenUsage())


class ScriptedAdapter(ProviderAdapter[Any]):
    """Replies from a script, in order, across all evaluations. `requests` records the requests."""

    def __init__(
        self,
        script: Iterable[ScriptedReply],
        *,
        provider: str = "scripted",
        tool_choice: ToolChoice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(tool_choice=tool_choice, max_turns=max_turns, throttle=throttle, clock=clock)
        self.provider = provider
        self.requests: list[ModelRequest] = []
        self._script = iter(script)

    def connect(self, evaluation: Evaluation) -> Connection:
        def next_reply(request: ModelRequest) -> ModelReply:
            self.requests.append(request)
            reply = next(self._script, None)
            match reply:
                case None:
                    raise evaluation.error(
                        f"the script has no reply for request {len(self.requests)}; add a reply to the ScriptedAdapter"
                    )
                case ModelReply():
                    return reply
                case Exception():
                    raise reply
                case _:
                    return reply(request)

        return next_reply
