"""`shell` on the client: a function for commands, and the items of its calls."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from antwort.api.errors import malformed
from antwort.api.ids import new_id
from antwort.api.tools import ShellTool
from antwort.engine.ports import FunctionSpec, PreparedTool, Progress, ToolContext
from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object
from antwort.tools.client_run.prepared import ItemOfCall, PreparedClientTool, deltas, parameters

MAX_COMMANDS: Final = 64
_COMMAND: Final = "response.shell_call_command"
_MAX_SKILLS: Final = 200

_DESCRIPTION: Final = f"""\
Run shell commands on the machine of the user. Give one or more commands (at most {MAX_COMMANDS}); for each one you \
get the output, the errors and the exit code. There is no terminal: a command must not ask questions."""

_COUNT: Final = {"type": "integer", "minimum": 1}
_PARAMETERS: Final = parameters(
    ["commands"],
    commands={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_COMMANDS},
    timeout_ms={**_COUNT, "description": "Milliseconds that the commands may take."},
    max_output_length={**_COUNT, "description": "Characters that you want to read of each command at most."},
)

Count = Annotated[int, Meta(ge=1, le=2**53)]


class _LocalSkill(Struct, forbid_unknown_fields=True):
    """A skill that the client has in a directory."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: Annotated[str, Meta(max_length=4096)]
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class _LocalEnvironment(Struct, tag_field="type", tag="local", forbid_unknown_fields=True):
    """The client runs the commands."""

    skills: Annotated[list[_LocalSkill], Meta(max_length=_MAX_SKILLS)] | None = None


class ShellArguments(Struct):
    """The arguments of a call."""

    commands: Annotated[list[str], Meta(min_length=1, max_length=MAX_COMMANDS)]
    timeout_ms: Count | None = None
    max_output_length: Count | None = None


def prepare_local(tool: ShellTool, param: str, context: ToolContext) -> PreparedTool:
    """The shell of a declaration without an environment, or with `{"type": "local"}`; its calls go to the client."""
    del context
    given: Any = msgspec.to_builtins(tool.environment)
    try:
        environment = _LocalEnvironment() if given is None else msgspec.convert(given, _LocalEnvironment)
    except msgspec.ValidationError as error:
        raise malformed(error, root=f"{param}.environment", document=given) from error
    description = "\n\n".join(filter(None, (_DESCRIPTION, _skills(environment.skills or []))))
    return PreparedClientTool(FunctionSpec("shell", description, _PARAMETERS), read_call)


def _skills(skills: list[_LocalSkill]) -> str:
    """The skills for the model: it reads the instructions of one with a command."""
    if not skills:
        return ""
    listed = "\n".join(f"- {skill.name} ({skill.path}): {skill.description}" for skill in skills)
    return f"Skills: directories with a file SKILL.md. Read that file before you do such a task.\n{listed}"


def read_call(call_id: str, written: str) -> ItemOfCall:
    """The item of a call, and the events of its commands."""
    given = convert(_with_list(read_object(written), "commands"), ShellArguments)
    if not all(map(str.strip, given.commands)):
        raise InvalidArguments("a command is empty")
    item: dict[str, Any] = {"id": new_id("sh_"), "type": "shell_call", "status": "in_progress", "call_id": call_id}
    limits = {"max_output_length": given.max_output_length, "timeout_ms": given.timeout_ms}
    begun: dict[str, Any] = {**item, "action": {"commands": [], **limits}}
    done = {**item, "status": "completed", "action": {"commands": given.commands, **limits}}
    return ItemOfCall(begun, done, [event for at, text in enumerate(given.commands) for event in _events(at, text)])


def _with_list(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The arguments where a model wrote one command as a string, or called the field `command`."""
    commands: object = fields.get(name, fields.get("command"))
    if commands is None:
        return fields
    return {**fields, name: [commands] if isinstance(commands, str) else commands}


def _events(index: int, command: str) -> list[Progress]:
    """The events of a command, which have no item id."""
    texts = [("added", {"command": ""}), *(("delta", {"delta": part}) for part in deltas(command))]
    texts.append(("done", {"command": command}))
    return [
        Progress(f"{_COMMAND}.{step}", {"command_index": index, **fields}, has_item_id=False) for step, fields in texts
    ]
