from __future__ import annotations

from weakincentives.tools import CommandOutput, ShellResult


def test_render_has_outputs_and_exit_codes():
    assert CommandOutput("out\n", "err\n", 2).render() == "out\nerr\n(exit code 2)"
    assert CommandOutput("half", "", None).render() == "half\n(timed out)"
    assert ShellResult((CommandOutput("a"), CommandOutput("b"))).render() == "a\n(exit code 0)\nb\n(exit code 0)"
    assert ShellResult().render() == "(no commands)"


def test_success_requires_exit_code_zero_of_all_commands():
    assert ShellResult((CommandOutput(), CommandOutput())).success
    assert not ShellResult((CommandOutput(), CommandOutput(exit_code=1))).success
    assert not ShellResult((CommandOutput(exit_code=None),)).success
