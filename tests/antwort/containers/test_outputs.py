from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.containers.outputs import truncate_result
from antwort.containers.sandboxes.port import ExecutionResult, Figure, Output

STREAMS = st.sampled_from(["stdout", "stderr"])
PRINTED = st.lists(st.builds(Output, STREAMS, st.text(st.characters(codec="utf-8"), max_size=20)), max_size=8)


def texts(outcome: ExecutionResult) -> str:
    return "".join(one.text for one in outcome.output)


def test_a_result_within_the_limit_is_unchanged():
    outcome = ExecutionResult(
        status="ok", output=(Output("stdout", "a"),), echo="1", figures=(Figure("image/png", b"123"),), cut_bytes=5
    )

    assert truncate_result(outcome, 6) == outcome


def test_long_output_keeps_head_and_tail_in_their_streams():
    output = (Output("stdout", "a" * 100), Output("stderr", "b" * 100), Output("stdout", "c" * 100))
    cut = truncate_result(ExecutionResult(status="ok", output=output, cut_bytes=7), 250)

    assert [(one.stream, one.text) for one in cut.output] == [
        ("stdout", "a" * 100),
        ("stderr", "b" * 25),
        ("stdout", "\n[... 50 bytes cut ...]\n"),
        ("stderr", "b" * 25),
        ("stdout", "c" * 100),
    ]
    assert cut.cut_bytes == 57


def test_a_long_echo_is_truncated():
    cut = truncate_result(ExecutionResult(status="ok", echo="x" * 10_000), 100)

    assert cut.echo is not None
    assert len(cut.echo) < 150
    assert "bytes cut" in cut.echo


def test_figures_that_are_too_large_are_left_out_with_a_note():
    small, large = Figure("image/png", b"x" * 30), Figure("image/png", b"x" * 300)
    cut = truncate_result(ExecutionResult(status="ok", figures=(large, small)), 200)

    assert cut.figures == (small,)
    assert "left out: 1" in texts(cut)


@given(PRINTED, st.integers(1, 60))
def test_any_output_is_truncated_to_the_limit(output, most):
    whole = ExecutionResult(status="ok", output=tuple(output))
    cut = truncate_result(whole, most)

    if len(texts(whole).encode()) <= most:
        assert cut == whole
    else:
        mark = f"\n[... {cut.cut_bytes} bytes cut ...]\n"
        head, found, tail = texts(cut).partition(mark)
        assert found
        assert texts(whole).startswith(head)
        assert texts(whole).endswith(tail)
        assert len((head + tail).encode()) <= most


@pytest.mark.parametrize("most", [1, 2])
def test_tiny_limits(most):
    assert "bytes cut" in texts(
        truncate_result(ExecutionResult(status="ok", output=(Output("stdout", "🎈" * 10),)), most)
    )
