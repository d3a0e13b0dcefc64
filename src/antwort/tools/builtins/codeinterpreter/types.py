"""The function of the code interpreter: its description for the model, and the parser of its arguments. Pure.

Small models write arguments that are nearly valid. What is unambiguous is accepted; the rest
is a `BadArguments` whose message says what to write instead.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from msgspec import Struct

from antwort.engine.ports import FunctionSpec

NAME: Final = "code_interpreter"

_DESCRIPTION: Final = """\
Run Python, as in a notebook: variables, imports and files stay from call to call. You get what the code prints and \
the value of its last expression; matplotlib figures are shown to the user.
The working directory is /mnt/data. The user's files are there; save files for the user there too, and give them as \
links such as [report.csv](sandbox:/mnt/data/report.csv).
numpy, pandas and matplotlib are installed. There is no network; ask for other packages with `requirements`."""

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "The Python code to run."},
        "requirements": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Packages to install before the code runs, such as openpyxl or scipy>=1.14. Usually none.",
        },
    },
    "required": ["code"],
    "additionalProperties": False,
}

_ONE_SHOT_DESCRIPTION: Final = """\
Run Python. Each call is a new process: no variable, import or function stays, so each call must be complete; print \
what you want to see.
The user's files are in the working directory. Save files for the user, and for later calls, in the directory \
os.environ["OUTPUT_DIR"]; later calls find them in the working directory. Give them to the user as links such as \
[report.csv](sandbox:/mnt/data/report.csv). Images that you save there are shown to the user.
Ask for packages with `requirements`."""

SPEC: Final = FunctionSpec(NAME, _DESCRIPTION, _PARAMETERS)
ONE_SHOT_SPEC: Final = FunctionSpec(NAME, _ONE_SHOT_DESCRIPTION, _PARAMETERS)
"""For a sandbox server that runs every call in a new process."""


class BadArguments(ValueError):
    """The arguments of a call are invalid. The message tells the model how to write them."""


class Arguments(Struct, frozen=True):
    """The code to run, and the packages that it needs."""

    code: str
    requirements: tuple[str, ...] = ()


def read_arguments(written: str) -> Arguments:
    """Parse the arguments of a call."""
    try:
        given: object = json.loads(written, strict=False)  # models often write raw line breaks within strings
    except (ValueError, RecursionError) as error:
        raise BadArguments(
            f'The arguments are not valid JSON ({error}), so nothing was run. Write {{"code": "..."}} with line breaks '
            "and quotation marks in the code escaped."
        ) from error
    if not isinstance(given, dict):
        raise BadArguments('The arguments must be a JSON object with the Python code as "code". Nothing was run.')
    fields = cast("dict[str, object]", given)
    code = fields.get("code")
    if not isinstance(code, str) or not code.strip():
        raise BadArguments('There is no code to run: put the Python code into "code" as a string.')
    return Arguments(_replace_surrogates(code), _requirements(fields.get("requirements")))


def _requirements(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    names = cast("list[object]", given) if isinstance(given, list) else [given]
    if not all(isinstance(name, str) for name in names):
        raise BadArguments('"requirements" must be a list of package names. Nothing was run.')
    return tuple(name for name in cast("list[str]", names) if name.strip())


def _replace_surrogates(code: str) -> str:
    """Replace unpaired surrogates, which JSON escapes can produce and UTF-8 cannot encode."""
    return code.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
