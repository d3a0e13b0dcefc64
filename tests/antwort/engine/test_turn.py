from __future__ import annotations

import pytest
from fixtures_compaction import message, unpaired
from fixtures_sealing import tenant_sealer
from fixtures_turn import OpeningTools, TurnRunner, check_grammar, used
from fold import fold
from hypothesis import given
from hypothesis import strategies as st

from antwort.api import events as wire
from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.items import OutputText
from antwort.api.responses import CompactionNote, Usage
from antwort.engine.commands import Cancelled
from antwort.engine.compaction.compactor import Compactor
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.compaction.retention import Budgets
from antwort.engine.ports import (
    CallPiece,
    CompactionPiece,
    EncryptedReasoning,
    Finished,
    ModelFault,
    MustCall,
    ReasoningPiece,
    RefusalPiece,
    SamplingOptions,
    SummaryPiece,
    TextPiece,
)
from antwort.models.tokens import estimate_request

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "shout"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}


def test_text_events_have_the_order_of_the_wire():
    runner = TurnRunner({}, [TextPiece("Hel"), TextPiece("lo"), used()])
    response = runner.run()

    assert runner.kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    check_grammar(runner.events)
    assert response.output[0]["content"][0]["text"] == "Hello"
    assert (response.status, response.completed_at) == ("completed", 2)
    assert response.usage is not None
    assert response.usage.total_tokens == 11


def test_included_logprobs_are_in_deltas_parts_and_the_item():
    one, two, half = ({"token": token, "logprob": -1.0} for token in ("Hel", "lo", ""))
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = [TextPiece("", (half,)), TextPiece("Hel", (one,)), TextPiece("", (half,)), TextPiece("lo", (two,)), used()]
    runner = TurnRunner(include, reply)
    response = runner.run()

    deltas = [event.logprobs for event in runner.events if isinstance(event, wire.OutputTextDelta)]
    assert deltas == [[one], [half], [two]]
    [done] = [event for event in runner.events if isinstance(event, wire.OutputTextDone)]
    [part] = [event.part for event in runner.events if isinstance(event, wire.ContentPartDone)]
    assert isinstance(part, OutputText)
    assert done.logprobs == part.logprobs == response.output[0]["content"][0]["logprobs"] == [one, half, two]
    assert runner.requests[0].top_logprobs == 2


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, None),
        ({"top_logprobs": 2}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 5),
    ],
)
def test_logprobs_are_requested_only_if_included(given, expected):
    runner = TurnRunner(given, [used()])
    runner.run()

    assert runner.requests[0].top_logprobs == expected


def test_reasoning_refusal_and_summary_events_have_the_order_of_the_wire():
    reply = [ReasoningPiece("Hm"), SummaryPiece("Hm."), EncryptedReasoning("x"), RefusalPiece("No."), used()]
    runner = TurnRunner({}, reply)
    response = runner.run()

    assert runner.kinds[2:-1] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "refusal.delta",
        "refusal.done",
        "content_part.done",
        "output_item.done",
    ]
    reasoning, message = response.output
    assert (reasoning["encrypted_content"], reasoning["summary"][0]["text"]) == ("x", "Hm.")
    assert message["content"] == [{"type": "refusal", "refusal": "No."}]


def test_a_custom_tool_gets_text_that_is_not_json():
    reply = [CallPiece(0, "shout", "c", "hey "), CallPiece(0, arguments="you"), Finished("calls")]
    runner = TurnRunner({"tools": [CUSTOM]}, reply)
    response = runner.run()

    check_grammar(runner.events)
    assert response.output[0]["input"] == "hey you"
    deltas = [event.delta for event in runner.events if isinstance(event, wire.CustomInputDelta)]
    assert deltas == ["hey ", "you"]


def test_a_hosted_call_runs_and_the_model_reads_its_output():
    call = [TextPiece("Let me see."), CallPiece(0, "file_search", "call_1", '{"q": 1}'), Finished("calls")]
    runner = TurnRunner({"tools": [SEARCH]}, call, [TextPiece("Found."), used(5)])
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == ["message", "file_search_call", "message"]
    assert response.output[1]["queries"] == ['{"q": 1}']
    assert [item.type for item in runner.history()] == ["message", "message", "function_call", "function_call_output"]
    assert runner.history()[-1].raw["output"] == 'echo {"q": 1}'
    searching = [kind for kind in runner.kinds if kind.startswith("file_search_call")]
    assert searching == [f"file_search_call.{step}" for step in ("in_progress", "searching", "completed")]


def test_hosted_calls_run_and_client_side_calls_of_the_same_reply_are_returned():
    calls = [CallPiece(0, "file_search", "c1", "{}"), CallPiece(1, "add", "c2", "{}"), Finished("calls")]
    runner = TurnRunner({"tools": [SEARCH, FUNCTION]}, calls)
    response = runner.run()

    check_grammar(runner.events)
    assert [(item["type"], item["status"]) for item in response.output] == [
        ("file_search_call", "completed"),
        ("function_call", "completed"),
    ]


@pytest.mark.parametrize(
    "choice, expected", [("required", "required"), ({"type": "file_search"}, MustCall("file_search"))]
)
def test_a_forced_choice_is_forced_once(choice: object, expected: object):
    call = [CallPiece(0, "file_search", "c", "{}"), Finished("calls")]
    runner = TurnRunner({"tools": [SEARCH], "tool_choice": choice}, call, [TextPiece("ok"), used()])
    runner.run()

    assert [request.choice for request in runner.requests] == [expected, "auto"]


def test_calls_past_max_tool_calls_are_refused():
    calls = [CallPiece(at, "file_search", f"c{at}", "{}") for at in range(3)]
    runner = TurnRunner(
        {"tools": [SEARCH], "max_tool_calls": 2}, [*calls, Finished("calls")], [TextPiece("ok"), used()]
    )
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == ["file_search_call", "file_search_call", "message"]
    assert runner.requests[1].tools == ()
    assert "No more tool calls" in runner.history()[-1].raw["output"]


def test_a_call_of_an_undeclared_tool_is_refused_without_an_item():
    runner = TurnRunner(
        {"tools": [FUNCTION]}, [CallPiece(0, "rm", "c", "{}"), Finished("calls")], [TextPiece("ok"), used()]
    )
    response = runner.run()

    assert [item["type"] for item in response.output] == ["message"]
    assert runner.history()[-1].raw["output"] == "There is no tool 'rm'."


def test_max_turns_ends_an_endless_loop_of_calls():
    call = [CallPiece(0, "file_search", "c", "{}"), Finished("calls")]
    runner = TurnRunner({"tools": [SEARCH]}, *[call] * 5, max_turns=3)
    response = runner.run()

    check_grammar(runner.events)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_messages"
    assert len(runner.requests) == 3


def test_output_tokens_are_counted_over_all_requests():
    call = [CallPiece(0, "file_search", "c", "{}"), used(30)]
    cut = [TextPiece("so far"), Finished("length")]
    runner = TurnRunner({"tools": [SEARCH], "max_output_tokens": 100}, call, cut)
    response = runner.run()

    assert [request.max_output_tokens for request in runner.requests] == [100, 70]
    assert response.status == "incomplete"
    assert response.output[1]["status"] == "incomplete"
    check_grammar(runner.events)


@pytest.mark.parametrize("spent, limits", [(84, [100, 16]), (85, [100]), (100, [100]), (120, [100])])
def test_the_model_is_not_asked_again_with_fewer_than_16_tokens_left(spent, limits):
    call = [CallPiece(0, "file_search", "c", "{}"), used(spent)]
    runner = TurnRunner({"tools": [SEARCH], "max_output_tokens": 100}, call, [Finished("length")])
    response = runner.run()

    check_grammar(runner.events)
    assert [request.max_output_tokens for request in runner.requests] == limits
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item["status"] for item in response.output] == ["completed"]


def test_a_model_fault_fails_the_response_and_keeps_the_partial_output():
    fault = ModelFault("The model is overloaded.", code="rate_limit_exceeded")
    runner = TurnRunner({}, [TextPiece("Half a"), fault])
    response = runner.run()

    assert runner.kinds[-2:] == ["error", "failed"]
    assert response.status == "failed"
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("rate_limit_exceeded", "The model is overloaded.")
    assert response.output[0]["status"] == "incomplete"
    assert fold(runner.events) == response


@pytest.mark.parametrize(
    "status, kind", [(429, "rate_limit_error"), (400, "invalid_request_error"), (502, "server_error")]
)
def test_the_error_type_follows_the_status(status, kind):
    runner = TurnRunner({}, [ModelFault("No.", status=status)])
    runner.run()

    [error] = [event.error for event in runner.events if isinstance(event, wire.ErrorEvent)]
    assert error.type == kind


LONG = {"input": [{"role": "user", "content": f"{at}"} for at in range(9)]}
TOO_LONG = ModelFault("Too long.", code="context_length_exceeded", status=400)


def test_truncation_auto_cuts_the_history_until_it_fits():
    runner = TurnRunner({**LONG, "truncation": "auto"}, [TOO_LONG], [TOO_LONG], [TextPiece("ok"), used()])
    response = runner.run()

    check_grammar(runner.events)
    assert (response.status, response.truncation) == ("completed", "auto")
    assert [len(request.items) for request in runner.requests] == [9, 5, 3]
    assert runner.history()[-1].raw["content"] == "8"


def test_context_length_exceeded_is_an_error_if_nothing_may_be_dropped():
    for fields in (LONG, {"truncation": "auto"}):
        runner = TurnRunner(fields, [TOO_LONG])
        response = runner.run()

        assert response.error is not None
        assert (response.status, response.error.code) == ("failed", "context_length_exceeded")


@pytest.mark.parametrize("is_ceiling, requests", [(True, [9000, None]), (False, [9000])])
def test_an_output_limit_that_the_model_refuses_is_left_out_if_it_is_a_ceiling(is_ceiling, requests):
    refused = ModelFault("max_tokens is too large.", code="invalid_prompt", status=400)
    refused.exceeds_output_limit = True
    runner = TurnRunner({"max_output_tokens": 9000}, [refused], [TextPiece("ok"), used()])
    runner.turn.sampling = SamplingOptions(max_output_is_ceiling=is_ceiling)

    assert runner.run().status == ("completed" if is_ceiling else "failed")
    assert [request.max_output_tokens for request in runner.requests] == requests


def test_another_fault_or_one_after_the_first_piece_does_not_truncate():
    for reply in ([ModelFault("No.")], [TextPiece("Half"), TOO_LONG]):
        runner = TurnRunner({**LONG, "truncation": "auto"}, reply)

        assert runner.run().status == "failed"
        assert len(runner.requests) == 1


@pytest.mark.parametrize("tool, made", [(FUNCTION, "function_call"), (SEARCH, "file_search_call")])
def test_without_parallel_tool_calls_only_the_first_call_is_made(tool, made):
    name = tool.get("name", "file_search")
    calls = [CallPiece(at, name, f"c{at}", "{}") for at in range(3)]
    runner = TurnRunner({"tools": [tool], "parallel_tool_calls": False}, [*calls, Finished("calls")], [used()])
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == [made]
    if tool is SEARCH:
        outputs = [item.raw["output"] for item in runner.history() if item.type == "function_call_output"]
        assert [text.startswith("Only one tool call at a time") for text in outputs] == [False, True, True]


def test_a_cancelled_turn_leaves_no_item_in_progress():
    runner = TurnRunner({"tools": [FUNCTION]}, [TextPiece("Half"), CallPiece(0, "add", "c"), Cancelled()])
    response = runner.run()

    check_grammar(runner.events)
    assert (response.status, response.usage, runner.kinds[-1]) == ("cancelled", None, "incomplete")
    assert [item["status"] for item in response.output] == ["completed", "incomplete"]
    assert fold(runner.events) == response


def test_a_cancelled_message_is_closed():
    runner = TurnRunner({}, [TextPiece("Half"), Cancelled()])
    runner.run()

    assert runner.kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]


def test_only_allowed_tools_are_offered():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    runner = TurnRunner({"tools": [FUNCTION, SEARCH], "tool_choice": choice}, [CallPiece(0, "add", "c", "{}"), used()])
    runner.run()

    assert [spec.name for spec in runner.requests[0].tools] == ["add"]
    assert runner.requests[0].choice == "required"


ONLY_ADD = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}


@pytest.mark.parametrize(
    "choice, name",
    [("none", "file_search"), ("none", "add"), (ONLY_ADD, "file_search"), (ONLY_ADD, "shout")],
)
def test_a_forbidden_call_is_refused(choice, name):
    call = [CallPiece(0, name, "c", "{}"), Finished("calls")]
    tools = [FUNCTION, CUSTOM, SEARCH]
    runner = TurnRunner({"tools": tools, "tool_choice": choice}, call, [TextPiece("ok"), used()])
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == ["message"]
    assert runner.tools.opened == 0
    assert "must not be called" in runner.history()[-1].raw["output"]
    assert runner.requests[1].choice == runner.requests[0].choice


def test_approved_calls_do_not_meet_a_forced_choice():
    choice = {"type": "function", "name": "add"}
    call = [CallPiece(0, "add", "c", "{}"), Finished("calls")]
    runner = TurnRunner({"tools": [SEARCH, FUNCTION], "tool_choice": choice}, call, tools=OpeningTools)
    response = runner.run()

    assert runner.requests[0].choice == MustCall("add")
    kinds = ["mcp_list_tools", "file_search_call", "file_search_call", "function_call"]
    assert [item["type"] for item in response.output] == kinds


def test_an_unsupported_tool_type_is_refused_by_name():
    with pytest.raises(ApiError, match="Tool type 'web_search' is not available"):
        TurnRunner({"tools": [{"type": "web_search"}]})


def test_a_defect_of_the_turn_fails_the_response_with_an_end():
    runner = TurnRunner({}, [TextPiece("ok"), used()])
    runner.turn._now = lambda: 1 // 0
    response = runner.run()

    assert runner.kinds[-2:] == ["error", "failed"]
    assert (response.status, response.error and response.error.code) == ("failed", "server_error")
    assert runner.turn.fault is not None
    assert runner.turn.fault.status == 500
    assert isinstance(runner.turn.fault.__cause__, ZeroDivisionError)


pieces = st.one_of(
    st.builds(TextPiece, st.text(max_size=5)),
    st.builds(RefusalPiece, st.text(max_size=5)),
    st.builds(ReasoningPiece, st.text(max_size=5)),
    st.builds(SummaryPiece, st.text(max_size=5)),
    st.builds(EncryptedReasoning, st.text(max_size=5)),
    st.builds(
        CallPiece,
        st.integers(0, 3),
        st.sampled_from(["add", "shout", "file_search", "unknown"]),
        st.just(""),
        st.text(alphabet='{}":,in\\u0041', max_size=6),
    ),
)
endings = st.builds(Finished, st.sampled_from(["stop", "length", "content_filter", "calls"]))
replies = st.tuples(st.lists(pieces, max_size=12), endings | st.builds(ModelFault, st.text())).map(
    lambda pair: [*pair[0], pair[1]]
)


choices = st.sampled_from(["auto", "required", {"type": "function", "name": "add"}, {"type": "file_search"}])


@given(st.lists(replies, min_size=1, max_size=4), st.none() | st.integers(1, 2), choices)
def test_any_reply_keeps_the_grammar_and_folds_to_the_response(model_replies, limit, choice):
    request = {"tools": [FUNCTION, CUSTOM, SEARCH], "max_tool_calls": limit, "tool_choice": choice}
    runner = TurnRunner(request, *model_replies, [used()], max_turns=len(model_replies) + 1)
    response = runner.run()

    check_grammar(runner.events)
    assert response.ended
    assert [unpaired(request.items) for request in runner.requests] == [[]] * len(runner.requests)
    assert fold(runner.events) == response
    assert all(item.get("status") != "in_progress" for item in response.output)


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────

TOO_LONG = ModelFault("It is too long.", code="context_length_exceeded", status=400)
SUMMARY = [TextPiece("Fact: "), TextPiece("blue"), used(7)]


def compacting(*, threshold: int | None = 1000, triggered: bool = False):
    """A plan with small budgets."""

    def plan(history):
        compactor = Compactor(tenant_sealer(), "writer", Budgets(125, 250, 125), threshold)
        return CompactionPlan(compactor, triggered, transcript=history, history=history)

    return plan


def long_input(turns: int = 20) -> list:
    steps = (
        (message(f"question {n} " + "why " * 40), message(f"answer {n} " + "so " * 40, "assistant"))
        for n in range(turns)
    )
    return [item for step in steps for item in step]


def test_a_trigger_gives_one_compaction_item_and_no_answer():
    runner = TurnRunner({}, SUMMARY, history=long_input(), compaction=compacting(threshold=None, triggered=True))
    response = runner.run()

    assert runner.kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
        "completed",
    ]
    check_grammar(runner.events)
    [item] = response.output
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert item["encrypted_content"].startswith("antwort1.")
    assert response.usage is not None
    assert response.usage.output_tokens == 7
    assert len(runner.summary_requests) == len(runner.requests) == 1
    assert isinstance(response.compaction, CompactionNote)
    assert response.compaction.method == "summary"


def test_an_answer_above_the_threshold_is_followed_by_a_compaction():
    answer = [TextPiece("Yes."), Finished("stop", Usage(input_tokens=990, output_tokens=11, total_tokens=1001))]
    runner = TurnRunner({}, answer, SUMMARY, history=long_input(8), compaction=compacting())
    runner.counts = [990]
    response = runner.run()

    assert [item["type"] for item in response.output] == ["message", "compaction"]
    assert runner.kinds[-4:] == ["output_item.done", "output_item.added", "output_item.done", "completed"]
    check_grammar(runner.events)
    assert fold(runner.events) == response
    assert response.usage is not None
    assert response.usage.output_tokens == 18
    assert "Yes." in str([item.raw for item in runner.summary_requests[0].items])


def test_a_history_above_the_threshold_is_compacted_before_the_answer():
    runner = TurnRunner({}, SUMMARY, [TextPiece("Yes."), used()], history=long_input(), compaction=compacting())
    response = runner.run()

    assert [item["type"] for item in response.output] == ["compaction", "message"]
    check_grammar(runner.events)
    assert "Fact: blue" in str([item.raw for item in runner.history()])
    assert estimate_request(runner.requests[-1]) < 1000


def test_a_history_below_the_threshold_is_not_compacted():
    runner = TurnRunner({}, [TextPiece("Yes."), used()], history=long_input(2), compaction=compacting())

    assert [item["type"] for item in runner.run().output] == ["message"]
    assert runner.summary_requests == []


def test_the_results_of_hosted_calls_can_need_a_compaction():
    big = used(1)
    replies = (
        [CallPiece(0, "file_search", "c1", '{"q": "' + "x" * 6000 + '"}'), big],
        SUMMARY,
        [CallPiece(0, "file_search", "c2", "{}"), big],
        [TextPiece("Yes."), big],
    )
    runner = TurnRunner({"tools": [SEARCH]}, *replies, compaction=compacting())
    response = runner.run()

    kinds = [item["type"] for item in response.output]
    assert kinds == ["file_search_call", "compaction", "file_search_call", "message"]
    check_grammar(runner.events)
    for request in runner.requests:
        assert unpaired(request.items) == []
        assert not any(item.type == "compaction" for item in request.items)
    assert "Fact: blue" in str([item.raw for item in runner.requests[-1].items])


def test_a_model_that_finds_the_history_too_long_gets_it_compacted():
    replies = ([TOO_LONG], SUMMARY, [CallPiece(0, "file_search", "c1", "{}"), used()], [TextPiece("Yes."), used()])
    runner = TurnRunner({"tools": [SEARCH]}, *replies, history=long_input(), compaction=compacting(threshold=100_000))
    runner.counts = [10, 10, 10]
    response = runner.run()

    assert [item["type"] for item in response.output] == ["compaction", "file_search_call", "message"]
    check_grammar(runner.events)
    assert all(item.type != "compaction" for request in runner.requests for item in request.items)


def test_a_model_that_always_finds_the_history_too_long_fails_once_nothing_can_be_dropped():
    replies = [[TOO_LONG], SUMMARY] * 10
    runner = TurnRunner({}, *replies, history=[*long_input(), message("Go on.")], compaction=compacting())
    runner.counts = [10]
    response = runner.run()

    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "context_length_exceeded"
    assert 1 <= len(response.output) < 10
    sizes = [estimate_request(request) for request in runner.requests if request not in runner.summary_requests]
    assert sizes == sorted(sizes, reverse=True)
    assert runner.history()[-1].raw == message("Go on.").raw


def test_without_a_threshold_a_history_that_is_too_long_is_an_error():
    runner = TurnRunner({}, [TOO_LONG], history=long_input(), compaction=compacting(threshold=None))

    assert runner.run().status == "failed"


def test_tokens_are_estimated_if_the_model_cannot_count_them():
    runner = TurnRunner({}, SUMMARY, [TextPiece("Yes."), used()], history=long_input(), compaction=compacting())
    runner.counts = [ModelFault("The tokenizer is down.")]
    response = runner.run()

    assert [item["type"] for item in response.output] == ["compaction", "message"]


def test_open_client_calls_stay_open_after_a_compaction_at_the_end():
    replies = ([TextPiece("I look."), CallPiece(0, "add", "c1", '{"a": 1}'), Finished("calls")], SUMMARY)
    runner = TurnRunner({"tools": [FUNCTION]}, *replies, history=long_input(8), compaction=compacting())
    runner.counts = [990, 1001]
    response = runner.run()

    assert [item["type"] for item in response.output] == ["message", "function_call", "compaction"]
    assert runner.turn.compacted is not None
    assert runner.turn.compacted.window[-1].raw == response.output[1]
    assert "called add" in runner.summary_requests[0].items[-1].raw["content"]
    assert unpaired(runner.summary_requests[0].items) == []


def test_the_summary_does_not_count_against_max_output_tokens():
    replies = (SUMMARY, [CallPiece(0, "file_search", "c1", "{}"), used(5)], [TextPiece("Yes."), used(1)])
    request = {"max_output_tokens": 100, "tools": [SEARCH]}
    runner = TurnRunner(request, *replies, history=long_input(), compaction=compacting())
    response = runner.run()

    assert [sent.max_output_tokens for sent in runner.requests] == [250, 100, 95]
    assert response.usage is not None
    assert response.usage.output_tokens == 13


def test_a_cancelled_summary_leaves_no_item():
    runner = TurnRunner({}, [TextPiece("half"), Cancelled()], history=long_input(), compaction=compacting())
    response = runner.run()

    assert (response.status, response.output) == ("cancelled", [])
    assert runner.kinds == ["created", "in_progress", "output_item.added", "incomplete"]
    runner = TurnRunner(
        {},
        [TextPiece("Yes."), used()],
        [TextPiece("half"), Cancelled()],
        history=long_input(8),
        compaction=compacting(),
    )
    runner.counts = [990]
    runner.replies[0] = [TextPiece("Yes."), Finished("stop", Usage(2000, total_tokens=2000))]
    response = runner.run()
    assert [item["type"] for item in response.output] == ["message"]


def test_attachments_of_retained_messages_are_shown_after_a_compaction():
    stored = items.read({"role": "user", "content": [{"type": "input_image", "file_id": "file-abcdefgh"}]})
    resolved = items.read(
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,A"}]}
    )
    history, transcript = [*long_input(), resolved], [*long_input(), stored]

    def plan(_):
        compactor = Compactor(tenant_sealer(), "writer", Budgets(125, 250, 125), 1000)
        return CompactionPlan(compactor, transcript=transcript, history=history)

    runner = TurnRunner({}, SUMMARY, [TextPiece("Yes."), used()], history=history, compaction=plan)
    runner.run()

    assert runner.requests[-1].items[-1] == resolved
    assert runner.turn.compacted is not None
    assert runner.turn.compacted.window[-1] == stored


def test_an_item_of_an_upstream_that_compacts_is_passed_through():
    item = {"type": "compaction", "id": "cmp_9", "encrypted_content": "gAAAAAB"}
    runner = TurnRunner({}, [TextPiece("Yes."), CompactionPiece(item), TextPiece("And?"), used()])
    response = runner.run()

    assert [one["type"] for one in response.output] == ["message", "compaction", "message"]
    assert response.output[1] == item
    check_grammar(runner.events)


_WORDS = st.integers(0, 600).map(lambda number: "word " * number)
# A call that is refused is no item of the response, so it alone is no reason for a compaction.
_FEW_WORDS = st.integers(0, 20).map(lambda number: "word " * number)
_PIECES = st.one_of(
    st.builds(lambda words: ("text", words), _WORDS),
    st.builds(lambda words: ("reasoning", words), _WORDS),
    st.builds(lambda words: ("file_search", words), _WORDS),
    st.builds(lambda words: ("unknown", words), _FEW_WORDS),
    st.builds(lambda words: ("add", words), st.just("")),
)


class ManyReplies(TurnRunner):
    """A turn whose requests for summaries have replies of their own; after the last reply the model says Done."""

    def reply(self, ask):
        if ask.for_summary:
            return [*SUMMARY]
        return list(self.replies.pop(0)) if self.replies else [TextPiece("Done."), used()]


def reply_of(pieces, number: int) -> list:
    made: list = []
    for index, (kind, words) in enumerate(pieces):
        if kind == "text":
            made.append(TextPiece(words))
        elif kind == "reasoning":
            made.append(ReasoningPiece(words))
        else:
            made.append(CallPiece(index, kind, f"call_{number}_{index}", f'{{"q": "{words}"}}'))
    return [*made, used()]


@given(st.lists(st.lists(_PIECES, min_size=1, max_size=4), max_size=6))
def test_calls_are_paired_in_every_request_whenever_the_history_is_compacted(drawn):
    replies = [reply_of(pieces, number) for number, pieces in enumerate(drawn)]
    request = {"tools": [SEARCH, FUNCTION]}
    history = [message("Rules.", "system"), message("Begin.")]
    runner = ManyReplies(request, *replies, history=history, compaction=compacting())
    response = runner.run()

    assert response.status == "completed"
    check_grammar(runner.events)
    assert fold(runner.events) == response
    for sent in runner.requests:
        assert unpaired(sent.items) == []
        assert not any(item.type == "compaction" for item in sent.items)
        assert {"Rules.", "Begin."} <= {
            part["text"] for item in sent.items if item.type == "message" for part in _parts(item)
        }
    plain = [sent for sent in runner.requests if sent not in runner.summary_requests]
    assert all(estimate_request(sent) <= 1000 + 4 * 700 for sent in plain)


def _parts(item) -> list:
    content = item.raw["content"]
    return [{"text": content}] if isinstance(content, str) else content
