"""Commands for hosted calls of two items, those that the client runs, refused ones, and those that open a response."""

from __future__ import annotations

from fixtures_turn import ClientRunTools, OpeningTools, PairTools, TurnRunner, check_grammar, used

from antwort.api import events as wire
from antwort.engine.ports import CallPiece, Finished, TextPiece

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
    assert output.raw["output"] == "The patch is broken."


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
