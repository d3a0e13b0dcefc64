"""The order of the items of a reply, driven through a turn."""

from __future__ import annotations

import pytest
from fixtures_turn import TurnRunner, check_grammar, used
from fold import fold

from antwort.api import events as wire
from antwort.api.events import ToolProgress
from antwort.engine.commands import Cancelled
from antwort.engine.ports import CallPiece, Finished, ModelFault, ReasoningPiece, TextPiece

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "shout"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
TOOLS = {"tools": [FUNCTION, CUSTOM, SEARCH]}


def item_events(runner: TurnRunner) -> list[str]:
    """The begins and ends of items, as `+type` and `-type`."""
    found = []
    for event in runner.events:
        if isinstance(event, wire.ItemEvent):
            sign = "+" if isinstance(event, wire.OutputItemAdded) else "-"
            found.append(sign + event.item["type"])
    return found


def run(*pieces, replies=(), **request) -> tuple[TurnRunner, wire.Response]:
    runner = TurnRunner({**TOOLS, **request}, [*pieces], *replies)
    response = runner.run()
    check_grammar(runner.events)
    assert fold(runner.events) == response
    return runner, response


INTERLEAVED = [
    CallPiece(0, "add", "call_a"),
    CallPiece(1, "shout", "call_b"),
    CallPiece(0, arguments='{"n"'),
    CallPiece(1, arguments='{"input": "he'),
    CallPiece(0, arguments=": 1}"),
    CallPiece(1, arguments='y"}'),
]


def test_interleaved_client_side_calls_are_sent_one_after_the_other():
    runner, response = run(*INTERLEAVED, Finished("calls"))

    assert response.status == "completed"
    function, custom = response.output
    assert (function["call_id"], function["arguments"], function["status"]) == ("call_a", '{"n": 1}', "completed")
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "hey")
    assert item_events(runner) == ["+function_call", "-function_call", "+custom_tool_call", "-custom_tool_call"]
    deltas = [event.delta for event in runner.events if isinstance(event, wire.CustomInputDelta)]
    assert deltas == ["he", "y"]  # live as soon as the call before it is done


def test_a_call_is_done_when_the_next_one_begins():
    ended = []

    class Watching(TurnRunner):
        def _emit(self, *events):
            super()._emit(*events)
            ended.extend(event for event in events if isinstance(event, wire.OutputItemDone))

    pieces = [CallPiece(0, "add", "a", '{"n": '), CallPiece(0, arguments="1}"), CallPiece(1, "add", "b", "{")]
    runner = Watching(TOOLS, [*pieces, Cancelled()])
    response = runner.run()

    assert [event.item["status"] for event in ended] == ["completed", "incomplete"]
    assert [item["arguments"] for item in response.output] == ['{"n": 1}', "{"]
    assert runner.kinds.index("output_item.done") < len(runner.kinds) - 3


def test_arguments_of_the_first_call_are_streamed_while_they_are_written():
    runner, _ = run(*(CallPiece(0, "add", "a", part) for part in ("{", '"n":', " 1", "}")), Finished("calls"))

    deltas = [event.delta for event in runner.events if isinstance(event, wire.FunctionArgumentsDelta)]
    assert deltas == ["{", '"n":', " 1", "}"]


def test_a_hosted_call_is_done_before_the_next_item_begins():
    pieces = [
        TextPiece("I look."),
        CallPiece(0, "file_search", "a", '{"q": 1}'),
        CallPiece(1, "file_search", "b", '{"q": 2}'),
        CallPiece(2, "add", "c", "{}"),
        TextPiece("Done."),
        Finished("calls"),
    ]
    runner, response = run(*pieces)

    kinds = ["message", "file_search_call", "file_search_call", "function_call", "message"]
    assert [item["type"] for item in response.output] == kinds
    assert item_events(runner) == [sign + kind for kind in kinds for sign in "+-"]
    progress = [event.output_index for event in runner.events if isinstance(event, ToolProgress)]
    assert progress == [1, 1, 1, 2, 2, 2]


def test_calls_and_their_outputs_are_in_the_order_of_the_model_in_the_next_request():
    first = [
        CallPiece(0, "file_search", "a", '{"q"'),
        CallPiece(1, "unknown", "b", '{"n"'),
        CallPiece(2, "file_search", "c", "{}"),
        ReasoningPiece("Hm."),
        CallPiece(1, arguments=": 2}"),
        CallPiece(0, arguments=": 1}"),
        Finished("calls"),
    ]
    runner, _ = run(*first, replies=[[TextPiece("Yes."), used()]])

    kinds = [(item.type, item.raw.get("call_id")) for item in runner.history()[1:]]
    calls = [("function_call", "a"), ("function_call", "b"), ("function_call", "c")]
    assert kinds == [("reasoning", None), *calls, *(("function_call_output", call_id) for _, call_id in calls)]
    assert [item.raw["arguments"] for item in runner.history()[2:5]] == ['{"q": 1}', '{"n": 2}', "{}"]


def test_a_refused_call_is_complete_in_the_next_request_although_text_followed_its_beginning():
    first = [CallPiece(0, "unknown", "a", '{"n"'), TextPiece("Hm."), CallPiece(0, arguments=": 1}"), Finished("calls")]
    runner, response = run(*first, replies=[[TextPiece("Yes."), used()]])

    assert [item["type"] for item in response.output] == ["message", "message"]
    assert runner.history()[2].raw["arguments"] == '{"n": 1}'


def test_text_after_a_call_is_sent_after_it():
    pieces = [CallPiece(0, "add", "a", "{"), TextPiece("Mean"), TextPiece("while."), CallPiece(0, arguments="}")]
    runner, response = run(*pieces, Finished("calls"))

    assert item_events(runner) == ["+function_call", "-function_call", "+message", "-message"]
    assert response.output[1]["content"][0]["text"] == "Meanwhile."


def test_what_follows_the_end_of_a_call_is_dropped():
    pieces = [CallPiece(0, "add", "a", "{}"), CallPiece(1, "add", "b", "{}"), CallPiece(0, arguments="\n")]
    _, response = run(*pieces, Finished("calls"))

    assert [item["arguments"] for item in response.output] == ["{}", "{}"]


def test_arguments_that_are_not_an_object_end_with_the_reply():
    pieces = [CallPiece(0, "shout", "a", "hey"), CallPiece(1, "add", "b", "[1"), CallPiece(0, arguments=" you")]
    runner, response = run(*pieces, Finished("calls"))

    assert (response.output[0]["input"], response.output[1]["arguments"]) == ("hey you", "[1")
    assert item_events(runner) == ["+custom_tool_call", "-custom_tool_call", "+function_call", "-function_call"]


# ── replies that do not end normally ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [Cancelled(), ModelFault("No.")])
def test_an_interrupted_call_keeps_its_partial_arguments_and_waiting_calls_have_no_item(end):
    pieces = [CallPiece(0, "add", "c", '{"a"'), CallPiece(1, "file_search", "d", '{"query"'), TextPiece("Hm.")]
    runner, response = run(*pieces, end)

    [call] = response.output
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a"')
    assert item_events(runner) == ["+function_call", "-function_call"]
    assert runner.tools.opened == 0


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_that_is_cut_off_leaves_whole_calls_completed_and_runs_no_hosted_call(reason):
    pieces = [
        CallPiece(0, "add", "a", "{}"),
        CallPiece(1, "file_search", "b", "{}"),
        CallPiece(2, "file_search", "c", "{}"),
        CallPiece(3, "add", "d", "{}"),
        CallPiece(4, "add", "e", '{"n'),
    ]
    runner, response = run(*pieces, Finished(reason))

    assert response.status == "incomplete"
    assert [(item["type"], item["status"]) for item in response.output] == [
        ("function_call", "completed"),
        ("file_search_call", "incomplete"),
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]
    assert runner.tools.opened == 1
    assert "file_search_call.searching" not in runner.kinds


def test_waiting_calls_count_for_max_tool_calls():
    pieces = [CallPiece(at, "file_search", f"c{at}", "{}") for at in range(3)]
    runner, response = run(*pieces, Finished("calls"), replies=[[TextPiece("ok"), used()]], max_tool_calls=2)

    assert [item["type"] for item in response.output] == ["file_search_call", "file_search_call", "message"]
    assert "No more tool calls" in runner.history()[-1].raw["output"]
