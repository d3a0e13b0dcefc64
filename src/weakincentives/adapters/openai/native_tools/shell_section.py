"""Shell: commands that the model wrote, run in a container of the provider's, or here.

Here means an executor: the caller's, or a jail (`JailedShell`). There is no other way for a command to run on this
machine, and none at all for one of a shell that was not declared, or was declared to run at the provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ConfigError,
    LeftToUs,
    NativeSection,
    Ran,
    Reading,
    Scene,
    failure,
    one_of,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    ContainerLike,
    ExistingContainerRef,
    container_of,
    plain_container,
)
from weakincentives.adapters.openai.wire import Malformed, Wire, as_object, call_id_of, objects_in, text_in
from weakincentives.adapters.turn import ToolOutput
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.resources import ResourceRegistry
from weakincentives.tools.jailed_shell import JailedShell
from weakincentives.tools.shell import CommandOutput, ShellCall, ShellExecutor, ShellResult

_LOCAL = "local"
_AUTO = "container_auto"
_REFERENCE = "container_reference"
_ENVIRONMENTS = (_LOCAL, _AUTO, _REFERENCE)


@dataclass(frozen=True)
class ShellConfig:
    """Where commands run: in a `container` of the provider's, or, without one, here by the `executor`.

    Without an executor it is a `JailedShell`, on the evaluation's files.
    """

    container: ContainerLike | None = field(default=None, hash=False)
    executor: ShellExecutor | None = None


class Shell(Capability):
    """`shell` on the wire."""

    name = "shell"
    items = frozenset({"shell_call"})
    config_type = ShellConfig
    fields = ("environment", "allowed_callers")
    example = Ran(ShellCall(("ls",), 1000, 100), ToolResult("", ShellResult((CommandOutput("a.txt\n", "", 0),))))

    def write(self, config: ShellConfig) -> Wire:
        if config.container is None:
            return {"environment": {"type": _LOCAL}}
        if config.executor is not None:
            raise ConfigError("executor is for commands that run here, and container for those that do not: give one")
        try:
            container = container_of(config.container)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if isinstance(container, ExistingContainerRef):
            return {"environment": {"type": _REFERENCE, "container_id": container.id}}
        if container.host_mounts:
            raise ConfigError(
                "container.host_mounts are for code interpreter: upload the files, and give their file_ids"
            )
        return {"environment": {**as_object(plain_container(container), "container"), "type": _AUTO}}

    def adopt(self, given: Mapping[str, Any]) -> Wire | None:
        environment = given.get("environment")
        if isinstance(environment, Mapping):
            known = cast("Mapping[str, Any]", environment)
            one_of(known.get("type", ""), _ENVIRONMENTS, "environment.type")
            if known["type"] == _REFERENCE and not (
                isinstance(known.get("container_id"), str) and known["container_id"]
            ):
                raise ConfigError("environment.container_id must be the id of a container")
        elif environment is not None:
            raise ConfigError(f"environment must have a type, one of {', '.join(_ENVIRONMENTS)}, not {environment!r}")
        return super().adopt(given)

    def container(self, wire: Wire) -> str | None:
        return text_in(_environment(wire), "container_id") or None

    def place(self, wire: Wire, container_id: str) -> Wire | None:
        environment = _environment(wire)
        if (named := self.container(wire)) is not None:
            raise ConfigError(f"container is {named!r}, but a section of the prompt brings one")
        if environment.get("type") != _AUTO:
            return None
        return {**wire, "environment": {"type": _REFERENCE, "container_id": container_id}}

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        if not _runs_here(wire) or (isinstance(config, ShellConfig) and config.executor is not None):
            return
        if (reason := JailedShell.unavailable_reason()) is not None:
            raise ConfigError(
                f"commands would run on this machine, and cannot be jailed: {reason}. Give ShellConfig(executor=…), "
                "or a container"
            )
        if Filesystem not in resources:
            raise ConfigError(
                "commands would run on this machine, on files that are not there: give the evaluation a Filesystem, "
                "from a section such as VfsToolsSection, or with evaluate(resources=…)"
            )

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        action = as_object(item.get("action") or {}, "action")
        commands = action.get("commands")
        call = ShellCall(
            tuple(map(str, commands if isinstance(commands, list) else ())),  # pyright: ignore[reportUnknownArgumentType] - any JSON
            _count(action.get("timeout_ms")),
            _count(action.get("max_output_length")),
        )
        output = scene.outputs.get(call_id_of(item))
        if output is not None:
            value = ShellResult(tuple(map(_command_output, objects_in(output.get("output"), "output"))))
            return Ran(call, failure(output, value=value) or ToolResult("", value, success=value.success))
        wire = self.declare(config)
        if wire is None or not _runs_here(wire) or not _runs_here(item):
            return Ran(call, failure({**item, "error": {"message": "the provider sent no output"}}) or ToolResult(""))
        executor = config.executor if isinstance(config, ShellConfig) and config.executor else JailedShell()
        return LeftToUs(
            call,
            lambda context: run(call, executor, context),
            lambda said: _answer(call_id_of(item), call, said),
            undone_on_failure=False,
        )


def run(call: ShellCall, executor: ShellExecutor, context: ToolContext) -> ToolResult[ShellResult]:
    """Have the commands run. One that exits with another code than 0 is no success, but what it did stays done."""
    value = ShellResult(tuple(executor(call, context=context)))
    if len(value.outputs) != len(call.commands):
        return ToolResult.error(f"the executor answered {len(value.outputs)} of {len(call.commands)} commands.")
    return ToolResult("", value, success=value.success)


def _environment(holder: Wire) -> Wire:
    return as_object(holder.get("environment") or {}, "environment")


def _runs_here(holder: Wire) -> bool:
    """Whether a declaration, or a call, is of commands that are left to us."""
    return _environment(holder).get("type", _LOCAL) == _LOCAL


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _command_output(raw: Wire) -> CommandOutput:
    outcome = as_object(raw.get("outcome") or {}, "outcome")
    code = outcome.get("exit_code") or 0
    if not isinstance(code, int):
        raise Malformed(f"'exit_code' is no number but {code!r}")
    ended = outcome.get("type") != "timeout"
    return CommandOutput(text_in(raw, "stdout"), text_in(raw, "stderr"), code if ended else None)


def _answer(call_id: str, call: ShellCall, said: ToolOutput) -> Wire:
    """One entry for each command, also where none of them was run."""
    value = said.value if isinstance(said.value, ShellResult) else None
    outputs = value.outputs if value else tuple(CommandOutput("", said.text, 1) for _ in call.commands)
    echoed = {} if call.max_output_length is None else {"max_output_length": call.max_output_length}
    return {
        "type": "shell_call_output",
        "call_id": call_id,
        "output": [
            {
                "stdout": output.stdout,
                "stderr": output.stderr,
                "outcome": {"type": "timeout"}
                if output.exit_code is None
                else {"type": "exit", "exit_code": output.exit_code},
            }
            for output in outputs
        ],
        **echoed,
    }


CAPABILITY = Shell()


class OpenAIShellSection(NativeSection[ShellConfig]):
    """Lets the model run shell commands: in a container of the provider's, or here, by an executor or in a jail."""

    capability = CAPABILITY

    def __init__(self, *, default_params: ShellConfig | None = None) -> None:
        super().__init__(
            title="Shell",
            key="openai_shell",
            default_params=default_params or ShellConfig(),
            accepts_overrides=False,
        )
