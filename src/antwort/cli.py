"""CLI: the commands of `antwort.extras.COMMANDS`. Each is imported when it is used.

A command whose extra is not installed is listed too: its help, and its error, say what to install.
"""

from __future__ import annotations

import importlib
from keyword import iskeyword
from typing import Any

import click

from antwort.extras import COMMANDS, explain_missing, require


class MissingExtra(click.ClickException):
    """A command needs an extra that is not installed."""

    exit_code = 2


class _LazyGroup(click.Group):
    """Click group that imports a command when it is called, so that each needs only its own extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, extra = COMMANDS[cmd_name]
        try:
            require(extra)
            attribute = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            return _missing_command(cmd_name, explain_missing(error, extra))
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click declares it
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            command = ctx.invoked_subcommand or ""
            raise MissingExtra(f"`antwort {command}` {explain_missing(error, COMMANDS[command].extra)}") from error


def _missing_command(name: str, reason: str) -> click.Command:
    """Stands in for a command that cannot be imported; takes any arguments, so that `--help` works after them too."""

    def fail() -> None:
        raise MissingExtra(f"`antwort {name}` {reason}")

    text = f"{reason[0].upper()}{reason[1:]}"
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    # \b: click does not wrap the line, so that the command in it can be copied.
    return click.Command(name, context_settings=settings, callback=fail, help=f"\b\n{text}", short_help=text)


@click.group(cls=_LazyGroup)
def main() -> None:
    """OpenAI's Responses API and its hosted tools, on your own machine or cluster."""
