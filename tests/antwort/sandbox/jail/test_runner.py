"""Runner functions that need no container."""

from __future__ import annotations

import pytest

from antwort.sandbox.jail import runner


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


BadInt = type("BadInt", (int,), {"__and__": lambda *_: "x"})


@pytest.mark.parametrize(
    "code, seen", [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), ("words", 1), (BadInt(3), 3), (True, 1), ([], 1)]
)
def test_exit_code_as_a_shell_sees_it(code, seen):
    assert runner.exit_code(SystemExit(code)) == seen


def test_truncate_keeps_head_and_tail():
    text = runner.truncate("h" * runner.MAX_TEXT_CHARS + "t" * runner.MAX_TEXT_CHARS)
    assert text.startswith("h" * 1000)
    assert text.endswith("t" * 1000)
    assert f"[... {runner.MAX_TEXT_CHARS} characters cut ...]" in text
    assert runner.truncate("x" * runner.MAX_TEXT_CHARS) == "x" * runner.MAX_TEXT_CHARS


@pytest.mark.parametrize("error", [Unprintable(), ValueError("x" * (3 << 20)), KeyboardInterrupt()])
def test_any_error_becomes_a_bounded_reply(error):
    reply = runner.failure_reply(error)
    assert reply["status"] == ("interrupted" if isinstance(error, KeyboardInterrupt) else "error")
    assert all(len(text) <= runner.MAX_TEXT_CHARS + 100 for text in reply["texts"].values())


def test_a_traceback_starts_at_the_users_code():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("def f(): return 1 / 0\nf()", "<cell 7>", "exec"), {})  # noqa: S102 - what the runner does
    text = runner.clean_traceback(caught.value)
    assert text.startswith('Traceback (most recent call last):\n  File "<cell 7>", line 2')
    assert "test_runner" not in text


def test_traceback_of_an_exception_whose_str_raises():
    assert "Unprintable" in runner.clean_traceback(Unprintable())


def test_input_raises_at_once():
    with pytest.raises(EOFError, match="Put the value into the code"):
        runner.no_input("Name? ")
