"""The function of the shell: its description for the model, and the parser of its arguments. Pure.

Small models write arguments that are nearly valid. What is unambiguous is accepted; the rest
is a `BadCommands` whose message says what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from antwort.engine.ports import FunctionSpec
from antwort.engine.stores import ContainerSkill

NAME: Final = "shell"
MAX_COMMANDS: Final = 50

_DESCRIPTION: Final = """\
Run shell commands (bash) in a Linux container, one after the other, each in a new process that starts in /mnt/data. \
You get stdout, stderr and the exit code of each. Files stay from call to call; the directory and variables of a \
command do not, so use `cd dir && ...` in the command that needs it.
The user's files are in /mnt/data; save files for the user there too, and give them as links such as \
[report.csv](sandbox:/mnt/data/report.csv). The usual programs are there (coreutils, git, sed, awk, grep, Python 3). \
There is no network, no terminal, and no input from the keyboard."""

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The commands to run, in order.",
        },
        "timeout_ms": {
            "type": "integer",
            "description": "Milliseconds after which a command is killed. Usually omitted.",
        },
        "max_output_length": {
            "type": "integer",
            "description": "Maximum characters of the output of each command. Usually omitted.",
        },
    },
    "required": ["commands"],
    "additionalProperties": False,
}

SPEC: Final = FunctionSpec(NAME, _DESCRIPTION, _PARAMETERS)


_SKILLS: Final = """
Skills are folders with instructions, scripts and files for certain tasks; they are read-only. When one fits the task, \
read its instructions first (`cat "$SKILLS_DIR/NAME/SKILL.md"`), and follow them. The skills:"""


def with_skills(spec: FunctionSpec, skills: Sequence[ContainerSkill]) -> FunctionSpec:
    """The function with a list of the skills in the container."""
    if not skills:
        return spec
    listed = "".join(f"\n- {skill.name}: {skill.description}" for skill in skills)
    return msgspec.structs.replace(spec, description=f"{spec.description}{_SKILLS}{listed}")


class BadCommands(ValueError):
    """The arguments of a call are invalid. The message tells the model how to write them."""


class CommandList(Struct, frozen=True):
    """The commands to run, as `action` of the item."""

    commands: tuple[str, ...]
    max_output_length: int | None = None
    timeout_ms: int | None = None


def read_action(written: str) -> CommandList:
    """Parse the arguments of a call."""
    try:
        given: object = json.loads(written, strict=False)  # models often write raw line breaks within strings
    except (ValueError, RecursionError) as error:
        raise BadCommands(
            f'The arguments are not valid JSON ({error}), so nothing was run. Write {{"commands": ["..."]}} with line '
            "breaks and quotation marks in the commands escaped."
        ) from error
    if not isinstance(given, dict):
        raise BadCommands('The arguments must be a JSON object with a list "commands". Nothing was run.')
    fields = cast("dict[str, object]", given)
    commands = fields.get("commands", fields.get("command"))
    listed = cast("list[object]", commands) if isinstance(commands, list) else [commands]
    if not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        raise BadCommands('There is no command to run: "commands" must be a list of strings that are not empty.')
    if len(listed) > MAX_COMMANDS:
        raise BadCommands(f"More than {MAX_COMMANDS} commands in one call. Nothing was run; write a script instead.")
    return CommandList(
        commands=tuple(_replace_surrogates(one) for one in cast("list[str]", listed)),
        max_output_length=_positive(fields, "max_output_length"),
        timeout_ms=_positive(fields, "timeout_ms"),
    )


def _positive(fields: dict[str, object], name: str) -> int | None:
    """A positive number; what is no such number stands for the default."""
    value = fields.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 1 << 53
    return int(cast("float", value)) if is_number else None


def _replace_surrogates(command: str) -> str:
    """Replace unpaired surrogates, which JSON escapes can produce and UTF-8 cannot encode."""
    return command.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
