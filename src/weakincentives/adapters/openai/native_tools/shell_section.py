"""Shell (`shell`): commands of the model, run by the provider in a container, or by the client in an executor.

The executor is given by the caller, or is a `JailedShell`. A command runs on the host in no other way. A command of a
shell that was not declared, or that was declared to run at the provider, does not run on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ClientMustRun,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
    check_container_is_open,
    check_one_of,
    failed_result,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    ContainerLike,
    ExistingContainerRef,
    container_param,
    parse_container,
)
from weakincentives.adapters.openai.wire import MalformedResponse, Wire, as_object, as_objects, get_call_id, get_str
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
    """Commands run in a `container` of the provider, or without one on the host, in the `executor`.

    The default executor is a `JailedShell` with the evaluation's files.
    """

    container: ContainerLike | None = field(default=None, hash=False)
    executor: ShellExecutor | None = None


class Shell(Capability):
    """`shell` on the wire."""

    name = "shell"
    runs_in_container = True
    items = frozenset({"shell_call"})
    config_type = ShellConfig
    fields = ("environment", "allowed_callers")
    example = ProviderRan(ShellCall(("ls",), 1000, 100), ToolResult("", ShellResult((CommandOutput("a.txt", "", 0),))))

    def declaration_fields(self, config: ShellConfig) -> Wire:
        if config.container is None:
            return {"environment": {"type": _LOCAL}}
        if config.executor is not None:
            raise ToolConfigError(
                "give executor, for commands on the host, or container, for commands at the provider; not both"
            )
        try:
            container = parse_container(config.container)
        except ValueError as error:
            raise ToolConfigError(str(error)) from error
        if isinstance(container, ExistingContainerRef):
            return {"environment": {"type": _REFERENCE, "container_id": container.id}}
        if container.host_mounts:
            raise ToolConfigError(
                "container.host_mounts work with code interpreter only: upload the files, and give their file_ids"
            )
        return {"environment": {**as_object(container_param(container), "container"), "type": _AUTO}}

    def check_declaration(self, given: Mapping[str, Any]) -> Wire | None:
        environment = given.get("environment")
        if isinstance(environment, Mapping):
            known = cast("Mapping[str, Any]", environment)
            check_one_of(known.get("type", ""), _ENVIRONMENTS, "environment.type")
            container_id = known.get("container_id")
            if known["type"] == _REFERENCE and not (isinstance(container_id, str) and container_id):
                raise ToolConfigError("environment.container_id must be the id of a container")
        elif environment is not None:
            raise ToolConfigError(
                f"environment must have a type, one of {', '.join(_ENVIRONMENTS)}, not {environment!r}"
            )
        return super().check_declaration(given)

    def container_id(self, wire: Wire) -> str | None:
        return get_str(_environment(wire), "container_id") or None

    def needs_container(self, wire: Wire) -> bool:
        check_container_is_open(self.container_id(wire))
        return _environment(wire).get("type") == _AUTO

    def with_container(self, wire: Wire, container_id: str) -> Wire:
        return {**wire, "environment": {"type": _REFERENCE, "container_id": container_id}}

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        if not _runs_on_host(wire) or (isinstance(config, ShellConfig) and config.executor is not None):
            return
        if (reason := JailedShell.unavailable_reason()) is not None:
            raise ToolConfigError(
                f"commands would run on this host, and cannot be jailed: {reason}. Give ShellConfig(executor=…), "
                "or a container"
            )
        if Filesystem not in resources:
            raise ToolConfigError(
                "commands would run on this host, but there are no files: give the evaluation a Filesystem, "
                "from a section such as VfsToolsSection, or with evaluate(resources=…)"
            )

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        action = as_object(item.get("action") or {}, "action")
        commands = action.get("commands")
        call = ShellCall(
            tuple(map(str, commands if isinstance(commands, list) else ())),  # pyright: ignore[reportUnknownArgumentType] - any JSON
            _count(action.get("timeout_ms")),
            _count(action.get("max_output_length")),
        )
        output = response.outputs.get(get_call_id(item))
        if output is not None:
            value = ShellResult(tuple(map(_command_output, as_objects(output.get("output"), "output"))))
            return ProviderRan(call, failed_result(output, value=value) or ToolResult("", value, success=value.success))
        wire = self.declare(config)
        if wire is None or not _runs_on_host(wire) or not _runs_on_host(item):
            return ProviderRan(
                call, failed_result({**item, "error": {"message": "the provider sent no output"}}) or ToolResult("")
            )
        executor = config.executor if isinstance(config, ShellConfig) and config.executor else JailedShell()
        return ClientMustRun(
            call,
            lambda context: run(call, executor, context),
            lambda output: _answer(get_call_id(item), call, output),
            undone_on_failure=False,
        )


def run(call: ShellCall, executor: ShellExecutor, context: ToolContext) -> ToolResult[ShellResult]:
    """Run the commands. An exit code other than 0 is a failure, but its changes are not rolled back."""
    value = ShellResult(tuple(executor(call, context=context)))
    if len(value.outputs) != len(call.commands):
        return ToolResult.error(f"the executor answered {len(value.outputs)} of {len(call.commands)} commands.")
    return ToolResult("", value, success=value.success)


def _environment(holder: Wire) -> Wire:
    return as_object(holder.get("environment") or {}, "environment")


def _runs_on_host(holder: Wire) -> bool:
    """Whether the commands of a declaration or of a call run on the client's host."""
    return _environment(holder).get("type", _LOCAL) == _LOCAL


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _command_output(raw: Wire) -> CommandOutput:
    outcome = as_object(raw.get("outcome") or {}, "outcome")
    code = outcome.get("exit_code") or 0
    if not isinstance(code, int):
        raise MalformedResponse(f"'exit_code' is not a number but {code!r}")
    has_ended = outcome.get("type") != "timeout"
    return CommandOutput(get_str(raw, "stdout"), get_str(raw, "stderr"), code if has_ended else None)


def _answer(call_id: str, call: ShellCall, output: ToolOutput) -> Wire:
    """One entry per command, also if none of them ran."""
    value = output.value if isinstance(output.value, ShellResult) else None
    outputs = value.outputs if value else tuple(CommandOutput("", output.text, 1) for _ in call.commands)
    echoed = {} if call.max_output_length is None else {"max_output_length": call.max_output_length}
    return {
        "type": "shell_call_output",
        "call_id": call_id,
        "output": [
            {
                "stdout": one.stdout,
                "stderr": one.stderr,
                "outcome": {"type": "timeout"}
                if one.exit_code is None
                else {"type": "exit", "exit_code": one.exit_code},
            }
            for one in outputs
        ],
        **echoed,
    }


CAPABILITY = Shell()


class OpenAIShellSection(NativeSection[ShellConfig]):
    """Lets the model run shell commands: in a container of the provider, or on the host in an executor."""

    capability = CAPABILITY
