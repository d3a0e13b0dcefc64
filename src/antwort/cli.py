"""CLI: `antwort serve | sandbox | doctor | keys | model`. Each command is imported when it is used."""

from __future__ import annotations

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "doctor": "antwort.http.cli",
    "keys": "antwort.http.cli",
    "model": "antwort.models.embedded.cli",
    "sandbox": "antwort.sandbox.cli",
    "serve": "antwort.http.cli",
}


class _LazyGroup(click.Group):
    """Click group that imports a command when it is called, so that each needs only its own extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command


@click.group(cls=_LazyGroup)
def main() -> None:
    """OpenAI's Responses API and its hosted tools, on your own machine or cluster."""
