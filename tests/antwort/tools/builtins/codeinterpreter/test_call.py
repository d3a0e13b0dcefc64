from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest

from antwort.api.items import Image, Logs
from antwort.containers.sandboxes.port import Output
from antwort.engine.ports import Progress, ToolDone
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.results import Result
from antwort.tools.builtins.codeinterpreter.types import Arguments

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Bench:
    """Runs nothing; says what it is given to say."""

    def __init__(self, *steps: Output | Result) -> None:
        self.steps = steps
        self.ran: list[Arguments] = []

    async def run(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | Result, None]:
        self.ran.append(arguments)
        for step in self.steps:
            yield step


OK = Result("completed", (Logs("3"), Image("data:image/png;base64,")), "3")


async def play(call: CodeCall, written: str, size: int = 3) -> tuple[list[Progress], ToolDone]:
    """All that comes of a call whose arguments come in pieces."""
    steps: list[Progress] = [*call.opening()]
    for start in range(0, len(written), size):
        steps += call.write(written[start : start + size])
    *rest, done = [step async for step in call.run()]
    assert isinstance(done, ToolDone)
    return [*steps, *(step for step in rest if isinstance(step, Progress))], done


def kinds(steps: list[Progress]) -> list[str]:
    names = [step.type.removeprefix("response.code_interpreter_call") for step in steps]
    return [name for at, name in enumerate(names) if name not in names[:at]]


async def test_the_events_come_in_the_order_of_the_recording():
    steps, done = await play(CodeCall(Bench(OK), "cntr_1"), '{"code": "1 + 2"}')

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed"]
    assert done.text == "3"


async def test_the_client_sees_code_where_the_model_writes_json():
    code = "print(\"grüße 🎈\\n\", '\\\\')\n"
    bench = Bench(OK)
    for size in (1, 2, 7, 1000):
        steps, done = await play(CodeCall(bench, "cntr_1"), json.dumps({"requirements": ["x"], "code": code}), size)

        assert "".join(step.fields["delta"] for step in steps if step.type.endswith(".delta")) == code
        assert [step.fields for step in steps if step.type.endswith("_code.done")] == [{"code": code}]
        assert done.item["code"] == code
    assert bench.ran == [Arguments(code, ("x",))] * 4


async def test_the_item_begins_empty_and_keeps_its_id():
    call = CodeCall(Bench(OK), "cntr_1")
    begun = call.item
    _, done = await play(call, '{"code": "1"}')

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
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "3"}, {"type": "image", "url": "data:image/png;base64,"}],
    }


async def test_a_failure_has_no_event_of_its_own():
    steps, done = await play(CodeCall(Bench(Result("failed", (), "No.")), "cntr_1"), '{"code": "1"}')

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done", ".interpreting"]
    assert (done.item["status"], done.text) == ("failed", "No.")


async def test_broken_arguments_are_not_run_and_the_model_learns_why():
    bench = Bench(OK)
    steps, done = await play(CodeCall(bench, "cntr_1"), '{"code": "print(1)')

    assert kinds(steps) == [".in_progress", "_code.delta", "_code.done"]
    assert (done.item["status"], done.item["code"]) == ("failed", "print(1)")
    assert "not valid JSON" in done.text
    assert bench.ran == []


async def test_trouble_that_is_known_before_is_told_when_it_is_run():
    bench = Bench(OK)
    _, done = await play(CodeCall(bench, "", trouble="No container."), '{"code": "1"}')

    assert (done.item["status"], done.text) == ("failed", "No container.")
    assert bench.ran == []


async def test_live_output_is_only_for_who_asks():
    bench = Bench(Output("stdout", "a"), Output("stderr", "b"), OK)
    quiet, _ = await play(CodeCall(bench, "cntr_1"), '{"code": "1"}')
    live, _ = await play(CodeCall(bench, "cntr_1", live=True), '{"code": "1"}')

    assert [step for step in quiet if step.type.startswith("antwort:")] == []
    assert [(step.type, step.fields) for step in live if step.type.startswith("antwort:")] == [
        ("antwort:code_interpreter_call.output.delta", {"stream": "stdout", "delta": "a"}),
        ("antwort:code_interpreter_call.output.delta", {"stream": "stderr", "delta": "b"}),
    ]


async def test_a_call_that_could_not_be_run_says_so_in_its_item():
    call = CodeCall(Bench(), "cntr_1")
    call.write('{"code": "whi')

    assert call.failed("Cut off.").item["status"] == "failed"
    assert call.failed("Cut off.").item["code"] == "whi"
    assert call.failed("Cut off.").item["outputs"] == [{"type": "logs", "logs": "Cut off."}]


async def test_five_megabytes_of_code_are_a_call_like_any_other():
    code = "x = 'grüße'\n" * 400_000
    bench = Bench(OK)
    steps, _ = await play(CodeCall(bench, "cntr_1"), json.dumps({"code": code}), 65536)

    assert len(code) > 4_500_000
    assert "".join(step.fields["delta"] for step in steps if step.type.endswith(".delta")) == code
    assert bench.ran == [Arguments(code)]
