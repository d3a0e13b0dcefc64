from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxLost, SandboxRefused
from antwort.engine.ports import NextItem, Progress, ToolDone
from antwort.tools.builtins.shell.call import HostedShellCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Runner:
    """Runs commands by a table: what they print, and their result or error."""

    max_bytes = 1000

    def __init__(self, **ends: ExecutionResult | Exception) -> None:
        self.ends = ends
        self.ran: list[tuple[str, int | None]] = []

    async def prepare(self, container_id: str) -> None:
        assert container_id == "cntr_1"

    async def run(
        self, container_id: str, command: str, timeout_ms: int | None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        assert container_id == "cntr_1"
        self.ran.append((command, timeout_ms))
        yield Output("stdout", f"{command}!")
        end = self.ends.get(command, ExecutionResult(status="exit", output=(Output("stdout", f"{command}!"),)))
        if isinstance(end, Exception):
            raise end
        yield end

    def note_result(self, result: ExecutionResult) -> bool:
        return result.sandbox_replaced

    def note_error(self, error: Exception) -> str:
        return f"It failed: {error}"


async def steps(call: HostedShellCall, written: str, size: int = 3) -> list[Any]:
    parts = [written[at : at + size] for at in range(0, len(written), size)]
    return [event for part in parts for event in call.write(part)] + [step async for step in call.run()]


def names(found) -> list[str]:
    return [step.type.rpartition("_")[2] if isinstance(step, Progress) else type(step).__name__ for step in found]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_commands_are_streamed_and_then_run(size):
    runner = Runner()
    call = HostedShellCall(runner, "call_1", "cntr_1")
    commands = ['echo ü "x"', "l\\s\n"]
    found = await steps(call, json.dumps({"commands": commands, "timeout_ms": 5}), size)
    written = [step for step in found if isinstance(step, Progress) and "command." in step.type]
    for at, command in enumerate(commands):
        mine = [step for step in written if step.fields["command_index"] == at]
        assert mine[0].fields["command"] == ""
        assert "".join(step.fields.get("delta", "") for step in mine) == command == mine[-1].fields["command"]
    assert runner.ran == [(command, 5) for command in commands]
    assert not any(step.has_item_id for step in written)
    (begun,) = [step for step in found if isinstance(step, NextItem)]
    assert begun.done["action"] == {"commands": commands, "max_output_length": None, "timeout_ms": 5}
    assert (begun.done["status"], begun.begun["status"], begun.begun["output"]) == ("completed", "completed", [])
    last = found[-1]
    assert isinstance(last, ToolDone)
    assert [entry["stdout"] for entry in last.item["output"]] == [f"{command}!" for command in commands]
    assert call.serial_key == "cntr_1"


async def test_a_lost_sandbox_ends_the_call_with_what_was_printed():
    runner = Runner(b=SandboxLost("It died."))
    found = await steps(HostedShellCall(runner, "call_1", "cntr_1"), '{"commands": ["a", "b", "c"]}')
    last = found[-1]
    assert isinstance(last, ToolDone)
    assert [entry["outcome"]["exit_code"] for entry in last.item["output"]] == [0, -1]
    assert last.item["output"][1]["stdout"] == "b!"
    assert "It failed: It died." in last.text
    assert [command for command, _ in runner.ran] == ["a", "b"]


async def test_a_command_that_ends_the_sandbox_is_the_last_one():
    runner = Runner(a=ExecutionResult(status="oom", exit_code=-1, sandbox_alive=False))
    found = await steps(HostedShellCall(runner, "call_1", "cntr_1"), '{"commands": ["a", "b"]}')
    assert [command for command, _ in runner.ran] == ["a"]
    assert "more memory" in found[-1].text


async def test_an_error_after_the_result_does_not_lose_it():
    class Late(Runner):
        async def run(self, container_id, command, timeout_ms):
            async for step in super().run(container_id, command, timeout_ms):
                yield step
            raise SandboxRefused("late")

    found = await steps(HostedShellCall(Late(), "call_1", "cntr_1"), '{"commands": ["a"]}')
    assert [entry["outcome"]["exit_code"] for entry in found[-1].item["output"]] == [0]


@pytest.mark.parametrize("written", ['{"commands": ["ls', "nonsense", "{}", ""])
async def test_broken_arguments_run_nothing(written):
    runner = Runner()
    found = await steps(HostedShellCall(runner, "call_1", "cntr_1"), written)
    last = found[-1]
    assert isinstance(last, ToolDone)
    assert runner.ran == []
    assert last.item["output"][0]["outcome"] == {"type": "exit", "exit_code": -1}
    events = [step.type for step in found if isinstance(step, Progress)]
    assert events.count("response.shell_call_command.added") == events.count("response.shell_call_command.done")


async def test_no_container():
    call = HostedShellCall(Runner(), "call_1", None, "There is no container.")
    found = await steps(call, '{"commands": ["ls"]}')
    assert "There is no container." in found[-1].text
    assert call.item["environment"] is None


async def test_a_call_that_is_stopped_is_incomplete():
    call = HostedShellCall(Runner(), "call_1", "cntr_1")
    call.write('{"commands": ["ls", "rm')
    stopped = call.failed("Stopped.")
    assert (stopped.item["type"], stopped.item["status"], stopped.text) == ("shell_call", "incomplete", "Stopped.")
    assert stopped.item["action"]["commands"] == ["ls"]
    call = HostedShellCall(Runner(), "call_1", "cntr_1")
    call.write('{"commands": ["a", "b"]}')
    running = call.run()
    async for step in running:
        if isinstance(step, Progress) and step.type.endswith("content.done"):
            break
    await running.aclose()
    stopped = call.failed("Stopped.")
    assert (stopped.item["type"], stopped.item["status"]) == ("shell_call_output", "incomplete")
    assert len(stopped.item["output"]) == 1


async def test_live_output_is_limited_as_the_result_is():
    text = "x" * 100
    runner = Runner(a=ExecutionResult(status="exit", output=(Output("stdout", text),)))
    call = HostedShellCall(runner, "call_1", "cntr_1")
    found = await steps(call, '{"commands": ["a"], "max_output_length": 1}')
    (delta,) = [step for step in found if isinstance(step, Progress) and step.type.endswith("content.delta")]
    assert delta.fields["delta"] == {"stdout": "a"}
    assert found[-1].item["output"][0]["stdout"] == "x"


async def test_all_commands_of_a_call_share_a_limit_of_output():
    runner = Runner(
        **{
            name: ExecutionResult(status="exit", output=(Output("stdout", "x" * 5000), Output("stderr", "y" * 5000)))
            for name in "abcdefgh"
        }
    )
    runner.max_bytes = 6000
    found = await steps(HostedShellCall(runner, "call_1", "cntr_1"), json.dumps({"commands": [*"abcdefgh"]}))
    entries = found[-1].item["output"]

    assert len(entries) == 8
    assert (len(entries[0]["stdout"]), len(entries[0]["stderr"])) == (5000, 5000)
    assert all(1000 <= len(entry[stream]) < 1100 for entry in entries[1:] for stream in ("stdout", "stderr"))
    assert "bytes cut" in entries[-1]["stdout"]
