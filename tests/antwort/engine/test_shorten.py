from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import read
from antwort.engine.shorten import shortened


def said(role, text="x"):
    return read({"type": "message", "role": role, "content": text})


def call(call_id):
    return read({"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"})


def output(call_id):
    return read({"type": "function_call_output", "call_id": call_id, "output": "y"})


def test_the_older_half_goes_and_the_last_question_stays():
    old = [said("user", f"{at}") for at in range(6)]
    now = said("user", "now")

    assert shortened([*old, now]) == [*old[3:], now]
    assert shortened([*old[:1], now]) == [now]
    assert shortened([now]) is None
    assert shortened([]) is None


def test_instructions_stay_and_so_does_the_turn_under_way():
    rules, old, now = said("developer"), said("assistant"), said("user")
    under_way = [now, call("b"), output("b")]

    assert shortened([rules, old, rules, *under_way]) == [rules, rules, *under_way]
    assert shortened([rules, rules, *under_way]) is None


def test_a_result_goes_with_its_call():
    history = [call("a"), said("assistant"), output("a"), said("user")]

    assert shortened(history) == [said("user")]


def test_without_a_user_the_last_item_stays():
    assert shortened([said("assistant", "a"), said("assistant", "b")]) == [said("assistant", "b")]


@given(
    st.lists(
        st.sampled_from(["user", "assistant", "developer"]).map(said)
        | st.sampled_from("ab").map(call)
        | st.sampled_from("ab").map(output),
        max_size=20,
    )
)
def test_it_gets_shorter_until_nothing_may_go(history):
    while (shorter := shortened(history)) is not None:
        assert len(shorter) < len(history)
        assert all(any(item is old for old in history) for item in shorter)
        history = shorter


def test_what_was_stored_with_a_strange_call_id_is_no_trouble():
    strange = read({"type": "shell_call", "call_id": [1]})

    assert shortened([said("user"), said("user"), strange, said("user", "now")]) == [strange, said("user", "now")]
