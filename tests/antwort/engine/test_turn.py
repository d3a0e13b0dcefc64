from __future__ import annotations

import pytest
from fixtures_turn import Stage, check_grammar, used
from hypothesis import given
from hypothesis import strategies as st

from antwort.api import events as wire
from antwort.api.errors import ApiError
from antwort.api.items import OutputText
from antwort.engine.fold import fold
from antwort.engine.ports import (
    CallPiece,
    Finished,
    ModelFault,
    Must,
    ReasoningPiece,
    RefusalPiece,
    SealedReasoning,
    SummaryPiece,
    TextPiece,
)
from antwort.engine.turn import Cancelled

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "shout"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}


def test_text_has_the_order_of_the_wire():
    stage = Stage({}, [TextPiece("Hel"), TextPiece("lo"), used()])
    response = stage.play()

    assert stage.kinds == [
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
    check_grammar(stage.events)
    assert response.output[0]["content"][0]["text"] == "Hello"
    assert (response.status, response.completed_at) == ("completed", 2)
    assert response.usage is not None
    assert response.usage.total_tokens == 11


def test_logprobs_come_with_deltas_parts_and_the_whole_where_they_are_included():
    one, two, half = ({"token": token, "logprob": -1.0} for token in ("Hel", "lo", ""))
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    spoken = [TextPiece("", (half,)), TextPiece("Hel", (one,)), TextPiece("", (half,)), TextPiece("lo", (two,)), used()]
    stage = Stage(include, spoken)
    response = stage.play()

    deltas = [event.logprobs for event in stage.events if isinstance(event, wire.OutputTextDelta)]
    assert deltas == [[one], [half], [two]]
    [done] = [event for event in stage.events if isinstance(event, wire.OutputTextDone)]
    [part] = [event.part for event in stage.events if isinstance(event, wire.ContentPartDone)]
    assert isinstance(part, OutputText)
    assert done.logprobs == part.logprobs == response.output[0]["content"][0]["logprobs"] == [one, half, two]
    assert stage.asked[0].top_logprobs == 2


@pytest.mark.parametrize(
    "given, asked",
    [
        ({}, None),
        ({"top_logprobs": 2}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 5),
    ],
)
def test_logprobs_are_asked_of_the_model_only_where_they_are_included(given, asked):
    stage = Stage(given, [used()])
    stage.play()

    assert stage.asked[0].top_logprobs == asked


def test_reasoning_refusal_and_summary_have_theirs():
    thought = [ReasoningPiece("Hm"), SummaryPiece("Hm."), SealedReasoning("x"), RefusalPiece("No."), used()]
    stage = Stage({}, thought)
    response = stage.play()

    assert stage.kinds[2:-1] == [
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


def test_a_clients_calls_end_the_response_and_may_be_written_side_by_side():
    pieces = [
        CallPiece(0, "add", "call_a"),
        CallPiece(1, "shout", "call_b"),
        CallPiece(0, arguments='{"n"'),
        CallPiece(1, arguments='{"input": "he'),
        CallPiece(0, arguments=": 1}"),
        CallPiece(1, arguments='y"}'),
        Finished("calls"),
    ]
    stage = Stage({"tools": [FUNCTION, CUSTOM]}, pieces)
    response = stage.play()

    check_grammar(stage.events)
    assert response.status == "completed"
    function, custom = response.output
    assert (function["call_id"], function["arguments"], function["status"]) == ("call_a", '{"n": 1}', "completed")
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "hey")
    assert "function_call_arguments.done" in stage.kinds
    assert "custom_tool_call_input.delta" in stage.kinds


def test_a_custom_tool_gets_the_text_of_a_model_that_writes_no_json():
    said = [CallPiece(0, "shout", "c", "hey "), CallPiece(0, arguments="you"), Finished("calls")]
    stage = Stage({"tools": [CUSTOM]}, said)
    response = stage.play()

    check_grammar(stage.events)
    assert response.output[0]["input"] == "hey you"
    deltas = [event.delta for event in stage.events if isinstance(event, wire.CustomInputDelta)]
    assert deltas == ["hey ", "you"]


def test_a_tool_of_ours_runs_and_the_model_reads_its_result():
    call = [TextPiece("Let me see."), CallPiece(0, "file_search", "call_1", '{"q": 1}'), Finished("calls")]
    stage = Stage({"tools": [SEARCH]}, call, [TextPiece("Found."), used(5)])
    response = stage.play()

    check_grammar(stage.events)
    assert [item["type"] for item in response.output] == ["message", "file_search_call", "message"]
    assert response.output[1]["queries"] == ['{"q": 1}']
    assert [item.type for item in stage.history()] == ["message", "message", "function_call", "function_call_output"]
    assert stage.history()[-1].raw["output"] == 'echo {"q": 1}'
    searching = [kind for kind in stage.kinds if kind.startswith("file_search_call")]
    assert searching == [f"file_search_call.{step}" for step in ("in_progress", "searching", "completed")]


def test_ours_and_theirs_in_one_reply_run_ours_and_hand_back_theirs():
    calls = [CallPiece(0, "file_search", "c1", "{}"), CallPiece(1, "add", "c2", "{}"), Finished("calls")]
    stage = Stage({"tools": [SEARCH, FUNCTION]}, calls)
    response = stage.play()

    check_grammar(stage.events)
    assert [(item["type"], item["status"]) for item in response.output] == [
        ("file_search_call", "completed"),
        ("function_call", "completed"),
    ]


@pytest.mark.parametrize("choice, demanded", [("required", "required"), ({"type": "file_search"}, Must("file_search"))])
def test_a_forced_choice_is_forced_once(choice: object, demanded: object):
    call = [CallPiece(0, "file_search", "c", "{}"), Finished("calls")]
    stage = Stage({"tools": [SEARCH], "tool_choice": choice}, call, [TextPiece("ok"), used()])
    stage.play()

    assert [request.choice for request in stage.asked] == [demanded, "auto"]


def test_max_tool_calls_counts_ours_and_ignores_the_rest():
    calls = [CallPiece(at, "file_search", f"c{at}", "{}") for at in range(3)]
    stage = Stage({"tools": [SEARCH], "max_tool_calls": 2}, [*calls, Finished("calls")], [TextPiece("ok"), used()])
    response = stage.play()

    check_grammar(stage.events)
    assert [item["type"] for item in response.output] == ["file_search_call", "file_search_call", "message"]
    assert stage.asked[1].tools == ()
    assert "No more tool calls" in stage.history()[-1].raw["output"]


def test_a_tool_that_nobody_declared_is_told_to_the_model_only():
    stage = Stage({"tools": [FUNCTION]}, [CallPiece(0, "rm", "c", "{}"), Finished("calls")], [TextPiece("ok"), used()])
    response = stage.play()

    assert [item["type"] for item in response.output] == ["message"]
    assert stage.history()[-1].raw["output"] == "There is no tool 'rm'."


def test_an_endless_loop_of_calls_is_ended():
    call = [CallPiece(0, "file_search", "c", "{}"), Finished("calls")]
    stage = Stage({"tools": [SEARCH]}, *[call] * 5, max_turns=3)
    response = stage.play()

    check_grammar(stage.events)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_messages"
    assert len(stage.asked) == 3


def test_output_tokens_are_counted_over_all_requests():
    call = [CallPiece(0, "file_search", "c", "{}"), used(30)]
    cut = [TextPiece("so far"), Finished("length")]
    stage = Stage({"tools": [SEARCH], "max_output_tokens": 100}, call, cut)
    response = stage.play()

    assert [request.max_output_tokens for request in stage.asked] == [100, 70]
    assert response.status == "incomplete"
    assert response.output[1]["status"] == "incomplete"
    check_grammar(stage.events)


@pytest.mark.parametrize("spent, asked", [(84, [100, 16]), (85, [100]), (100, [100]), (120, [100])])
def test_when_hardly_a_token_is_left_the_model_is_not_asked_again(spent, asked):
    call = [CallPiece(0, "file_search", "c", "{}"), used(spent)]
    stage = Stage({"tools": [SEARCH], "max_output_tokens": 100}, call, [Finished("length")])
    response = stage.play()

    check_grammar(stage.events)
    assert [request.max_output_tokens for request in stage.asked] == asked
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item["status"] for item in response.output] == ["completed"]


def test_a_models_fault_fails_the_response_and_keeps_what_was_said():
    fault = ModelFault("The model is overloaded.", code="rate_limit_exceeded")
    stage = Stage({}, [TextPiece("Half a"), fault])
    response = stage.play()

    assert stage.kinds[-2:] == ["error", "failed"]
    assert response.status == "failed"
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("rate_limit_exceeded", "The model is overloaded.")
    assert response.output[0]["status"] == "incomplete"
    assert fold(stage.events) == response


@pytest.mark.parametrize(
    "status, kind", [(429, "rate_limit_error"), (400, "invalid_request_error"), (502, "server_error")]
)
def test_the_error_says_whose_fault_it_is(status, kind):
    stage = Stage({}, [ModelFault("No.", status=status)])
    stage.play()

    [error] = [event.error for event in stage.events if isinstance(event, wire.ErrorEvent)]
    assert error.type == kind


LONG = {"input": [{"role": "user", "content": f"{at}"} for at in range(9)]}
TOO_LONG = ModelFault("Too long.", code="context_length_exceeded", status=400)


def test_a_history_that_is_too_long_is_cut_until_it_fits_where_that_is_allowed():
    stage = Stage({**LONG, "truncation": "auto"}, [TOO_LONG], [TOO_LONG], [TextPiece("ok"), used()])
    response = stage.play()

    check_grammar(stage.events)
    assert (response.status, response.truncation) == ("completed", "auto")
    assert [len(request.items) for request in stage.asked] == [9, 5, 3]
    assert stage.history()[-1].raw["content"] == "8"


def test_a_history_that_is_too_long_is_an_error_where_nothing_may_go():
    for fields in (LONG, {"truncation": "auto"}):
        stage = Stage(fields, [TOO_LONG])
        response = stage.play()

        assert response.error is not None
        assert (response.status, response.error.code) == ("failed", "context_length_exceeded")


def test_another_fault_or_one_in_the_middle_cuts_nothing():
    for says in ([ModelFault("No.")], [TextPiece("Half"), TOO_LONG]):
        stage = Stage({**LONG, "truncation": "auto"}, says)

        assert stage.play().status == "failed"
        assert len(stage.asked) == 1


@pytest.mark.parametrize("tool, made", [(FUNCTION, "function_call"), (SEARCH, "file_search_call")])
def test_without_parallel_calls_only_one_is_made_at_a_time(tool, made):
    name = tool.get("name", "file_search")
    calls = [CallPiece(at, name, f"c{at}", "{}") for at in range(3)]
    stage = Stage({"tools": [tool], "parallel_tool_calls": False}, [*calls, Finished("calls")], [used()])
    response = stage.play()

    check_grammar(stage.events)
    assert [item["type"] for item in response.output] == [made]
    if tool is SEARCH:
        told = [item.raw["output"] for item in stage.history() if item.type == "function_call_output"]
        assert [text.startswith("Only one tool call at a time") for text in told] == [False, True, True]


def test_a_cancelled_turn_says_so_and_leaves_nothing_in_progress():
    stage = Stage({"tools": [FUNCTION]}, [TextPiece("Half"), CallPiece(0, "add", "c"), Cancelled()])
    response = stage.play()

    check_grammar(stage.events)
    assert (response.status, response.usage, stage.kinds[-1]) == ("cancelled", None, "incomplete")
    assert [item["status"] for item in response.output] == ["completed", "incomplete"]
    assert fold(stage.events) == response


@pytest.mark.parametrize("end", [Cancelled(), ModelFault("No.")])
def test_calls_that_break_off_stay_as_far_as_they_were_written(end):
    pieces = [CallPiece(0, "add", "c", '{"a"'), CallPiece(1, "file_search", "d", '{"query"')]
    stage = Stage({"tools": [FUNCTION, SEARCH]}, [*pieces, end])
    response = stage.play()

    check_grammar(stage.events)
    theirs, ours = response.output
    assert (theirs["status"], theirs["arguments"]) == ("incomplete", '{"a"')
    assert ours["status"] == "incomplete"
    assert stage.kinds.count("output_item.done") == 2
    assert fold(stage.events) == response


def test_a_message_that_is_cancelled_is_closed_as_far_as_it_came():
    stage = Stage({}, [TextPiece("Half"), Cancelled()])
    stage.play()

    assert stage.kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]


def test_allowed_tools_are_all_that_the_model_hears_of():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    stage = Stage({"tools": [FUNCTION, SEARCH], "tool_choice": choice}, [TextPiece("ok"), used()])
    stage.play()

    assert [spec.name for spec in stage.asked[0].tools] == ["add"]
    assert stage.asked[0].choice == "required"


ONLY_ADD = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}


@pytest.mark.parametrize(
    "choice, name",
    [("none", "file_search"), ("none", "add"), (ONLY_ADD, "file_search"), (ONLY_ADD, "shout")],
)
def test_a_call_that_the_request_forbids_is_not_made_whatever_the_model_does(choice, name):
    call = [CallPiece(0, name, "c", "{}"), Finished("calls")]
    tools = [FUNCTION, CUSTOM, SEARCH]
    stage = Stage({"tools": tools, "tool_choice": choice}, call, [TextPiece("ok"), used()])
    response = stage.play()

    check_grammar(stage.events)
    assert [item["type"] for item in response.output] == ["message"]
    assert stage.toolbox.opened == 0
    assert "must not be called" in stage.history()[-1].raw["output"]
    assert stage.asked[1].choice == stage.asked[0].choice


def test_a_tool_that_nobody_here_runs_is_refused_by_name():
    with pytest.raises(ApiError, match="Tool type 'web_search' is not available"):
        Stage({"tools": [{"type": "web_search"}]})


pieces = st.one_of(
    st.builds(TextPiece, st.text(max_size=5)),
    st.builds(RefusalPiece, st.text(max_size=5)),
    st.builds(ReasoningPiece, st.text(max_size=5)),
    st.builds(SummaryPiece, st.text(max_size=5)),
    st.builds(SealedReasoning, st.text(max_size=5)),
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


@given(st.lists(replies, min_size=1, max_size=4), st.none() | st.integers(1, 2))
def test_whatever_a_model_says_the_events_keep_the_grammar_and_fold_to_the_response(says, most):
    tools = [FUNCTION, CUSTOM, SEARCH]
    stage = Stage({"tools": tools, "max_tool_calls": most}, *says, [used()], max_turns=len(says) + 1)
    response = stage.play()

    check_grammar(stage.events)
    assert response.ended
    assert fold(stage.events) == response
    assert all(item.get("status") != "in_progress" for item in response.output)
