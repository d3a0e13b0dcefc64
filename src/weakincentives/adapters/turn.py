"""The agent loop, without I/O: call the model and run the tools that it calls, until a reply has no tool calls.

`agent_loop` is a generator. It yields steps and is sent their results:

    CallModel(request)  ->  ModelReply
    Record(…)           ->  None           each call that the provider ran, then the reply: dispatch an event
    RunTool(call)       ->  ToolRunResult  a call that the client runs

and returns a `LoopResult`. `adapters.core` is the driver.

A turn is one request to the model and the tool calls of its reply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from weakincentives.budget import BudgetTracker, TokenUsage
from weakincentives.dbc import ensure
from weakincentives.deadlines import Deadline
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError, TurnLimitError
from weakincentives.prompt import NamedTool, RenderedPrompt, ToolChoice, ToolContext, ToolResult
from weakincentives.runtime.slices import SliceView


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the client runs. `arguments` is the JSON text that the model wrote."""

    call_id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRunCall(ToolCall):
    """A call of a provider-defined tool that the client must run, such as `apply_patch` or a local shell.

    `params` are recorded in the event. `format_output` converts the output to the provider's item. With
    `rollback_on_failure=False` the effects of a failed call stay: a command that exits with 1 has changed files.
    """

    capability: str
    provider: str
    params: object
    run: Callable[[ToolContext], ToolResult[Any]]
    format_output: Callable[[ToolOutput], object]
    rollback_on_failure: bool = True


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call that the provider has already run."""

    call_id: str
    name: str
    capability: str
    provider: str
    params: object
    result: ToolResult[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The reply to one model request. `items` are the provider's items, to be sent again unchanged.

    `final_text` is the part of `text` that is the final answer, if that is not all of it. `error` ends the evaluation
    after the rest of the reply has been recorded. `other_usage` is the usage of requests that the adapter sent besides,
    such as compactions; the adapter records it in the budget tracker itself. `request_id` is the provider's id of the
    request, for its support and its logs.
    """

    text: str | None = None
    final_text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    native_calls: tuple[NativeCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    items: tuple[object, ...] = ()
    citations: tuple[object, ...] = ()
    error: PromptEvaluationError | None = None
    request_id: str | None = None
    other_usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool call that is sent to the model. `value` is the `ToolResult`'s, for structured outputs."""

    call_id: str
    name: str
    text: str
    success: bool
    value: object = None


HistoryItem: TypeAlias = ModelReply | ToolOutput


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model request: the prompt and the history of this evaluation.

    `history` is immutable and shares its buffer with later requests. An adapter that converts it keeps what it
    converted and adds only `history.since(n)`.
    """

    rendered: RenderedPrompt[Any]
    history: SliceView[HistoryItem]
    tool_choice: ToolChoice
    turn: int
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """Step: send the request; the result is the `ModelReply`."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class Record:
    """Step: dispatch the event of a provider-run call or of a reply."""

    item: NativeCall | ModelReply
    turn: int


@dataclass(frozen=True, slots=True)
class RunTool:
    """Step: run the call; the result is a `ToolRunResult`."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolRunResult:
    """The output of a call; `rendered` is set if the call changed the tools of the prompt."""

    output: ToolOutput
    rendered: RenderedPrompt[Any] | None = None


Step: TypeAlias = CallModel | Record | RunTool


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What the agent loop returns. `usage` and `citations` are those of all replies."""

    text: str
    usage: TokenUsage
    turns: int
    citations: tuple[object, ...]
    final_text: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of an evaluation: turns, deadline, token budget. Errors carry the last reply's text as payload."""

    prompt_name: str
    max_turns: int
    deadline: Deadline | None = None
    tracker: BudgetTracker | None = None

    def check_tokens(self, last_text: str | None) -> None:
        """Raise if all requests together exceed the token budget."""
        if self.tracker is not None and (overrun := self.tracker.overrun()) is not None:
            message = f"token budget exceeded: {overrun}. Raise the budget, or shorten prompt and tool outputs"
            raise self._error(BudgetExceededError, message, last_text)

    def check_deadline(self, turn: int, last_text: str | None) -> None:
        """Raise if the deadline has passed."""
        if self.deadline is not None and self.deadline.expired:
            raise self.deadline_error(turn, last_text)

    def deadline_error(self, turn: int, last_text: str | None = None) -> PromptEvaluationError:
        """The error for a passed deadline."""
        until = self.deadline.expires_at.isoformat() if self.deadline else "none"
        message = f"the deadline ({until}) passed after {turn} turns. Extend the deadline, or reduce the task"
        return self._error(DeadlineExceededError, message, last_text)

    def check_request(self, turn: int, last_text: str | None) -> None:
        """Raise if a limit forbids another request."""
        self.check_tokens(last_text)
        self.check_deadline(turn, last_text)
        if turn >= self.max_turns:
            raise self.turn_limit_error(turn, last_text)

    def turn_limit_error(self, turn: int, last_text: str | None = None) -> PromptEvaluationError:
        """The error for a model that still calls tools when the turn limit is reached."""
        message = f"the model still calls tools after {turn} turns. Raise max_turns, or check the transcript for a loop"
        return self._error(TurnLimitError, message, last_text)

    def _error(self, kind: type[PromptEvaluationError], message: str, last_text: str | None) -> PromptEvaluationError:
        return kind(message, prompt_name=self.prompt_name, phase="budget", provider_payload=last_text)


def agent_loop(
    rendered: RenderedPrompt[Any], *, limits: EvaluationLimits, tool_choice: ToolChoice = "auto"
) -> Generator[Step, ModelReply | ToolRunResult | None, LoopResult]:
    """Yield the steps of one evaluation; see the module docstring."""
    history: SliceView[HistoryItem] = SliceView()
    usage = TokenUsage()
    citations: list[object] = []
    text: str | None = None
    turn = 0
    while True:
        limits.check_request(turn, last_text=text)
        request = ModelRequest(rendered, history, tool_choice, turn, limits.deadline)
        reply = cast("ModelReply", (yield CallModel(request)))
        for item in (*reply.native_calls, reply):
            yield Record(item, turn)
        turn += 1
        usage += reply.usage + reply.other_usage
        text = reply.text
        citations += reply.citations
        history = history.appended(reply)
        if reply.error is not None:
            raise reply.error
        limits.check_tokens(last_text=text)
        if not reply.calls:
            return LoopResult(text or "", usage, turn, tuple(citations), reply.final_text)
        tool_choice = relax_tool_choice(tool_choice, reply)
        for call in reply.calls:
            limits.check_deadline(turn, last_text=text)
            ran = cast("ToolRunResult", (yield RunTool(call)))
            history = history.appended(ran.output)
            rendered = ran.rendered or rendered


@ensure(lambda choice, result: result in (choice, "auto"), "a tool choice is kept or relaxed, never tightened")
def relax_tool_choice(choice: ToolChoice, reply: ModelReply) -> ToolChoice:
    """The tool choice after this reply: "auto" once it is satisfied, since otherwise the loop would not end."""
    called = {call.name for call in reply.calls} | {call.name for call in reply.native_calls}
    met = choice.name in called if isinstance(choice, NamedTool) else choice == "required" and bool(called)
    return "auto" if met else choice
