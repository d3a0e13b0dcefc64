"""Program that runs in an installation: prints the results of `--help` of all commands and of imports, as JSON.

It imports the standard library and `antwort` only, because nothing else needs to be installed.

    python probe_installation.py '{"commands": [["keys", "create"]], "modules": ["antwort.api"]}'
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import traceback


def help_of(command: list[str]) -> dict[str, object]:
    """Exit status and output of `antwort … --help`."""
    from antwort.__main__ import main  # noqa: PLC0415 - its failure is a result, too

    sys.argv = ["antwort", *command, "--help"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
            status: object = 0
        except SystemExit as ending:
            status = ending.code or 0
        except Exception:  # noqa: BLE001 - the result contains it
            status = traceback.format_exc()
    return {"command": command, "status": status, "output": output.getvalue()}


def import_error(module: str) -> str | None:
    """Why a module cannot be imported; None if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - the result contains it
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    result = {
        "help": [help_of(command) for command in asked["commands"]],
        "errors": {module: error for module in asked["modules"] if (error := import_error(module)) is not None},
    }
    sys.stdout.write(json.dumps(result))
