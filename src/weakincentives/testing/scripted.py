"""An adapter whose model is a script: for tests, examples and demonstrations without a provider.

It is no mock of an adapter: everything but the model is the real thing. The loop,
tools, transactions, limits, back-off and events are those of every other adapter.

    >>> from weakincentives.testing import ScriptedAdapter, call, say
    >>> from weakincentives.prompt import MarkdownSection, Prompt
    >>> from weakincentives.runtime import Session
    >>> prompt = Prompt(ns="doc", key="hello", sections=[MarkdownSection(title="Task", key="task", template="Greet.")])
    >>> ScriptedAdapter([say("Hello!")]).evaluate(prompt, session=Session()).text
    'Hello!'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, cast

from weakincentives.adapters.core import DEFAULT_MAX_TURNS, Connection, ProviderAdapter
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.adapters.turn import ModelReply, ModelRequest, NativeCall, ToolCall, ToolChoice
from weakincentives.budget import TokenUsage
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.prompt import ToolResult
from weakincentives.serde import dump_json

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

ScriptedReply: TypeAlias = ModelReply | Exception | Callable[[ModelRequest], ModelReply]
"""One answer of the script: a reply, an error to raise, or a function that looks at the request first."""


def say(answer: object, *, usage: TokenUsage | None = None) -> ModelReply:
    """The model answers: with text, or with a dataclass, or a list of them, as JSON."""
    payload: object = {"items": cast("list[object]", answer)} if isinstance(answer, list) else answer
    text = payload if isinstance(payload, str) else dump_json(payload)
    return ModelReply(text=text, usage=usage or TokenUsage())


def call(name: str, /, *, usage: TokenUsage | None = None, **arguments: object) -> ModelReply:
    """The model calls one of our tools. For one with a parameter called `usage`, see `calls`."""
    return calls((name, arguments), usage=usage)


def calls(*wanted: tuple[str, object], usage: TokenUsage | None = None, text: str | None = None) -> ModelReply:
    """The model calls several of our tools at once."""
    made = tuple(
        ToolCall(f"call_{at}_{name}", name, dump_json(arguments)) for at, (name, arguments) in enumerate(wanted)
    )
    return ModelReply(text=text, calls=made, usage=usage or TokenUsage())


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
    """The provider ran one of its own tools, and the model went on to say `text`."""
    made = NativeCall(f"native_{name}", name, name, provider, params, result)
    return ModelReply(text=text, native_calls=(made,), usage=usage or TokenUsage())


class ScriptedAdapter(ProviderAdapter):
    """Answers from a script, line by line, over all evaluations. `requests` keeps what it was asked."""

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
        def next_line(request: ModelRequest) -> ModelReply:
            self.requests.append(request)
            line = next(self._script, None)
            match line:
                case None:
                    raise evaluation.error(
                        f"the script has no reply for request {len(self.requests)}; add a line to the ScriptedAdapter"
                    )
                case ModelReply():
                    return line
                case Exception():
                    raise line
                case _:
                    return line(request)

        return next_line
