"""`shell` on the client: a function for commands, and the items of its calls."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from antwort.api.errors import malformed
from antwort.api.ids import new_id
from antwort.api.tools import ShellTool
from antwort.engine.partial_json import ListItem, ListReader
from antwort.engine.ports import (
    CallDefaults,
    FunctionSpec,
    HostedCall,
    PreparedTool,
    Progress,
    ToolContext,
    ToolDone,
)
from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object
from antwort.tools.client_run.prepared import (
    ItemOfCall,
    PreparedClientTool,
    deltas,
    parameters,
    read_in_thread_if_long,
)

MAX_COMMANDS: Final = 64
_BEGINNING_RE: Final = re.compile(r'\s*\{\s*"commands"\s*:\s*\[\s*"')
"""The arguments of a call up to its first command."""
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
    return PreparedLocalShell(FunctionSpec("shell", description, _PARAMETERS), read_call)


def _skills(skills: list[_LocalSkill]) -> str:
    """The skills for the model: it reads the instructions of one with a command."""
    if not skills:
        return ""
    listed = "\n".join(f"- {skill.name} ({skill.path}): {skill.description}" for skill in skills)
    return f"Skills: directories with a file SKILL.md. Read that file before you do such a task.\n{listed}"


def read_call(call_id: str, written: str) -> ItemOfCall:
    """The item of a call, and the events of its commands."""
    given = _read_arguments(written)
    events = [event for at, text in enumerate(given.commands) for event in _events(at, text)]
    begun = _begun(call_id)
    return ItemOfCall(begun, _done(begun, given.commands, given), events)


def _read_arguments(written: str) -> ShellArguments:
    """The arguments, also where a model wrote one command as a string, or called the field `command`."""
    fields = read_object(written)
    commands: object = fields.get("commands", fields.get("command"))
    if commands is not None:
        fields["commands"] = [commands] if isinstance(commands, str) else commands
    given = convert(fields, ShellArguments)
    if not all(map(str.strip, given.commands)):
        raise InvalidArguments("a command is empty")
    return given


class PreparedLocalShell(PreparedClientTool):
    """The shell of a response. Its commands are streamed while the model writes them."""

    begins_at = _BEGINNING_RE

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        if _BEGINNING_RE.match(arguments):
            return StreamedShellCall(call_id)
        return await super().open(name, call_id, arguments)


class StreamedShellCall(CallDefaults):
    """A call whose commands the client gets while the model writes them.

    Those that the model has written to their end are sent to the client, whatever follows them. Empty ones are left
    out. A call with too many commands is not for the client: it ends as incomplete.
    """

    def __init__(self, call_id: str) -> None:
        self._begun = _begun(call_id)
        self._reader = ListReader("commands")
        self._arguments: list[str] = []
        self._commands: list[str] = []
        self._parts: list[str] = []
        self._is_shown = False
        """The command that is being written is not empty."""
        self._has_too_many = False

    @property
    def item(self) -> dict[str, Any]:
        return self._begun

    def started_events(self) -> Sequence[Progress]:
        return ()

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments.append(delta)
        return [event for part in self._reader.feed(delta) for event in self._part_events(part)]

    def _part_events(self, part: ListItem) -> Iterator[Progress]:
        if not part.text and not part.is_end:
            self._parts, self._is_shown = [], False
        index = len(self._commands)
        if index >= MAX_COMMANDS:
            self._has_too_many |= bool(part.text.strip())
            return
        self._parts.append(part.text)
        text = part.text
        if not self._is_shown and text.strip():
            self._is_shown, text = True, "".join(self._parts)
            yield _event("added", index, command="")
        if not self._is_shown:
            return
        for piece in deltas(text):
            yield _event("delta", index, delta=piece)
        if part.is_end:
            self._commands.append("".join(self._parts))
            yield _event("done", index, command=self._commands[-1])

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        try:
            given = await read_in_thread_if_long("".join(self._arguments), _read_arguments)
        except InvalidArguments as error:
            given, problem = ShellArguments([]), str(error)
        else:
            problem = ""
        if self._has_too_many:
            problem = f"more than {MAX_COMMANDS} commands in one call; write a script instead"
        elif self._commands:
            yield ToolDone(_done(self._begun, self._commands, given), "", awaits_client=True)
            return
        failed = self.failed(f"Nothing was done: {problem}.")
        yield msgspec.structs.replace(failed, is_broken=True)

    def failed(self, reason: str) -> ToolDone:
        item = _done(self._begun, self._commands, ShellArguments([]))
        return ToolDone({**item, "status": "incomplete"}, reason)


def _begun(call_id: str) -> dict[str, Any]:
    action: dict[str, Any] = {"commands": [], "max_output_length": None, "timeout_ms": None}
    return {
        "id": new_id("sh_"),
        "type": "shell_call",
        "status": "in_progress",
        "call_id": call_id,
        "action": action,
    }


def _done(begun: dict[str, Any], commands: list[str], limits: ShellArguments) -> dict[str, Any]:
    action = {
        "commands": commands,
        "max_output_length": limits.max_output_length,
        "timeout_ms": limits.timeout_ms,
    }
    return {**begun, "status": "completed", "action": action}


def _events(index: int, command: str) -> Iterator[Progress]:
    """The events of a whole command."""
    yield _event("added", index, command="")
    for part in deltas(command):
        yield _event("delta", index, delta=part)
    yield _event("done", index, command=command)


def _event(step: str, index: int, **fields: str) -> Progress:
    """An event of a command, which has no item id."""
    return Progress(f"{_COMMAND}.{step}", {"command_index": index, **fields}, has_item_id=False)
