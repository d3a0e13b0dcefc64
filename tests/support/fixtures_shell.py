"""Fixtures for the hosted shell: the real server, and a scripted model that runs the commands of the user's text."""

from __future__ import annotations

from typing import Any

from fixtures_code_interpreter import AUTO

SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
BOTH = [SHELL, AUTO]


def shell(*commands: str, **more: int) -> dict[str, Any]:
    """A call of the shell, as a step of a script."""
    return {"call": {"name": "shell", "arguments": {"commands": list(commands), **more}}}


SCRIPT: dict[str, Any] = {
    "fragment": 5,
    "answers": [
        {"when": {"text": "/^# shell/", "turn": 1}, "reply": [shell("<<text>>")]},
        {
            "when": {"text": "/^# python/", "turn": 1},
            "reply": [{"call": {"name": "code_interpreter", "arguments": {"code": "<<text>>"}}}],
        },
        {"when": {"text": "/^# (shell|python)/"}, "reply": [{"text": "<<output>>"}]},
        {"when": {"text": "without end"}, "reply": [{"text": "begun "}, {"delay": 600}]},
        {"when": {"text": "forever", "tool": "shell"}, "reply": [shell("echo again")]},
        {"reply": [{"text": "You said: <<text>>"}]},
    ],
}


def shell_calls(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "shell_call"]


def shell_outputs(response: Any) -> list[Any]:
    """The entries of all outputs."""
    return [entry for item in response.output if item.type == "shell_call_output" for entry in item.output]
