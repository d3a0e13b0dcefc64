from __future__ import annotations

from typing import Any

import pytest

from weakincentives.adapters.turn import (
    CallModel,
    EvaluationLimits,
    LoopResult,
    ModelReply,
    NamedTool,
    NativeCall,
    Record,
    RunTool,
    ToolCall,
    ToolOutput,
    ToolRunResult,
    agent_loop,
    relax_tool_choice,
)
from weakincentives.budget import Budget, BudgetTracker, TokenUsage
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError, TurnLimitError
from weakincentives.prompt import MarkdownSection, Prompt, RenderedPrompt, ToolResult

LIMITS = EvaluationLimits("p", max_turns=10)
NATIVE = NativeCall("n1", "web_search", "web_search", "openai", {"query": "x"}, ToolResult("found"))


def rendered() -> RenderedPrompt[Any]:
    section = MarkdownSection(title="Task", key="task", template="Do.")
    return Prompt[str](ns="n", key="k", sections=[section]).render()


def ran(call: ToolCall, text: str = "ok") -> ToolRunResult:
    return ToolRunResult(ToolOutput(call.call_id, call.name, text, success=True))


def test_loop_calls_model_records_runs_tool_and_calls_model_again():
    prompt = rendered()
    loop = agent_loop(prompt, limits=LIMITS)
    first = next(loop)
    assert isinstance(first, CallModel)
    assert first.request.rendered is prompt
    assert first.request.history.all() == ()

    call = ToolCall("c1", "ls")
    reply = ModelReply(text="Looking.", calls=(call,), native_calls=(NATIVE,), usage=TokenUsage(5, 1))
    assert loop.send(reply) == Record(NATIVE, 0)  # provider-run calls are recorded before the reply
    assert loop.send(None) == Record(reply, 0)
    assert loop.send(None) == RunTool(call)
    again = loop.send(ran(call))
    assert isinstance(again, CallModel)
    assert again.request.history.all() == (reply, ToolOutput("c1", "ls", "ok", success=True))
    assert again.request.turn == 1
    assert first.request.history.all() == ()

    final = ModelReply(text="Done.", usage=TokenUsage(7, 2), citations=("cited",))
    assert loop.send(final) == Record(final, 1)
    with pytest.raises(StopIteration) as stop:
        loop.send(None)
    assert stop.value.value == LoopResult("Done.", TokenUsage(12, 3), 2, ("cited",))


def test_no_tool_runs_after_the_deadline():
    clock = ManualClock()
    loop = agent_loop(rendered(), limits=EvaluationLimits("p", max_turns=10, deadline=Deadline.after(60, clock=clock)))
    next(loop)
    one, two = ToolCall("c1", "a"), ToolCall("c2", "b")
    loop.send(ModelReply(text="Both.", calls=(one, two)))
    assert loop.send(None) == RunTool(one)
    clock.advance(60)

    with pytest.raises(DeadlineExceededError, match="after 1 turns") as caught:
        loop.send(ran(one))
    assert caught.value.provider_payload == "Both."


def test_parallel_calls_run_in_order():
    loop = agent_loop(rendered(), limits=LIMITS)
    next(loop)
    one, two = ToolCall("c1", "a"), ToolCall("c2", "b")
    loop.send(ModelReply(calls=(one, two)))

    assert loop.send(None) == RunTool(one)
    assert loop.send(ran(one)) == RunTool(two)
    step = loop.send(ran(two))
    assert isinstance(step, CallModel)
    assert [type(item) for item in step.request.history] == [ModelReply, ToolOutput, ToolOutput]


@pytest.mark.parametrize("choice, satisfied_by", [("required", "anything"), (NamedTool("ls"), "ls")])
def test_tool_choice_is_kept_until_it_is_satisfied(choice: Any, satisfied_by: str):
    assert relax_tool_choice(choice, ModelReply(text="no call")) == choice
    assert relax_tool_choice(choice, ModelReply(calls=(ToolCall("c", satisfied_by),))) == "auto"
    assert relax_tool_choice("none", ModelReply(native_calls=(NATIVE,))) == "none"


def test_named_tool_choice_is_satisfied_by_a_native_call_but_not_by_another_tool():
    assert relax_tool_choice(NamedTool("ls"), ModelReply(calls=(ToolCall("c", "rm"),))) == NamedTool("ls")
    assert relax_tool_choice(NamedTool("web_search"), ModelReply(native_calls=(NATIVE,))) == "auto"


def test_required_applies_to_the_first_request_only():
    loop = agent_loop(rendered(), limits=LIMITS, tool_choice="required")
    first = next(loop)
    call = ToolCall("c", "ls")
    loop.send(ModelReply(calls=(call,)))
    loop.send(None)
    second = loop.send(ran(call))

    assert isinstance(first, CallModel)
    assert isinstance(second, CallModel)
    assert (first.request.tool_choice, second.request.tool_choice) == ("required", "auto")


def test_tool_may_change_the_tools_of_the_next_request():
    loop = agent_loop(rendered(), limits=LIMITS)
    next(loop)
    call = ToolCall("c", "open_section")
    loop.send(ModelReply(calls=(call,)))
    loop.send(None)
    changed = rendered()
    step = loop.send(ToolRunResult(ToolOutput("c", "open_section", "text", success=True), changed))

    assert isinstance(step, CallModel)
    assert step.request.rendered is changed


def test_turn_limit_ends_the_loop():
    loop = agent_loop(rendered(), limits=EvaluationLimits("p", max_turns=1))
    next(loop)
    call = ToolCall("c", "ls")
    loop.send(ModelReply(text="thinking", calls=(call,)))
    loop.send(None)
    with pytest.raises(TurnLimitError, match="after 1 turns") as caught:
        loop.send(ran(call))
    assert caught.value.phase == "budget"
    assert caught.value.provider_payload == "thinking"


def test_passed_deadline_ends_the_loop_before_the_next_request():
    clock = ManualClock()
    loop = agent_loop(rendered(), limits=EvaluationLimits("p", 10, Deadline.after(5, clock=clock)))
    next(loop)
    call = ToolCall("c", "ls")
    loop.send(ModelReply(calls=(call,)))
    loop.send(None)
    clock.advance(6)
    with pytest.raises(DeadlineExceededError):
        loop.send(ran(call))


def test_exceeded_budget_ends_the_loop_with_the_last_text():
    tracker = BudgetTracker(Budget(max_total_tokens=10))
    loop = agent_loop(rendered(), limits=EvaluationLimits("p", 10, tracker=tracker))
    next(loop)
    tracker.record(TokenUsage(20, 1))  # recorded by the driver
    loop.send(ModelReply(text="a long answer"))
    with pytest.raises(BudgetExceededError, match="max_total_tokens is 10, used 21") as caught:
        loop.send(None)
    assert caught.value.provider_payload == "a long answer"


def test_loop_result_has_all_citations_and_the_final_text():
    loop = agent_loop(rendered(), limits=LIMITS)
    next(loop)
    call = ToolCall("c1", "ls")
    loop.send(ModelReply(calls=(call,), citations=("first",)))
    loop.send(None)
    loop.send(ran(call))
    loop.send(ModelReply(text="Well.\n\nDone.", final_text="Done.", citations=("second",)))
    with pytest.raises(StopIteration) as stop:
        loop.send(None)

    assert stop.value.value == LoopResult("Well.\n\nDone.", TokenUsage(), 2, ("first", "second"), "Done.")


def test_reply_with_error_is_recorded_before_the_loop_ends():
    loop = agent_loop(rendered(), limits=LIMITS)
    next(loop)
    error = PromptEvaluationError("cut off", prompt_name="p", phase="response")
    reply = ModelReply(text="half", native_calls=(NATIVE,), calls=(ToolCall("c1", "ls"),), error=error)

    assert loop.send(reply) == Record(NATIVE, 0)
    assert loop.send(None) == Record(reply, 0)
    with pytest.raises(PromptEvaluationError) as caught:
        loop.send(None)
    assert caught.value is error


def test_usage_of_other_requests_is_part_of_the_result():
    loop = agent_loop(rendered(), limits=LIMITS)
    next(loop)
    loop.send(ModelReply(text="Done.", usage=TokenUsage(5, 1), other_usage=TokenUsage(20, 2)))
    with pytest.raises(StopIteration) as stop:
        loop.send(None)

    assert stop.value.value.usage == TokenUsage(25, 3)
