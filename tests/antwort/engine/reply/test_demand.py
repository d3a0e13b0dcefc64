"""A forced `tool_choice`, driven through a turn with models that do not follow it."""

from __future__ import annotations

import pytest
from fixtures_turn import TurnRunner, check_grammar, used
from fold import fold

from antwort.api.responses import Response
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.ports import CallPiece, CompactionPiece, Finished, MustCall, ReasoningPiece, RefusalPiece, TextPiece
from antwort.engine.reply.demand import TOOL_CHOICE_NOT_FOLLOWED

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "shout"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}

ADD = {"type": "function", "name": "add"}
SHOUT = {"type": "custom", "name": "shout"}
FILE_SEARCH = {"type": "file_search"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [ADD, SHOUT]}

TEXT = [TextPiece("I would rather talk."), used()]


def call(name: str, call_id: str = "c") -> list:
    return [CallPiece(0, name, call_id, "{}"), Finished("calls")]


def run(choice, *replies, **more) -> tuple[TurnRunner, Response]:
    request = {"tools": [FUNCTION, CUSTOM, SEARCH], "tool_choice": choice, **more}
    runner = TurnRunner(request, *replies)
    response = runner.run()
    check_grammar(runner.events)
    assert fold(runner.events) == response
    return runner, response


def types(response: Response) -> list[str]:
    return [item["type"] for item in response.output]


@pytest.mark.parametrize(
    "choice, wrong, right",
    [
        (ADD, "shout", "add"),
        (ADD, "file_search", "add"),
        (ADD, "unknown", "add"),
        (SHOUT, "add", "shout"),
        (FILE_SEARCH, "add", "file_search"),
        (ALLOWED, "file_search", "shout"),
        ("required", "unknown", "add"),
    ],
)
def test_another_call_is_refused_and_the_model_is_asked_again(choice, wrong, right):
    runner, response = run(choice, call(wrong, "w"), call(right), [TextPiece("Found."), used()])

    made = {"add": "function_call", "shout": "custom_tool_call", "file_search": "file_search_call"}[right]
    assert (response.status, types(response)[0]) == ("completed", made)
    assert types(response)[1:] == (["message"] if right == "file_search" else [])
    first, again = runner.requests[:2]
    assert first.choice == again.choice
    assert [item.type for item in again.items[-2:]] == ["function_call", "function_call_output"]
    assert again.items[-1].raw["output"].startswith(f"'{wrong}' was not called: this answer must call ")
    assert right in again.items[-1].raw["output"]
    assert runner.tools.opened == (right == "file_search")


@pytest.mark.parametrize("choice", [ADD, "required", ALLOWED])
def test_a_reply_without_a_call_is_dropped_and_the_model_is_asked_again(choice):
    runner, response = run(choice, [ReasoningPiece("Hm."), *TEXT], call("add"))

    assert (response.status, types(response)) == ("completed", ["reasoning", "function_call"])
    reasoning, answer, demand = runner.history()[1:]
    assert (reasoning.type, answer.raw["content"]) == ("reasoning", "I would rather talk.")
    assert (demand.raw["role"], "'add'" in demand.raw["content"]) == ("user", True)
    assert response.usage is not None
    assert response.usage.output_tokens == 1


@pytest.mark.parametrize("reply", [TEXT, call("shout"), [used()]])
def test_after_three_replies_without_the_call_the_response_fails_with_the_function_and_the_model(reply):
    runner, response = run(ADD, *[reply] * 3)

    assert (response.status, response.output, len(runner.requests)) == ("failed", [], 3)
    assert response.error is not None
    assert response.error.code == TOOL_CHOICE_NOT_FOLLOWED
    assert response.error.message.startswith("Model 'm' did not call 'add' in 3 attempts")
    assert runner.kinds == ["created", "in_progress", "error", "failed"]
    assert runner.turn.fault is not None
    assert (runner.turn.fault.status, runner.turn.fault.retryable) == (502, False)


def test_text_before_the_demanded_call_is_sent_with_it():
    reply = [ReasoningPiece("Hm."), TextPiece("I add."), CallPiece(0, "add", "c", "{}"), Finished("calls")]
    runner, response = run(ADD, reply)

    assert types(response) == ["reasoning", "message", "function_call"]
    assert len(runner.requests) == 1


def test_wrong_calls_beside_the_demanded_one_are_left_out():
    reply = [CallPiece(0, "shout", "w", "{}"), TextPiece("Or."), CallPiece(1, "add", "c", "{}"), Finished("calls")]
    runner, response = run(ADD, reply)

    assert (types(response), response.output[1]["call_id"]) == (["message", "function_call"], "c")
    assert len(runner.requests) == 1


def test_after_a_demanded_hosted_call_the_choice_is_free():
    both = [CallPiece(0, "file_search", "a", "{}"), CallPiece(1, "add", "b", "{}"), Finished("calls")]
    runner, response = run(FILE_SEARCH, both, [TextPiece("Now I add."), *call("add")])

    assert types(response) == ["file_search_call", "message", "function_call"]
    assert [request.choice for request in runner.requests] == [MustCall("file_search"), "auto"]


def test_without_parallel_calls_the_first_demanded_one_is_made():
    reply = [CallPiece(0, "shout", "w", "{}"), CallPiece(1, "add", "a"), CallPiece(2, "add", "b"), Finished("calls")]
    _, response = run(ADD, reply, parallel_tool_calls=False)

    assert [item["call_id"] for item in response.output] == ["a"]


def test_a_model_may_refuse_instead_of_the_demanded_call():
    _, response = run(ADD, [RefusalPiece("I will not."), used()])

    assert response.status == "completed"
    assert response.output[0]["content"] == [{"type": "refusal", "refusal": "I will not."}]


def test_a_reply_that_is_cut_off_before_the_demanded_call_is_incomplete():
    runner, response = run(ADD, [TextPiece("I would like to"), Finished("length")])

    assert (response.status, len(runner.requests)) == ("incomplete", 1)
    assert response.output[0]["content"][0]["text"] == "I would like to"


def test_the_attempts_share_max_output_tokens():
    runner, response = run(ADD, [TextPiece("so"), used(90)], max_output_tokens=100)

    assert (response.status, response.output, len(runner.requests)) == ("incomplete", [], 1)


def test_a_compaction_of_the_upstream_needs_no_call():
    item = {"type": "compaction", "id": "cmp_9", "encrypted_content": "gAAAAAB"}
    runner = TurnRunner(
        {"tools": [FUNCTION], "tool_choice": ADD},
        [CompactionPiece(item), used()],
        compaction=lambda _: CompactionPlan(is_upstream_triggered=True),
    )

    assert runner.run().output == [item]


def test_a_compaction_item_between_dropped_texts_stays():
    item = {"type": "compaction", "id": "cmp_9", "encrypted_content": "gAAAAAB"}
    _, response = run(ADD, [TextPiece("a"), CompactionPiece(item), TextPiece("b"), used()], call("add"))

    assert types(response) == ["compaction", "function_call"]
