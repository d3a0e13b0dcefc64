from __future__ import annotations

from weakincentives.tools import CommandOutput, ShellResult


def test_outputs_are_rendered_with_how_they_ended():
    assert CommandOutput("out\n", "err\n", 2).render() == "out\nerr\n(exit code 2)"
    assert CommandOutput("half", "", None).render() == "half\n(timed out)"
    assert ShellResult((CommandOutput("a"), CommandOutput("b"))).render() == "a\n(exit code 0)\nb\n(exit code 0)"
    assert ShellResult().render() == "(no commands)"


def test_only_commands_that_all_exit_with_zero_are_a_success():
    assert ShellResult((CommandOutput(), CommandOutput())).success
    assert not ShellResult((CommandOutput(), CommandOutput(exit_code=1))).success
    assert not ShellResult((CommandOutput(exit_code=None),)).success
