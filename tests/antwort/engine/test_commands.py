"""Commands for hosted calls of two items, those that the client runs, refused ones, and those that open a response."""

from __future__ import annotations

import pytest
from fixtures_turn import ClientRunTools, CommandTools, OpeningTools, PairTools, TurnRunner, check_grammar, used

from antwort.api import events as wire
from antwort.engine.ports import CallPiece, Finished, TextPiece
from antwort.engine.reply.repairs import IN_PROGRESS

SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
ANSWER = [TextPiece("Done."), used()]


def test_a_call_of_two_items_ends_the_first_before_the_second_begins():
    runner = TurnRunner({"tools": [SEARCH]}, [CallPiece(0, "file_search", "c", "{}"), used()], ANSWER, tools=PairTools)
    response = runner.run()

    assert runner.kinds[2:10] == [
        "output_item.added",
        "file_search_call.in_progress",
        "shell_call_command.done",
        "output_item.done",
        "output_item.added",
        "shell_call_output_content.delta",
        "output_item.done",
        "output_item.added",
    ]
    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == ["file_search_call", "shell_call_output", "message"]
    command = runner.events[4]
    assert b"item_id" not in wire.to_json(command)
    assert b'"output_index":0' in wire.to_json(command)


def test_the_client_runs_a_call_and_the_response_ends():
    calls = [CallPiece(0, "file_search", "c_0", "{}"), CallPiece(1, "file_search", "c_1", '{"q": 1}')]
    runner = TurnRunner({"tools": [SEARCH], "max_tool_calls": 1}, [*calls, used()], tools=ClientRunTools)
    response = runner.run()

    check_grammar(runner.events)
    assert (response.status, len(runner.requests)) == ("completed", 1)
    assert [item["queries"] for item in response.output] == [["{}"], ['{"q": 1}']]  # max_tool_calls does not count them


def test_a_refused_call_has_no_item_and_the_model_is_asked_again():
    broken, right = CallPiece(0, "file_search", "c_0", '"broken"'), CallPiece(0, "file_search", "c_1", "{}")
    runner = TurnRunner({"tools": [SEARCH]}, [broken, used()], [right, used()], tools=ClientRunTools)
    response = runner.run()

    check_grammar(runner.events)
    assert [item["queries"] for item in response.output] == [["{}"]]
    call, output = runner.history()[-2:]
    assert call.raw["arguments"] == '"broken"'
    assert output.raw["output"] == "The patch is broken. Make this call again, complete and corrected."


def test_broken_calls_beside_calls_for_the_client_are_made_again_alone():
    add = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    first = [
        CallPiece(0, "file_search", "c_0", '{"q": 1}'),
        CallPiece(1, "file_search", "c_1", '"broken"'),
        CallPiece(2, "add", "c_2", "{}"),
        used(),
    ]
    second = [CallPiece(0, "file_search", "c_3", '{"q": 2}'), CallPiece(1, "add", "c_4", "{}"), used()]
    runner = TurnRunner({"tools": [SEARCH, add]}, first, second, tools=ClientRunTools)
    response = runner.run()

    check_grammar(runner.events)
    assert response.status == "completed"
    assert [item.get("queries") for item in response.output] == [['{"q": 1}'], None, ['{"q": 2}']]
    assert [tool.name for tool in runner.requests[1].tools] == ["file_search"]
    outputs = {item.call_id: item.raw["output"] for item in runner.history() if item.is_output}
    assert outputs["c_0"] == outputs["c_2"] == IN_PROGRESS
    assert outputs["c_1"].endswith("Make this call again, complete and corrected.")


@pytest.mark.parametrize("limit", [{"max_output_tokens": 20}, {}])
def test_broken_calls_are_not_made_again_past_the_limits(limit):
    reply = [CallPiece(0, "file_search", "c_0", "{}"), CallPiece(1, "file_search", "c_1", '"broken"'), used(10)]
    runner = TurnRunner({"tools": [SEARCH], **limit}, reply, tools=ClientRunTools, max_turns=32 if limit else 1)

    assert (runner.run().status, len(runner.requests)) == ("completed", 1)


@pytest.mark.parametrize("tools", [ClientRunTools, CommandTools])
def test_a_call_of_a_withdrawn_function_fails_the_response(tools):
    broken = [CallPiece(0, "file_search", "c_0", '"broken"'), used()]
    runner = TurnRunner({"tools": [SEARCH]}, broken, broken, broken, tools=tools)
    response = runner.run()

    check_grammar(runner.events)
    assert (response.status, response.error and response.error.code) == ("failed", "server_error")
    assert [tool.name for tool in runner.requests[1].tools] == ["file_search"]
    assert (runner.requests[2].tools, runner.requests[2].choice) == ((), "none")


def test_several_broken_calls_of_a_reply_may_all_be_made_again():
    broken = [CallPiece(at, "file_search", f"c_{at}", '"broken"') for at in range(2)]
    right = [CallPiece(at, "file_search", f"d_{at}", "{}") for at in range(2)]
    runner = TurnRunner({"tools": [SEARCH]}, [*broken, used()], [*right, used()], tools=ClientRunTools)

    assert len(runner.run().output) == 2


def test_approved_calls_past_max_tool_calls_are_not_run():
    runner = TurnRunner({"tools": [SEARCH], "max_tool_calls": 1}, ANSWER, tools=OpeningTools)
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == ["mcp_list_tools", "file_search_call", "message"]
    assert runner.ran == ["call_alpha"]
    assert "No more tool calls are allowed" in runner.history()[-1].raw["output"]


def test_a_call_that_is_written_whole_begins_after_the_reply():
    pieces = [CallPiece(0, "file_search", "c_0", '{"q"'), CallPiece(0, arguments=": 1}"), Finished("length")]
    runner = TurnRunner({"tools": [SEARCH]}, pieces, tools=ClientRunTools)
    response = runner.run()

    assert (response.status, response.output) == ("incomplete", [])  # cut off: never handed on


def test_approved_calls_run_before_the_model_is_asked():
    runner = TurnRunner({"tools": [SEARCH]}, ANSWER, tools=OpeningTools)
    response = runner.run()

    check_grammar(runner.events)
    assert [item["type"] for item in response.output] == [
        "mcp_list_tools",
        "file_search_call",
        "file_search_call",
        "message",
    ]
    assert response.output[0]["tools"] == ["t"]
    assert [item.type for item in runner.history()[1:]] == ["function_call"] * 2 + ["function_call_output"] * 2
