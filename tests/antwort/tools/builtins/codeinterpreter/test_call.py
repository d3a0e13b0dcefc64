from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest

from antwort.api.items import CodeInterpreterCall
from antwort.containers.sandboxes.port import ExecutionResult, Figure, Output, SandboxLost
from antwort.engine.ports import Progress, ToolDone
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.results import from_result, interrupted
from antwort.tools.builtins.codeinterpreter.types import Arguments

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeRunner:
    """Runs nothing; yields the given steps, or raises the given error after them."""

    def __init__(self, *steps: Output | ExecutionResult, error: Exception | None = None) -> None:
        self.steps = steps
        self.error = error
        self.ran: list[Arguments] = []

    async def start(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | ExecutionResult, None]:
        self.ran.append(arguments)
        return self._steps()

    async def _steps(self) -> AsyncGenerator[Output | ExecutionResult, None]:
        for step in self.steps:
            yield step
        if self.error is not None:
            raise self.error

    def succeeded(self, call: CodeInterpreterCall, result: ExecutionResult) -> ToolDone:
        return from_result(call, result, timeout=60, tier="1g", max_bytes=1000, sandbox_restarted=False)

    def failed(self, call: CodeInterpreterCall, error: Exception, printed: str) -> ToolDone:
        return interrupted(call, printed, str(error), 1000)


OK = ExecutionResult(status="ok", echo="3", figures=(Figure("image/png", b""),))


async def run_call(call: CodeCall, written: str, size: int = 3) -> tuple[list[Progress], ToolDone]:
    """The progress events and the end of a call whose arguments arrive in pieces."""
    steps: list[Progress] = [*call.started_events()]
    for start in range(0, len(written), size):
        steps += call.write(written[start : start + size])
    *rest, done = [step async for step in call.run()]
    assert isinstance(done, ToolDone)
    return [*steps, *(step for step in rest if isinstance(step, Progress))], done


def kinds(steps: list[Progress]) -> list[str]:
    names = [step.type.removeprefix("response.code_interpreter_call") for step in steps]
    return [name for at, name in enumerate(names) if name not in names[:at]]


async def test_events_have_the_order_of_the_wire():
    steps, done = await run_call(CodeCall(FakeRunner(OK), "cntr_1"), '{"code": "1 + 2"}')

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed"]
    assert done.text.startswith("3\n")


async def test_code_is_extracted_from_incomplete_json():
    code = "print(\"grüße 🎈\\n\", '\\\\')\n"
    runner = FakeRunner(OK)
    for size in (1, 2, 7, 1000):
        steps, done = await run_call(
            CodeCall(runner, "cntr_1"), json.dumps({"requirements": ["x"], "code": code}), size
        )

        assert "".join(step.fields["delta"] for step in steps if step.type.endswith(".delta")) == code
        assert [step.fields for step in steps if step.type.endswith("_code.done")] == [{"code": code}]
        assert done.item["code"] == code
    assert runner.ran == [Arguments(code, ("x",))] * 4


async def test_the_item_starts_empty_and_keeps_its_id():
    call = CodeCall(FakeRunner(OK), "cntr_1")
    begun = call.item
    _, done = await run_call(call, '{"code": "1"}')

    assert begun.pop("id").startswith("ci_")
    assert begun == {
        "type": "code_interpreter_call",
        "status": "in_progress",
        "code": "",
        "container_id": "cntr_1",
        "outputs": [],
    }
    assert done.item == {
        "id": call.item["id"],
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "1",
        "antwort:result": {"stdout": "", "stderr": "", "exit_code": 0, "note": "3"},
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "3"}, {"type": "image", "url": "data:image/png;base64,"}],
    }


async def test_a_failed_call_has_no_completed_event():
    steps, done = await run_call(
        CodeCall(FakeRunner(Output("stdout", "so far"), error=SandboxLost("No.")), "cntr_1"), '{"code": "1"}'
    )

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done", ".interpreting"]
    assert (done.item["status"], done.text) == ("failed", "so far\nNo.")


async def test_invalid_arguments_are_not_run():
    runner = FakeRunner(OK)
    steps, done = await run_call(CodeCall(runner, "cntr_1"), '{"code": "print(1)')

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done"]
    assert (done.item["status"], done.item["code"]) == ("failed", "print(1)")
    assert "not valid JSON" in done.text
    assert runner.ran == []


async def test_an_unavailable_call_fails_when_it_is_run():
    runner = FakeRunner(OK)
    _, done = await run_call(CodeCall(runner, "", unavailable="No container."), '{"code": "1"}')

    assert (done.item["status"], done.text) == ("failed", "No container.")
    assert runner.ran == []


async def test_live_output_events_are_sent_only_if_included():
    runner = FakeRunner(Output("stdout", "a"), Output("stderr", "b"), OK)
    quiet, _ = await run_call(CodeCall(runner, "cntr_1"), '{"code": "1"}')
    live, _ = await run_call(CodeCall(runner, "cntr_1", live_output=True), '{"code": "1"}')

    assert [step for step in quiet if step.type.startswith("antwort:")] == []
    assert [(step.type, step.fields) for step in live if step.type.startswith("antwort:")] == [
        ("antwort:code_interpreter_call.output.delta", {"stream": "stdout", "delta": "a"}),
        ("antwort:code_interpreter_call.output.delta", {"stream": "stderr", "delta": "b"}),
    ]


async def test_failed_keeps_the_partial_code():
    call = CodeCall(FakeRunner(), "cntr_1")
    call.write('{"code": "whi')

    assert call.failed("Cut off.").item["status"] == "failed"
    assert call.failed("Cut off.").item["code"] == "whi"
    assert call.failed("Cut off.").item["outputs"] == [{"type": "logs", "logs": "Cut off."}]


async def test_five_megabytes_of_code():
    code = "x = 'grüße'\n" * 400_000
    runner = FakeRunner(OK)
    steps, _ = await run_call(CodeCall(runner, "cntr_1"), json.dumps({"code": code}), 65536)

    assert len(code) > 4_500_000
    assert "".join(step.fields["delta"] for step in steps if step.type.endswith(".delta")) == code
    assert runner.ran == [Arguments(code)]
