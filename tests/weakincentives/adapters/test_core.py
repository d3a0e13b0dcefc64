from __future__ import annotations

from dataclasses import dataclass

import pytest

from weakincentives.adapters import (
    Connection,
    Evaluation,
    ModelReply,
    NamedTool,
    PromptResponse,
    ThrottlePolicy,
)
from weakincentives.budget import Budget, BudgetTracker, TokenUsage
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import (
    BudgetExceededError,
    ContractError,
    DeadlineExceededError,
    NativeToolError,
    PromptEvaluationError,
    PromptRenderError,
    ProviderFault,
    ReducerError,
    TurnLimitError,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    NativeTool,
    Prompt,
    PromptTemplate,
    ProviderTool,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import (
    InProcessDispatcher,
    ModelResponded,
    PromptExecuted,
    PromptRendered,
    Session,
    ToolInvoked,
)
from weakincentives.testing import ScriptedAdapter, call, native, say


@dataclass(frozen=True)
class Topic:
    name: str


@dataclass(frozen=True)
class Verdict:
    summary: str
    score: int = 0


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


PING = Tool[None, None](name="ping", description="Answer.", handler=ping)
TASK = MarkdownSection[Topic](title="Task", key="task", template="Judge ${name}.", tools=[PING])
TEMPLATE = PromptTemplate[Verdict](ns="court", key="judge", name="judge_it", sections=[TASK])
USED = TokenUsage(10, 5)


def test_evaluate_returns_parsed_output_and_dispatches_events():
    session = Session()
    adapter = ScriptedAdapter([call("ping", usage=USED), say(Verdict("good", 7), usage=USED)])
    response = adapter.evaluate(Prompt(TEMPLATE), Topic("tea"), session=session)

    assert response == PromptResponse("judge_it", '{"summary":"good","score":7}', Verdict("good", 7), USED + USED, 2)
    kinds = (PromptRendered, ModelResponded, ToolInvoked, PromptExecuted)
    assert [len(session[kind].all()) for kind in kinds] == [1, 2, 1, 1]
    rendered = session[PromptRendered].all()[0]
    assert (rendered.prompt_ns, rendered.prompt_key, rendered.adapter) == ("court", "judge", "scripted")
    assert rendered.text == "## 1. Task (task)\n\nJudge tea."
    assert rendered.tool_names == ("ping",)
    assert session[PromptExecuted].all()[0].result is response
    assert [entry.kind for entry in session.transcript()] == ["prompt", "model", "tool", "model", "answer"]


def test_params_of_evaluate_do_not_change_the_prompt():
    prompt = Prompt(TEMPLATE)
    ScriptedAdapter([say(Verdict("a"))]).evaluate(prompt, Topic("tea"), session=Session())

    assert prompt.params == ()
    with pytest.raises(PromptRenderError, match=r"prompt\.bind\(Topic"):
        ScriptedAdapter([]).evaluate(prompt, session=Session())


@pytest.mark.parametrize(
    "raw, message",
    [
        ("I think it is good.", "not valid JSON"),
        ('{"score": 1}', "missing required field `summary`"),
        ('{"summary": "x", "score": "high"}', r"at \$\.score"),
        ('{"summary": "x", "verdict": 1}', "unknown key 'verdict'"),
    ],
)
def test_unparsable_answer_raises_with_the_raw_text(raw: str, message: str):
    session = Session()
    with pytest.raises(PromptEvaluationError, match=message) as caught:
        ScriptedAdapter([say(raw)]).evaluate(Prompt(TEMPLATE), Topic("tea"), session=session)

    assert caught.value.phase == "response"
    assert caught.value.prompt_name == "judge_it"
    assert caught.value.provider_payload == raw
    assert session[PromptExecuted].all() == ()


def test_parse_output_false_returns_the_text():
    response = ScriptedAdapter([say("as is")]).evaluate(
        Prompt(TEMPLATE), Topic("tea"), session=Session(), parse_output=False
    )

    assert (response.text, response.output) == ("as is", None)


def test_list_output_is_parsed_as_a_list():
    template = PromptTemplate[list[Verdict]](ns="n", key="k", sections=[TASK])
    adapter = ScriptedAdapter([say([Verdict("a", 1), Verdict("b", 2)])])

    assert adapter.evaluate(Prompt(template), Topic("x"), session=Session()).output == [
        Verdict("a", 1),
        Verdict("b", 2),
    ]


def test_budget_counts_all_requests_of_an_evaluation():
    script = [call("ping", usage=TokenUsage(40, 1)) for _ in range(3)]
    adapter = ScriptedAdapter(script)
    with pytest.raises(BudgetExceededError, match="max_input_tokens is 100, used 120") as caught:
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), budget=Budget(max_input_tokens=100))

    assert caught.value.phase == "budget"
    assert len(adapter.requests) == 3


def test_shared_tracker_counts_several_evaluations():
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    adapter = ScriptedAdapter([say(Verdict("a"), usage=TokenUsage(60, 0)) for _ in range(2)])
    adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), budget_tracker=tracker)
    with pytest.raises(BudgetExceededError):
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), budget_tracker=tracker)

    assert tracker.usage == TokenUsage(120, 0)
    with pytest.raises(ValueError, match="budget differ"):
        adapter.evaluate(
            Prompt(TEMPLATE),
            Topic("x"),
            session=Session(),
            budget=Budget(max_total_tokens=1),
            budget_tracker=tracker,
        )


def test_earlier_of_deadline_and_budget_deadline_applies():
    clock = ManualClock()
    soon, late = Deadline.after(5, clock=clock), Deadline.after(500, clock=clock)
    for deadline, budget in (
        (soon, Budget(deadline=late)),
        (late, Budget(deadline=soon)),
        (None, Budget(deadline=soon)),
    ):
        adapter = ScriptedAdapter([say(Verdict("a"))])
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), deadline=deadline, budget=budget)
        assert adapter.requests[0].deadline is soon

    clock.advance(6)
    with pytest.raises(DeadlineExceededError):
        ScriptedAdapter([]).evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), deadline=soon)


def test_turn_limit_ends_an_endless_loop():
    adapter = ScriptedAdapter((call("ping") for _ in iter(int, 1)), max_turns=25)
    with pytest.raises(TurnLimitError):
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())

    assert len(adapter.requests) == 25
    with pytest.raises(ValueError, match="max_turns"):
        ScriptedAdapter([], max_turns=0)


def test_transient_fault_is_retried_and_permanent_fault_is_a_request_error():
    clock = ManualClock()
    busy = ProviderFault("too many requests", status=429, retry_after=3, payload={"code": "rate_limit"})
    adapter = ScriptedAdapter([busy, say(Verdict("a"))], clock=clock)
    assert adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session()).output == Verdict("a")
    assert clock.slept == [3]

    adapter = ScriptedAdapter([busy, busy], clock=clock, throttle=ThrottlePolicy(max_attempts=2))
    with pytest.raises(PromptEvaluationError, match="request to scripted failed: too many requests") as caught:
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())
    assert caught.value.phase == "request"
    assert caught.value.provider_payload == {"code": "rate_limit"}
    assert caught.value.__cause__ is busy


def test_provider_run_calls_are_recorded_before_the_reply():
    found = ToolResult("3 hits", {"hits": 3})
    reply = native("web_search", params={"query": "tea"}, result=found, provider="scripted", text='{"summary":"ok"}')
    session = Session()
    ScriptedAdapter([reply]).evaluate(Prompt(TEMPLATE), Topic("x"), session=session)

    (event,) = session[ToolInvoked].all()
    assert (event.name, event.params, event.result) == ("web_search", {"query": "tea"}, found)
    assert (event.origin, event.provider, event.capability) == ("provider", "scripted", "web_search")
    assert event.rendered_output == '3 hits\n\n{"hits":3}'
    assert [entry.kind for entry in session.transcript()] == ["prompt", "tool", "model", "answer"]


def test_tool_of_another_provider_is_rejected_before_a_request():
    tool = ProviderTool[None, Verdict, None](name="vision", description="See.", provider="acme", config=None)
    section = MarkdownSection(title="Task", key="task", template="x", tools=[tool])
    adapter = ScriptedAdapter([])
    session = Session()
    with pytest.raises(PromptEvaluationError, match="for provider 'acme', but this adapter is 'scripted'") as caught:
        adapter.evaluate(Prompt[str](ns="n", key="k", sections=[section]), session=session)

    assert caught.value.phase == "request"
    assert adapter.requests == []
    assert session[PromptRendered].all() == ()


def test_native_declarations_are_part_of_the_request():
    search = NativeTool[Topic, Verdict](name="web_search", description="Search.")
    section = MarkdownSection(title="Task", key="task", template="x", tools=[search, PING])
    adapter = ScriptedAdapter([say("ok")])
    adapter.evaluate(Prompt[str](ns="n", key="k", sections=[section]), session=Session())

    request = adapter.requests[0]
    assert [declared.capability for declared in request.rendered.native_tools] == ["web_search"]
    assert request.rendered.tools == (PING,)


def test_bus_receives_each_event_once_also_if_it_is_the_sessions_dispatcher():
    for session_bus, bus in ((InProcessDispatcher(), InProcessDispatcher()), *[(one := InProcessDispatcher(), one)]):
        received: list[str] = []
        bus.subscribe(object, lambda event, received=received: received.append(type(event).__name__))
        adapter = ScriptedAdapter([call("ping"), say(Verdict("a"))])
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(bus=session_bus), bus=bus)
        assert received == ["PromptRendered", "ModelResponded", "ToolInvoked", "ModelResponded", "PromptExecuted"]


def test_failing_reducer_ends_an_evaluation_and_failing_subscriber_does_not():
    session = Session()

    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    session.dispatcher.subscribe(ToolInvoked, broken)
    adapter = ScriptedAdapter([call("ping"), say(Verdict("a")), call("ping")])
    assert adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=session).output == Verdict("a")

    session[Verdict].register(ToolInvoked, broken)
    with pytest.raises(ReducerError, match="broken"):
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=session)


def test_resources_of_the_caller_override_those_of_sections():
    class ResourceSection(MarkdownSection[None]):
        def resources(self) -> ResourceRegistry:
            return ResourceRegistry.build({Filesystem: lent, str: "lent"})

    seen: list[object] = []

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        seen.append((context.filesystem, context.resources.get(str)))
        return ToolResult("ok")

    lent, given = InMemoryFilesystem(), InMemoryFilesystem()
    tool = Tool[None, None](name="look", description="Look.", handler=look)
    prompt = Prompt[str](ns="n", key="k", sections=[ResourceSection(title="T", key="t", template="x", tools=[tool])])
    adapter = ScriptedAdapter([call("look"), say("a"), call("look"), say("b")])
    adapter.evaluate(prompt, session=Session())
    adapter.evaluate(prompt, session=Session(), resources=ResourceRegistry.build({Filesystem: given}))

    assert seen == [(lent, "lent"), (given, "lent")]


def test_opened_section_adds_its_tools_and_stays_open():
    secret = MarkdownSection(
        title="Details",
        key="details",
        template="The long story.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[PING],
    )
    prompt = Prompt[str](
        ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template="x", children=[secret])]
    )
    session = Session()
    adapter = ScriptedAdapter(
        [call("ping"), call("open_section", path="task.details"), call("ping"), say("done"), say("again")]
    )
    adapter.evaluate(prompt, session=session)

    offered = [[tool.name for tool in request.rendered.tools] for request in adapter.requests]
    assert offered == [["open_section"], ["open_section"], ["ping"], ["ping"]]
    assert [event.success for event in session[ToolInvoked].all()] == [False, True, True]
    assert "The long story." in session[ToolInvoked].all()[1].rendered_output
    texts = {request.rendered.text for request in adapter.requests}
    assert len(texts) == 1  # the cached prefix does not change

    adapter.evaluate(prompt, session=session)
    assert "The long story." in adapter.requests[-1].rendered.text


def test_history_is_not_copied_per_turn():
    adapter = ScriptedAdapter([call("ping") for _ in range(50)] + [say(Verdict("a"))])
    adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())

    buffers = {id(request.history._buffer) for request in adapter.requests[1:]}
    assert len(buffers) == 1
    assert [len(request.history) for request in adapter.requests] == list(range(0, 101, 2))


def test_replies_are_replayed_with_unchanged_provider_items():
    opaque = {"type": "reasoning", "encrypted_content": "…"}
    reply = ModelReply(calls=call("ping").calls, items=(opaque,))
    adapter = ScriptedAdapter([reply, say(Verdict("a"))])
    adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())

    first = adapter.requests[1].history.all()[0]
    assert isinstance(first, ModelReply)
    assert first.items[0] is opaque


def test_evaluate_rejects_a_template_and_suggests_a_prompt():
    with pytest.raises(TypeError, match=r"write Prompt\(template\)"):
        ScriptedAdapter([]).evaluate(TEMPLATE, session=Session())  # pyright: ignore[reportArgumentType] - the point


def test_tool_choice_of_an_unknown_tool_is_rejected_before_a_request():
    adapter = ScriptedAdapter([], tool_choice=NamedTool("nope"))
    with pytest.raises(PromptEvaluationError, match="names 'nope', which the prompt does not have") as caught:
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())
    assert caught.value.phase == "request"
    assert adapter.requests == []


@pytest.mark.parametrize("of_prompt, used", [("required", "required"), ("auto", "auto"), (None, "none")])
def test_tool_choice_of_the_prompt_takes_precedence(of_prompt, used):
    adapter = ScriptedAdapter([say("done")], tool_choice="none")
    section = MarkdownSection(title="Task", key="task", template="Do it.")
    adapter.evaluate(Prompt(ns="n", key="k", sections=[section], tool_choice=of_prompt), session=Session())

    assert [request.tool_choice for request in adapter.requests] == [used]


SEARCH = NativeDeclaration("web_search", "web_search", "scripted", origin="the adapter")


def test_native_tools_of_the_adapter_are_kept_when_a_section_is_opened():
    secret = MarkdownSection(
        title="Details", key="details", template="More.", summary="More.", visibility=SectionVisibility.SUMMARY
    )
    adapter = ScriptedAdapter([call("open_section", path="details"), say("done")])
    adapter.native_tools = (SEARCH,)
    session = Session()
    adapter.evaluate(Prompt[str](ns="n", key="k", sections=[secret]), session=session)

    assert [request.rendered.native_tools for request in adapter.requests] == [(SEARCH,), (SEARCH,)]
    assert session[PromptRendered].all()[0].native_tool_names == ("web_search",)


@pytest.mark.parametrize(
    "tool, message",
    [
        (NativeTool[None, dict](name="web_search", description="Search."), "by section 'task' and by the adapter"),
        (
            Tool[None, None](name="web_search", description="Mine.", handler=ping),
            "by section 'task' and by the adapter",
        ),
    ],
)
def test_native_tool_of_the_adapter_collides_with_one_of_the_prompt(tool, message):
    adapter = ScriptedAdapter([])
    adapter.native_tools = (SEARCH,)
    section = MarkdownSection(title="Task", key="task", template="x", tools=[tool])
    with pytest.raises(NativeToolError, match=f"'web_search' is declared {message}") as caught:
        adapter.evaluate(Prompt[str](ns="n", key="k", sections=[section]), session=Session())

    assert (caught.value.prompt_name, caught.value.phase) == ("k", "request")


def test_fault_after_the_deadline_is_a_deadline_error():
    clock = ManualClock()

    def slow(request: object) -> ModelReply:
        clock.advance(10)
        raise ProviderFault("timed out")

    adapter = ScriptedAdapter([slow], clock=clock)
    with pytest.raises(DeadlineExceededError, match="after 0 turns") as caught:
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session(), deadline=Deadline.after(5, clock=clock))

    assert isinstance(caught.value.__cause__, ProviderFault)


def test_cleanup_runs_after_success_and_failure():
    class CleanupAdapter(ScriptedAdapter):
        def connect(self, evaluation: Evaluation) -> Connection:
            evaluation.cleanup.callback(tidied.append, evaluation.prompt.name)
            return super().connect(evaluation)

    tidied: list[str] = []
    adapter = CleanupAdapter([say(Verdict("a"))])
    adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())
    with pytest.raises(PromptEvaluationError, match="has no reply"):
        adapter.evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())

    assert tidied == ["judge_it", "judge_it"]


def test_output_is_parsed_from_final_text():
    reply = ModelReply(text='Well.\n\n{"summary": "good"}', final_text='{"summary": "good"}')
    response = ScriptedAdapter([reply]).evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())

    assert response.output == Verdict("good")
    assert response.text == 'Well.\n\n{"summary": "good"}'


def test_contract_requires_output_of_the_declared_type(monkeypatch):
    monkeypatch.setattr("weakincentives.adapters.core.parse_output", lambda text, rendered: text)

    with pytest.raises(ContractError, match="the output is an instance of the prompt's output type"):
        ScriptedAdapter([say(Verdict("a"))]).evaluate(Prompt(TEMPLATE), Topic("x"), session=Session())
