from __future__ import annotations

from typing import Any

import pytest
from fake_compaction_api import unpaired
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters.openai.compaction.window import (
    answered_by,
    call_of,
    chunks,
    closed_blocks,
    closed_length,
    newest,
    plain,
    prune,
)

USER = {"type": "message", "role": "user", "content": "Do it."}
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "secret"}
SEALED = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}


def call(call_id: str) -> dict[str, Any]:
    return {"id": f"fc_{call_id}", "type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


@pytest.mark.parametrize(
    "item, opened, answered",
    [
        (USER, None, None),
        ({"role": "user", "content": "an easy message has no type"}, None, None),
        (call("a"), "a", None),
        (output("a"), None, "a"),
        ({"type": "mcp_approval_request", "id": "mcpr_1"}, "mcpr_1", None),
        ({"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}, None, "mcpr_1"),
        ({"type": "code_interpreter_call", "id": "ci_1"}, None, None),
        ({"type": "tool_search_call", "id": "ts_1", "call_id": "x"}, None, None),
        ({"type": "shell_call", "call_id": "s"}, "s", None),
        ({"type": "shell_call_output", "call_id": "s"}, None, "s"),
        ({"type": "local_shell_call_output", "id": "l"}, None, "l"),
        ({"type": "function_call", "call_id": None}, None, None),
    ],
)
def test_calls_and_outputs_are_recognised(item, opened, answered):
    assert (call_of(item), answered_by(item)) == (opened, answered)


def test_closed_length_ends_before_an_unanswered_call_and_its_reasoning():
    done = [USER, THOUGHT, call("a"), call("b"), output("b"), output("a")]

    assert closed_length(done) == 6
    assert closed_length([*done, THOUGHT, call("c")]) == 6
    assert closed_length(done[:5]) == 1
    assert closed_length([*done, THOUGHT]) == 7
    assert closed_length([call("a")]) == 0
    assert closed_length([]) == 0


def test_the_same_call_id_in_two_turns():
    items = [call("a"), output("a"), call("a")]

    assert closed_length(items) == 2
    assert prune([*items, SEALED, output("a")])[0] == [SEALED, call("a"), output("a")]


def test_prune_drops_what_is_before_the_latest_compaction():
    items = [USER, SEALED, call("a"), output("a"), {**SEALED, "id": "cmp_2"}, USER]

    window, replaced = prune(items)

    assert window == [{**SEALED, "id": "cmp_2"}, USER]
    assert replaced == items[:4]
    assert prune([USER]) == ([USER], [])


def test_prune_keeps_calls_that_are_answered_later_with_their_reasoning():
    items = [USER, call("a"), output("a"), THOUGHT, call("b"), SEALED, output("b")]

    window, replaced = prune(items)

    assert window == [SEALED, THOUGHT, call("b"), output("b")]
    assert replaced == items[:3]


def test_plain_items_have_no_encrypted_content_ids_or_unpaired_calls():
    reply = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    hosted = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "c"}

    items = [USER, SEALED, THOUGHT, call("a"), {**output("a"), "id": "x"}, output("z"), reply, hosted, call("b")]

    without_id = {key: value for key, value in call("a").items() if key != "id"}
    assert plain(items) == [
        USER,
        without_id,
        output("a"),
        {"type": "message", "role": "assistant", "content": []},
        hosted,
    ]


def test_chunks_never_divide_a_call_and_its_output():
    items = [USER, call("a"), call("b"), output("a"), output("b"), USER, USER]

    assert chunks(items, lambda _: 1, 2) == [[USER], items[1:5], [USER, USER]]
    assert chunks(items, lambda _: 1, 100) == [items]
    assert chunks([], lambda _: 1, 2) == []


def test_newest_keeps_whole_blocks_and_at_least_the_last():
    items = [USER, call("a"), output("a"), USER]

    assert newest(items, lambda _: 1, 3) == items[1:]
    assert newest(items, lambda _: 1, 2) == [USER]
    assert newest(items, lambda _: 1, 0) == [USER]


# ── property: lists are never divided between a call and its output ──────────────────────────────────────────────────


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns with parallel calls, outputs in any order, reasoning, and compaction items at any place."""
    items: list[dict[str, Any]] = [USER]
    for turn in range(draw(st.integers(0, 8))):
        ids = [f"{turn}-{number}" for number in range(draw(st.integers(0, 3)))]
        reply: list[dict[str, Any]] = []
        for call_id in ids:
            reply += [THOUGHT] if draw(st.booleans()) else []
            reply.append(call(call_id))
        if draw(st.integers(0, 3)) == 0:
            reply.insert(draw(st.integers(0, len(reply))), {**SEALED, "id": f"cmp_{turn}"})
        items += [*reply, *map(output, draw(st.permutations(ids))), *([USER] if draw(st.booleans()) else [])]
    return items


@given(histories())
def test_everything_that_is_divided_stays_paired(items):
    window, replaced = prune(items)
    assert unpaired(window) == []
    assert unpaired(replaced) == []
    assert unpaired(plain(items)) == []
    assert [unpaired(block) for block in closed_blocks(items)] == [[]] * len(list(closed_blocks(items)))
    assert [item for block in closed_blocks(items) for item in block] == items
    for limit in (0, 1, 3, 10):
        assert [unpaired(chunk) for chunk in chunks(items, lambda _: 1, limit) if unpaired(chunk)] == []
        assert unpaired(newest(items, lambda _: 1, limit)) == []


@given(histories(), st.data())
def test_the_closed_prefix_of_a_cut_history_is_paired(items, data):
    cut = items[: data.draw(st.integers(0, len(items)))]
    length = closed_length(cut)

    assert unpaired(cut[:length]) == []
    assert not any(answered_by(item) in {call_of(one) for one in cut[:length]} - {None} for item in cut[length:])
