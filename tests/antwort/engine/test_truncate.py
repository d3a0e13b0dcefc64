from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import read
from antwort.api.token_estimate import estimate_text
from antwort.engine.truncate import truncate_bytes, truncate_chars, truncate_history, truncate_tokens


def test_a_short_text_is_unchanged():
    assert truncate_chars("abc", 3) == "abc"
    assert truncate_bytes("äb", 3) == "äb"


def test_a_long_text_keeps_head_and_tail():
    assert truncate_chars("abcdefgh", 5) == "ab\n[... 3 characters cut ...]\nfgh"
    assert truncate_bytes("abcdefgh", 5) == "ab\n[... 3 bytes cut ...]\nfgh"
    assert truncate_chars("abc", 1) == "\n[... 2 characters cut ...]\nc"
    assert truncate_chars("abc", 0) == "\n[... 3 characters cut ...]\n"
    assert truncate_bytes("abc", 0) == "\n[... 3 bytes cut ...]\n"


@given(st.text(), st.integers(0, 40))
def test_no_character_is_split(text, limit):
    head, *_ = truncate_bytes(text, limit).split("\n[... ")

    assert text.startswith(head)
    assert len(truncate_bytes(text, limit).encode()) <= limit + 40


def message(role, text="x"):
    return read({"type": "message", "role": role, "content": text})


def call(call_id):
    return read({"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"})


def output(call_id):
    return read({"type": "function_call_output", "call_id": call_id, "output": "y"})


def test_history_drops_the_older_half_and_keeps_the_last_user_message():
    old = [message("user", f"{at}") for at in range(6)]
    now = message("user", "now")

    assert truncate_history([*old, now]) == [*old[3:], now]
    assert truncate_history([*old[:1], now]) == [now]
    assert truncate_history([now]) is None
    assert truncate_history([]) is None


def test_history_keeps_instructions_and_the_current_turn():
    rules, old, now = message("developer"), message("assistant"), message("user")
    under_way = [now, call("b"), output("b")]

    assert truncate_history([rules, old, rules, *under_way]) == [rules, rules, *under_way]
    assert truncate_history([rules, rules, *under_way]) is None


def test_history_drops_an_output_with_its_call():
    history = [call("a"), message("assistant"), output("a"), message("user")]

    assert truncate_history(history) == [message("user")]


def test_history_without_a_user_message_keeps_the_last_item():
    assert truncate_history([message("assistant", "a"), message("assistant", "b")]) == [message("assistant", "b")]


@given(
    st.lists(
        st.sampled_from(["user", "assistant", "developer"]).map(message)
        | st.sampled_from("ab").map(call)
        | st.sampled_from("ab").map(output),
        max_size=20,
    )
)
def test_history_gets_shorter_until_nothing_may_be_dropped(history):
    while (shorter := truncate_history(history)) is not None:
        assert len(shorter) < len(history)
        assert all(any(item is old for old in history) for item in shorter)
        history = shorter


def test_history_with_a_call_id_that_is_no_string():
    strange = read({"type": "shell_call", "call_id": [1]})

    assert truncate_history([message("user"), message("user"), strange, message("user", "now")]) == [
        strange,
        message("user", "now"),
    ]


@given(st.text(), st.integers(20, 200), st.sampled_from(["x", "word ", "長い", "é"]), st.integers(0, 300))
def test_tokens_are_cut_to_the_limit(text, limit, word, times):
    whole = text + word * times
    cut = truncate_tokens(whole, limit)

    assert estimate_text(cut) <= limit
    assert (cut == whole) == (estimate_text(whole) <= limit)


def test_a_text_of_another_density_at_its_ends_is_cut_too():
    assert estimate_text(truncate_tokens("長い" * 300 + "x" * 90_000, 100)) <= 100
    assert truncate_tokens("word " * 100, 0) == "\n[... 500 characters cut ...]\n"


def test_compaction_items_stay():
    item = read({"type": "compaction", "id": "cmp_1", "encrypted_content": "x"})
    kept = truncate_history([item, message("assistant"), message("user", "last")])

    assert kept == [item, message("user", "last")]
