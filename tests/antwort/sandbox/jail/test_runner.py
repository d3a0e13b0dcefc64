"""The runner's manners, as far as they need no container."""

from __future__ import annotations

import pytest

from antwort.sandbox.jail import runner


class Rude(Exception):
    def __str__(self) -> str:
        raise ValueError


Odd = type("Odd", (int,), {"__and__": lambda *_: "x"})


@pytest.mark.parametrize(
    "code, seen", [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), ("words", 1), (Odd(3), 3), (True, 1), ([], 1)]
)
def test_an_exit_code_is_what_the_shell_would_see(code, seen):
    assert runner.exit_code(SystemExit(code)) == seen


def test_what_is_too_long_keeps_head_and_tail():
    text = runner.shorten("h" * runner.LARGEST_ECHO + "t" * runner.LARGEST_ECHO)
    assert text.startswith("h" * 1000)
    assert text.endswith("t" * 1000)
    assert f"[... {runner.LARGEST_ECHO} characters cut ...]" in text
    assert runner.shorten("x" * runner.LARGEST_ECHO) == "x" * runner.LARGEST_ECHO


@pytest.mark.parametrize("error", [Rude(), ValueError("x" * (3 << 20)), KeyboardInterrupt()])
def test_any_error_becomes_a_bounded_answer(error):
    answer = runner.failure(error)
    assert answer["status"] == ("interrupted" if isinstance(error, KeyboardInterrupt) else "error")
    assert all(len(text) <= runner.LARGEST_ECHO + 100 for text in answer["texts"].values())


def test_a_traceback_begins_at_the_users_code():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("def f(): return 1 / 0\nf()", "<cell 7>", "exec"), {})  # noqa: S102 - it is what a cell does
    text = runner.clean_traceback(caught.value)
    assert text.startswith('Traceback (most recent call last):\n  File "<cell 7>", line 2')
    assert "test_runner" not in text


def test_a_traceback_of_an_error_that_cannot_be_printed():
    assert "Rude" in runner.clean_traceback(Rude())


def test_input_fails_at_once_and_says_what_to_do():
    with pytest.raises(EOFError, match="Put the value into the code"):
        runner.no_input("Name? ")
