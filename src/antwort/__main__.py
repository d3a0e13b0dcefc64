"""Entry point of `antwort` and of `python -m antwort`."""

from __future__ import annotations

import sys

from antwort.extras import COMMANDS, install_command


def main() -> None:
    """Run the CLI; without click, which every extra of the server brings, print what to install."""
    try:
        from antwort.cli import main as cli  # noqa: PLC0415 - needs an optional extra
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        if "--help" in sys.argv[1:]:
            sys.stdout.write(_help_without_click())
            return
        message = f"antwort: only the client library is installed. The server: {install_command('server')}"
        sys.stderr.write(f"{message}; `antwort --help` lists all commands.\n")
        raise SystemExit(2) from None
    cli()


def _help_without_click() -> str:
    lines = [f"  {command:8} {install_command(extra)}\n" for command, (_, extra) in COMMANDS.items()]
    return f"Usage: antwort COMMAND …\n\nNo command is installed. Each needs an extra:\n{''.join(lines)}"


if __name__ == "__main__":
    main()
