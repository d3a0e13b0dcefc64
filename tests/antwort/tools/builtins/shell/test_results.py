from __future__ import annotations

import pytest

from antwort.containers.sandboxes.port import ExecutionResult, ExecutionStatus, Output
from antwort.tools.builtins.shell.results import (
    SANDBOX_RESTARTED,
    ShellOutput,
    command_output,
    interrupted_output,
    model_text,
)


def result(status: ExecutionStatus = "exit", stdout: str = "", stderr: str = "", **fields) -> ExecutionResult:
    output = tuple(one for one in (Output("stdout", stdout), Output("stderr", stderr)) if one.text)
    return ExecutionResult(status=status, output=output, **fields)


def shown(one: ExecutionResult, *, max_bytes: int = 1000, max_length: int | None = None) -> ShellOutput:
    return command_output(one, max_bytes=max_bytes, max_length=max_length)


def test_an_entry_has_both_streams_and_the_outcome():
    entry = shown(result(stdout="a\n", stderr="b\n", exit_code=3)).entry()
    assert entry == {"outcome": {"type": "exit", "exit_code": 3}, "stderr": "b\n", "stdout": "a\n"}
    assert shown(result("timeout", stdout="a", exit_code=-1)).entry()["outcome"] == {"type": "timeout"}


@pytest.mark.parametrize(
    "one, reason",
    [
        (result("oom", exit_code=-1, sandbox_alive=False), "more memory"),
        (result("ended", exit_code=137, sandbox_alive=False, reason="it was killed"), "it was killed"),
        (result("interrupted", exit_code=137), "interrupted"),
    ],
)
def test_the_reason_of_a_command_that_did_not_end_by_itself_is_in_stderr(one, reason):
    assert reason in shown(one).stderr
    assert shown(one).exit_code == one.exit_code


@pytest.mark.parametrize("limit", [1, 10, 50, 60, 199, 200])
@pytest.mark.parametrize("stdout, stderr", [("a" * 100, "b" * 100), ("a" * 200, ""), ("", "b" * 200), ("a", "b" * 199)])
def test_the_length_limits_both_streams_together(limit, stdout, stderr):
    output = shown(result(stdout=stdout, stderr=stderr), max_length=limit)
    assert len(output.stdout) + len(output.stderr) <= limit
    assert output.stdout.startswith(stdout[: limit // 4])
    if limit == 200:
        assert (output.stdout, output.stderr) == (stdout, stderr)


def test_head_and_tail_are_kept():
    output = shown(result(stdout="".join(f"{n}\n" for n in range(1000))), max_length=200)
    assert output.stdout.startswith("0\n1\n")
    assert output.stdout.endswith("998\n999\n")
    assert "characters cut" in output.stdout


def test_the_size_limits_each_stream():
    output = shown(result(stdout="a" * 5000, stderr="b" * 5000), max_bytes=1000)
    assert 500 < len(output.stdout) < 1100
    assert 500 < len(output.stderr) < 1100


def test_an_interrupted_command_has_no_exit_code_of_its_own():
    assert interrupted_output("a", "b", "It was lost.").entry() == {
        "outcome": {"type": "exit", "exit_code": -1},
        "stderr": "b\n[It was lost.]",
        "stdout": "a",
    }


def test_the_text_for_the_model():
    outputs = [ShellOutput("a\n", "", 0), ShellOutput("", "no\n", 1), ShellOutput("", "", None)]
    text = model_text(outputs, files=["x"], is_restarted=True)
    assert (
        text == f"{SANDBOX_RESTARTED}\na\n(exit code 0)\nno\n(exit code 1)\n(timed out)\n[files written: /mnt/data/x]"
    )
    many = model_text(outputs[:1], files=[str(at) for at in range(30)], is_restarted=False)
    assert many.endswith("/mnt/data/19 and 10 more]")
