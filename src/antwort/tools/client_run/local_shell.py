"""`local_shell`, the earlier form of the shell on the client: a function for one command, and its items."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from antwort.api.ids import new_id
from antwort.engine.ports import FunctionSpec
from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object, without_nulls
from antwort.tools.client_run.prepared import ItemOfCall, parameters

MAX_WORDS: Final = 1024

_DESCRIPTION: Final = """\
Run one command on the machine of the user, and get its output. The command is a list: the program and its arguments. \
For pipes and redirections use ["bash", "-lc", "…"]. There is no terminal: the command must not ask questions."""

SPEC: Final = FunctionSpec(
    "local_shell",
    _DESCRIPTION,
    parameters(
        ["command"],
        command={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_WORDS},
        env={"type": "object", "additionalProperties": {"type": "string"}, "description": "Environment variables."},
        timeout_ms={"type": "integer", "minimum": 1, "description": "Milliseconds that the command may take."},
        user={"type": "string", "description": "The user that runs the command."},
        working_directory={"type": "string", "description": "The directory that the command runs in."},
    ),
)


class LocalShellArguments(Struct):
    """The arguments of a call."""

    command: Annotated[list[str], Meta(min_length=1, max_length=MAX_WORDS)]
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    user: str | None = None
    working_directory: str | None = None


def read_call(call_id: str, written: str) -> ItemOfCall:
    """The item of a call. A command that the model wrote as a string is one for a shell."""
    fields = {name: value for name, value in read_object(written).items() if value is not None}
    if isinstance(command := fields.get("command"), str):
        fields["command"] = ["bash", "-lc", command] if command.strip() else []
    given = convert(fields, LocalShellArguments)
    if not given.command[0].strip():
        raise InvalidArguments("the program of the command is empty")
    item: dict[str, Any] = {
        "id": new_id("lsh_"),
        "type": "local_shell_call",
        "status": "in_progress",
        "call_id": call_id,
    }
    begun: dict[str, Any] = {**item, "action": {"type": "exec", "command": [], "env": {}}}
    return ItemOfCall(begun, {**item, "status": "completed", "action": {"type": "exec", **without_nulls(given)}})
