from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.truncate import excerpt, fitting


def test_a_short_text_stays_as_it_is():
    assert excerpt("abc", 3) == "abc"
    assert fitting("äb", 3) == "äb"


def test_of_a_long_one_both_ends_stay():
    assert excerpt("abcdefgh", 5) == "ab\n[... 3 characters cut ...]\nfgh"
    assert fitting("abcdefgh", 5) == "ab\n[... 3 bytes cut ...]\nfgh"
    assert excerpt("abc", 1) == "\n[... 2 characters cut ...]\nc"
    assert excerpt("abc", 0) == "\n[... 3 characters cut ...]\n"
    assert fitting("abc", 0) == "\n[... 3 bytes cut ...]\n"


@given(st.text(), st.integers(0, 40))
def test_no_character_is_cut_in_two(text, most):
    head, *_ = fitting(text, most).split("\n[... ")

    assert text.startswith(head)
    assert len(fitting(text, most).encode()) <= most + 40
