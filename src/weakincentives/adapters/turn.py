"""The loop of an evaluation, without I/O: ask the model, run its tools, until it has nothing more to call.

`turns` is a generator. It yields what it needs done and is sent what came of it:

    AskModel(request)   ->  ModelReply
    Record(…)           ->  None         what a reply brought, in order: the calls that the provider ran, then itself
    RunTool(call)       ->  ToolRan      a call that is ours to run

and returns an `Ending`. Whoever drives it decides how the world is reached; see `core`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from weakincentives.budget import BudgetTracker, TokenUsage
from weakincentives.dbc import ensure
from weakincentives.deadlines import Deadline
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError, TurnLimitError
from weakincentives.prompt import RenderedPrompt, ToolContext, ToolResult
from weakincentives.runtime.slices import SliceView


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool first."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
"""Whether the model may, must or must not call tools. A "must" is over once it was met."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one of our tools. `arguments` is JSON text, as the model wrote it."""

    call_id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRunCall(ToolCall):
    """A call of a provider's tool that the provider leaves to us to run, along with how.

    `params` are for the event. `answer` puts the output into the provider's own form.
    `undone_on_failure` is False where a failure is news rather than a mishap: a command that
    exits with 1 has done what it did.
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
    """What came back from one request. `items` are the provider's own, to be sent again untouched.

    `answer` is the part of the text that is the answer, where that is not all of it. `error` ends the
    evaluation, once everything else in the reply has been recorded.
    """

    text: str | None = None
    final_text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    native_calls: tuple[NativeCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    items: tuple[object, ...] = ()
    citations: tuple[object, ...] = ()
    error: PromptEvaluationError | None = None


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What the model is told about a call; `value` is the result's, for providers that want more than text."""

    call_id: str
    name: str
    text: str
    success: bool
    value: object = None


HistoryItem: TypeAlias = ModelReply | ToolOutput


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request: the prompt, and everything that happened since.

    `history` is immutable and shares its memory with the next request's. A
    backend that keeps its own form of it converts only `history.since(n)`.
    """

    rendered: RenderedPrompt[Any]
    history: SliceView[HistoryItem]
    tool_choice: ToolChoice
    turn: int
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """Send this, and send back the `ModelReply`."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class Record:
    """Somebody should know."""

    item: NativeCall | ModelReply
    turn: int


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run this, and send back `ToolRan`."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolRunResult:
    """The output of a call; `rendered` where the call changed the prompt's tools."""

    output: ToolOutput
    rendered: RenderedPrompt[Any] | None = None


Step: TypeAlias = CallModel | Record | RunTool


@dataclass(frozen=True, slots=True)
class LoopResult:
    """How the loop ended. `citations` are those of all replies, in order."""

    text: str
    usage: TokenUsage
    turns: int
    citations: tuple[object, ...]
    final_text: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """What an evaluation may use up. Where a limit is reached, what the model last said goes along with the error."""

    prompt_name: str
    max_turns: int
    deadline: Deadline | None = None
    tracker: BudgetTracker | None = None

    def check_tokens(self, last_text: str | None) -> None:
        """Raise where all requests together used too many tokens."""
        if self.tracker is not None and (overrun := self.tracker.overrun()) is not None:
            message = f"token budget exceeded: {overrun}. Raise the budget, or shorten prompt and tool outputs"
            raise self._error(BudgetExceededError, message, last_text)

    def check_deadline(self, turn: int, last_text: str | None) -> None:
        """Raise where there is no time left to start anything."""
        if self.deadline is not None and self.deadline.expired:
            raise self.deadline_error(turn, last_text)

    def deadline_error(self, turn: int, last_text: str | None = None) -> PromptEvaluationError:
        """The error of a deadline that has passed."""
        until = self.deadline.expires_at.isoformat() if self.deadline else "none"
        message = f"the deadline ({until}) passed after {turn} turns. Allow more time, or ask for less"
        return self._error(DeadlineExceededError, message, last_text)

    def check_request(self, turn: int, last_text: str | None) -> None:
        """Raise where another request is one too many."""
        self.check_tokens(last_text)
        self.check_deadline(turn, last_text)
        if turn >= self.max_turns:
            message = f"the model still calls tools after {turn} turns. Raise max_turns, or see why in the transcript"
            raise self._error(TurnLimitError, message, last_text)

    def _error(self, kind: type[PromptEvaluationError], message: str, last_text: str | None) -> PromptEvaluationError:
        return kind(message, prompt_name=self.prompt_name, phase="budget", provider_payload=last_text)


def agent_loop(
    rendered: RenderedPrompt[Any], *, limits: EvaluationLimits, tool_choice: ToolChoice = "auto"
) -> Generator[Step, ModelReply | ToolRunResult | None, LoopResult]:
    """Drive one evaluation to its end."""
    history: SliceView[HistoryItem] = SliceView()
    usage = TokenUsage()
    citations: list[object] = []
    text: str | None = None
    turn = 0
    while True:
        limits.check_request(turn, last_text=text)
        request = ModelRequest(rendered, history, tool_choice, turn, limits.deadline)
        reply = cast("ModelReply", (yield CallModel(request)))
        for heard in (*reply.native_calls, reply):
            yield Record(heard, turn)
        turn += 1
        usage += reply.usage
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
    """What is left of a demand after this reply: none that was met, or the loop would never end."""
    called = {call.name for call in reply.calls} | {call.name for call in reply.native_calls}
    met = choice.name in called if isinstance(choice, NamedTool) else choice == "required" and bool(called)
    return "auto" if met else choice
