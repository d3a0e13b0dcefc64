from __future__ import annotations

from typing import Any

import pytest
from fake_responses_api import load

from weakincentives.adapters.openai import AutoContainerConfig, OpenAIShellSection, ShellConfig
from weakincentives.adapters.openai.native_tools.capability import (
    ClientMustRun,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
)
from weakincentives.adapters.openai.native_tools.shell_section import CAPABILITY, run
from weakincentives.adapters.turn import ToolOutput
from weakincentives.filesystem import Filesystem, HostMount, InMemoryFilesystem
from weakincentives.resources import ResourceRegistry
from weakincentives.tools import CommandOutput, JailedShell, ShellCall, ShellResult

NO_CONTEXT: Any = None
LOCAL = {"type": "shell", "environment": {"type": "local"}}


def executor(call: ShellCall, /, *, context: object) -> list[CommandOutput]:
    return [CommandOutput(f"ran {command}", "", 0) for command in call.commands]


def local_call(**fields: Any) -> dict[str, Any]:
    action = {"commands": ["ls", "false"], "timeout_ms": 500, "max_output_length": 10}
    return {"id": "sh_1", "type": "shell_call", "call_id": "call_1", "action": action, **fields}


@pytest.mark.parametrize(
    "config, environment",
    [
        (ShellConfig(), {"type": "local"}),
        (ShellConfig(executor=executor), {"type": "local"}),
        (ShellConfig("cntr_1"), {"type": "container_reference", "container_id": "cntr_1"}),
        (ShellConfig(AutoContainerConfig(memory_limit="4g")), {"type": "container_auto", "memory_limit": "4g"}),
    ],
)
def test_declared_environments(config, environment):
    assert CAPABILITY.declare(config) == {"type": "shell", "environment": environment}
    assert OpenAIShellSection(default_params=config).native_tools()[0].config is config


@pytest.mark.parametrize(
    "config, expected",
    [
        (ShellConfig("cntr_1", executor), "not both"),
        (ShellConfig(AutoContainerConfig(memory_limit="8g")), "1g, 4g, 16g, 64g"),
        (ShellConfig(AutoContainerConfig(host_mounts=(HostMount("x"),))), "host_mounts work with code interpreter"),
    ],
)
def test_invalid_config_is_refused(config, expected):
    with pytest.raises(ToolConfigError, match=expected):
        CAPABILITY.declare(config)


def test_only_auto_container_needs_a_container():
    auto = {"type": "shell", "environment": {"type": "container_auto"}}

    assert CAPABILITY.needs_container(auto)
    assert CAPABILITY.with_container(auto, "cntr_2") == {
        "type": "shell",
        "environment": {"type": "container_reference", "container_id": "cntr_2"},
    }
    assert not CAPABILITY.needs_container(LOCAL)
    with pytest.raises(ToolConfigError, match="container is 'cntr_1', but a section of the prompt supplies one"):
        CAPABILITY.needs_container({"environment": {"type": "container_reference", "container_id": "cntr_1"}})


def test_provider_run_commands_have_their_outputs():
    (payload,) = load("shell_hosted")
    items = payload["output"]
    scene = ResponseContext(outputs={"call_1": items[1], "call_2": items[3]})
    first, second = (CAPABILITY.parse_call(item, scene, ShellConfig("cntr_1")) for item in (items[0], items[2]))

    assert isinstance(first, ProviderRan)
    assert first.params == ShellCall(("ls", "cat missing"), 1000, 4096)
    assert first.result.value == ShellResult(
        (CommandOutput("a.txt\n"), CommandOutput("", "cat: missing: No such file or directory\n", 1))
    )
    assert not first.result.success
    assert first.result.render() == "a.txt\n(exit code 0)\ncat: missing: No such file or directory\n(exit code 1)"
    assert isinstance(second, ProviderRan)
    assert second.result.value == ShellResult((CommandOutput(exit_code=None),))


@pytest.mark.parametrize(
    "config, fields",
    [
        (ShellConfig("cntr_1"), {}),
        (ShellConfig(AutoContainerConfig()), {"environment": {"type": "local"}}),
        (ShellConfig(executor=executor), {"environment": {"type": "container_reference", "container_id": "c"}}),
        ({"type": "shell", "environment": {"type": "container_auto"}}, {}),
    ],
)
def test_container_command_never_runs_on_the_host(config, fields):
    reading = CAPABILITY.parse_call(local_call(**fields), ResponseContext(), config)

    assert isinstance(reading, ProviderRan)
    assert not reading.result.success
    assert "the provider sent no output" in reading.result.message


def test_host_commands_run_in_the_executor_with_one_output_each():
    reading = CAPABILITY.parse_call(local_call(environment=None), ResponseContext(), ShellConfig(executor=executor))

    assert isinstance(reading, ClientMustRun)
    assert reading.params == ShellCall(("ls", "false"), 500, 10)
    assert not reading.undone_on_failure
    result = reading.run(NO_CONTEXT)
    assert result.value == ShellResult((CommandOutput("ran ls"), CommandOutput("ran false")))
    assert reading.answer(ToolOutput("call_1", "shell", "", success=True, value=result.value)) == {
        "type": "shell_call_output",
        "call_id": "call_1",
        "output": [
            {"stdout": "ran ls", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
            {"stdout": "ran false", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        ],
        "max_output_length": 10,
    }


def test_every_command_gets_an_output_even_if_none_ran():
    reading = CAPABILITY.parse_call(
        local_call(action={"commands": ["a", "b"]}), ResponseContext(), ShellConfig(executor=executor)
    )

    assert isinstance(reading, ClientMustRun)
    assert reading.answer(ToolOutput("call_1", "shell", "The executor is ill.", success=False)) == {
        "type": "shell_call_output",
        "call_id": "call_1",
        "output": [{"stdout": "", "stderr": "The executor is ill.", "outcome": {"type": "exit", "exit_code": 1}}] * 2,
    }


def test_timeout_outcome():
    reading = CAPABILITY.parse_call(local_call(), ResponseContext(), None)
    assert isinstance(reading, ClientMustRun)
    value = ShellResult((CommandOutput("half", "", None),))

    answer = reading.answer(ToolOutput("call_1", "shell", "", success=False, value=value))
    assert answer["output"][0]["outcome"] == {"type": "timeout"}


def test_executor_with_missing_outputs_is_an_error():
    result = run(ShellCall(("a", "b")), lambda call, *, context: [CommandOutput()], NO_CONTEXT)

    assert (result.success, result.message) == (False, "the executor answered 1 of 2 commands.")


def test_invalid_action_fields_are_ignored():
    reading = CAPABILITY.parse_call(
        local_call(action={"commands": "rm", "timeout_ms": -1}), ResponseContext(), ShellConfig()
    )

    assert isinstance(reading, ClientMustRun)
    assert reading.params == ShellCall()


def test_host_commands_need_an_executor_or_a_jail_with_files():
    files = ResourceRegistry.build({Filesystem: InMemoryFilesystem()})
    nothing = ResourceRegistry()

    CAPABILITY.check_resources(LOCAL, ShellConfig(executor=executor), nothing)
    CAPABILITY.check_resources({"environment": {"type": "container_auto"}}, ShellConfig("c"), nothing)
    if JailedShell.unavailable_reason() is None:
        CAPABILITY.check_resources(LOCAL, ShellConfig(), files)
        with pytest.raises(ToolConfigError, match="but there are no files"):
            CAPABILITY.check_resources(LOCAL, ShellConfig(), nothing)
    else:
        with pytest.raises(ToolConfigError, match="cannot be jailed"):
            CAPABILITY.check_resources(LOCAL, ShellConfig(), files)
