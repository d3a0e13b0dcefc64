"""`ProviderAdapter`: the base class of provider adapters, and `evaluate`, which drives the agent loop.

A subclass implements `connect`, which returns a function from `ModelRequest` to `ModelReply`. Everything else is
shared by all adapters: rendering, the driver of the loop, tools, limits, events, and parsing the output. An adapter for
a provider that runs the loop itself implements `run` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, get_origin

from weakincentives.adapters.audit import Audit
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.adapters.tool_calls import handle_provider_call, run_tool
from weakincentives.adapters.turn import (
    CallModel,
    EvaluationLimits,
    LoopResult,
    ModelReply,
    ModelRequest,
    NativeCall,
    Record,
    RunTool,
    agent_loop,
)
from weakincentives.budget import Budget, BudgetTracker, TokenUsage
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.dbc import ensure
from weakincentives.deadlines import Deadline
from weakincentives.errors import NativeToolError, OutputParseError, PromptEvaluationError, ProviderFault
from weakincentives.prompt import (
    NamedTool,
    NativeDeclaration,
    Prompt,
    RenderedPrompt,
    SessionProtocol,
    SupportsDataclass,
    ToolChoice,
    ToolContext,
    parse_output,
)
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Dispatcher, Session

OutputT = TypeVar("OutputT")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    AdapterOutputT = WithDefault("AdapterOutputT", default=Any)
else:
    AdapterOutputT = TypeVar("AdapterOutputT")

Connection: TypeAlias = Callable[[ModelRequest], ModelReply]
"""Sends one request, once. Raises `ProviderFault` if it fails; retries happen in `adapters.retry`."""

DEFAULT_MAX_TURNS = 100


@dataclass(frozen=True)
class PromptResponse(Generic[OutputT]):
    """The result of an evaluation.

    `output` is the parsed structured output; None if the prompt declares no output type, or with `parse_output=False`.
    """

    prompt_name: str
    text: str
    output: OutputT
    usage: TokenUsage = field(default_factory=TokenUsage)
    turns: int = 1
    citations: tuple[Any, ...] = ()


def _is_parsed(prompt: Prompt[Any], parse_output: bool, result: PromptResponse[Any]) -> bool:  # noqa: FBT001 - named as in `evaluate`
    template = prompt.template
    if not parse_output or template.output_type is None:
        return result.output is None
    values = result.output if template.container == "array" else [result.output]
    return all(isinstance(value, get_origin(template.output_type) or template.output_type) for value in values)


class ProviderAdapter(Generic[AdapterOutputT]):
    """Base class of all adapters. Its parameter is the type of outputs that an adapter evaluates; mostly `Any`.

    `provider` is the provider name that `ProviderTool`s refer to. `native_tools` are provider-run tools that the
    adapter adds to every prompt.
    """

    provider: str
    native_tools: tuple[NativeDeclaration, ...] = ()

    def __init__(
        self,
        *,
        tool_choice: ToolChoice = "auto",
        max_turns: int = DEFAULT_MAX_TURNS,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        self.tool_choice: ToolChoice = tool_choice
        self.max_turns = max_turns
        self.throttle = throttle or ThrottlePolicy()
        self.clock = clock

    def connect(self, evaluation: Evaluation) -> Connection:
        """Prepare one evaluation. Raise here, before any request is sent, for what the provider does not support."""
        _ = evaluation
        raise NotImplementedError(f"{type(self).__name__} implements neither `connect` nor `run`")

    def run(self, evaluation: Evaluation) -> LoopResult:
        """Dispatch `PromptRendered`, and run the agent loop with the connection of `connect`.

        Override it for a provider that runs the loop itself, and dispatch the same events.
        """
        choice = self.resolve_tool_choice(evaluation)
        connection = self.connect(evaluation)
        evaluation.audit.record_prompt_rendered(evaluation.rendered)
        return evaluation.run(connection, choice)

    def render(self, prompt: Prompt[OutputT], *, session: SessionProtocol) -> RenderedPrompt[OutputT]:
        """Render the prompt and add this adapter's native tools. Duplicate tool names and slots are an error."""
        rendered = prompt.render(session=session)
        if not self.native_tools:
            return rendered
        complete = replace(rendered, native_tools=(*rendered.native_tools, *self.native_tools))
        _check_collisions(complete, prompt)
        return complete

    def resolve_tool_choice(self, evaluation: Evaluation) -> ToolChoice:
        """The tool choice of the prompt, else of the adapter; an error if it names a tool that is not offered."""
        choice = evaluation.rendered.tool_choice or self.tool_choice
        known = {tool.name for tool in (*evaluation.rendered.tools, *evaluation.rendered.native_tools)}
        if isinstance(choice, NamedTool) and choice.name not in known:
            raise evaluation.error(
                f"tool_choice names {choice.name!r}, which the prompt does not have. Tools: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        return choice

    @ensure(_is_parsed, "the output is an instance of the prompt's output type")
    def evaluate(
        self,
        prompt: Prompt[OutputT],
        *params: SupportsDataclass,
        session: Session,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        resources: ResourceRegistry | None = None,
        bus: Dispatcher | None = None,
        parse_output: bool = True,
    ) -> PromptResponse[OutputT]:
        """Run the agent loop: send the prompt, run the tools that the model calls, and return the final answer.

        `params` are bound to the prompt for this evaluation. `resources` are available to tools and take precedence
        over the resources of sections. `bus` is an additional dispatcher that receives the events.

        Each evaluation starts a new conversation: the session records events, it holds no chat history. An adapter
        that compacts, such as `OpenAIAdapter(compaction=…)`, continues the conversation of the session instead.
        With `parse_output=False` the answer's text is left as it is, and `output` is None.
        """
        if not isinstance(prompt, Prompt):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
            raise TypeError(f"evaluate() takes a Prompt, not {prompt!r}: write Prompt(template)")
        prompt = prompt.with_params(*params)
        tracker = _resolve_tracker(budget, budget_tracker)
        if tracker is not None and tracker.budget.deadline is not None:
            deadline = tracker.budget.deadline.earlier(deadline)
        evaluation = Evaluation(
            adapter=self,
            prompt=prompt,
            rendered=self.render(prompt, session=session),
            session=session,
            resources=prompt.resources().merge(resources or ResourceRegistry()),
            limits=EvaluationLimits(prompt.name, self.max_turns, deadline, tracker),
            audit=Audit(prompt, self.provider, session, self.clock),
        )
        with session.forward_to(bus), evaluation.cleanup:
            evaluation.check_providers()
            return evaluation.build_response(self.run(evaluation), parse=parse_output)


@dataclass
class Evaluation:
    """State of one running evaluation.

    Adapters push context managers and callbacks onto `cleanup`, which is closed when the evaluation ends, also after
    an error.
    """

    adapter: ProviderAdapter[Any]
    prompt: Prompt[Any]
    rendered: RenderedPrompt[Any]
    session: Session
    resources: ResourceRegistry
    limits: EvaluationLimits
    audit: Audit
    cleanup: ExitStack = field(default_factory=ExitStack)

    def check_providers(self) -> None:
        """Raise if a section or a native tool belongs to another provider."""
        for section in self.rendered.active:
            if section.required_provider not in (None, self.adapter.provider):
                raise self.error(
                    f"section {section.key!r} ({type(section).__name__}) is for provider "
                    f"{section.required_provider!r}, but this adapter is {self.adapter.provider!r}: "
                    "use the section of that provider"
                )
        for declared in self.rendered.native_tools:
            if declared.provider not in (None, self.adapter.provider):
                raise self.error(
                    f"tool {declared.name!r} ({declared.origin}) is for provider {declared.provider!r}, "
                    f"but this adapter is {self.adapter.provider!r}: remove it, or use that provider's adapter"
                )

    def run(self, connection: Connection, choice: ToolChoice) -> LoopResult:
        """Drive the agent loop until it returns: call the model, record events, run tools."""
        loop = agent_loop(self.rendered, limits=self.limits, tool_choice=choice)
        step = next(loop)
        try:
            while True:
                match step:
                    case CallModel(request):
                        step = loop.send(self._call_model(connection, request))
                    case Record(item, turn):
                        self._record(item, turn)
                        step = loop.send(None)
                    case RunTool(call):
                        ran = run_tool(call, self)
                        self.rendered = ran.rendered or self.rendered
                        step = loop.send(ran)
        except StopIteration as stop:
            return stop.value

    def _record(self, item: NativeCall | ModelReply, turn: int) -> None:
        if isinstance(item, NativeCall):
            self.audit.record_provider_call(*handle_provider_call(item, self))
        else:
            self.audit.record_reply(item, turn)

    def _call_model(self, connection: Connection, request: ModelRequest) -> ModelReply:
        adapter, deadline = self.adapter, self.limits.deadline
        try:
            reply = with_backoff(
                lambda: connection(request), policy=adapter.throttle, deadline=deadline, clock=adapter.clock
            )
        except ProviderFault as fault:
            if deadline is not None and deadline.expired:
                raise self.limits.deadline_error(request.turn) from fault
            raise self.error(
                f"request to {adapter.provider} failed: {fault}", payload=fault.payload, request_id=fault.request_id
            ) from fault
        if self.limits.tracker is not None:
            self.limits.tracker.record(reply.usage)
        return reply

    def build_response(self, loop_result: LoopResult, *, parse: bool) -> PromptResponse[Any]:
        """Parse the output and dispatch `PromptExecuted`."""
        output = None
        if parse and self.rendered.output_type is not None:
            try:
                text = loop_result.text if loop_result.final_text is None else loop_result.final_text
                output = parse_output(text, self.rendered)
            except OutputParseError as error:
                raise PromptEvaluationError(
                    f"{error}. The raw text is in provider_payload",
                    prompt_name=self.prompt.name,
                    phase="response",
                    provider_payload=error.raw,
                ) from error
        response = PromptResponse[Any](
            self.prompt.name, loop_result.text, output, loop_result.usage, loop_result.turns, loop_result.citations
        )
        self.audit.record_prompt_executed(response)
        return response

    def tool_context(self) -> ToolContext:
        """The context that is passed to tool handlers."""
        return ToolContext(
            prompt=self.prompt,
            rendered_prompt=self.rendered,
            adapter=self.adapter,
            session=self.session,
            deadline=self.limits.deadline,
            budget_tracker=self.limits.tracker,
            resources=self.resources,
        )

    def error(self, message: str, *, payload: object = None, request_id: str | None = None) -> PromptEvaluationError:
        """An error of the `request` phase: building or sending a request."""
        return PromptEvaluationError(
            message, prompt_name=self.prompt.name, phase="request", provider_payload=payload, request_id=request_id
        )


def _check_collisions(rendered: RenderedPrompt[Any], prompt: Prompt[Any]) -> None:
    sections = {tool.name: f"section {node.path!r}" for node in prompt.template.nodes for tool in node.section.tools()}
    owners = {tool.name: sections.get(tool.name, "the prompt") for tool in rendered.tools}
    slots: dict[str, str] = {}
    for declared in rendered.native_tools:
        for taken, name in ((owners, declared.name), (slots, declared.slot)):
            if name in taken:
                raise NativeToolError(
                    f"tool {name!r} is declared by {taken[name]} and by {declared.origin}: remove one of them",
                    prompt_name=prompt.name,
                    phase="request",
                )
            taken[name] = declared.origin


def _resolve_tracker(budget: Budget | None, tracker: BudgetTracker | None) -> BudgetTracker | None:
    if tracker is None:
        return BudgetTracker(budget) if budget is not None else None
    if budget is not None and budget != tracker.budget:
        raise ValueError("budget and budget_tracker.budget differ: pass only one of budget and budget_tracker")
    return tracker
