from __future__ import annotations

import base64

import msgspec
import pytest

from antwort.api.items import CodeInterpreterCall
from antwort.containers.sandboxes.port import ExecutionResult, Figure, Output, TextFile
from antwort.engine.ports import ToolDone
from antwort.engine.stores import ContainerFileRecord
from antwort.engine.truncate import MAX_MODEL_CHARS
from antwort.tools.builtins.codeinterpreter.results import from_result, interrupted, not_run

CALL = CodeInterpreterCall("ci_1", "cntr_1", code="1")


def file(path: str) -> ContainerFileRecord:
    return ContainerFileRecord(
        id=f"cfile_{path}", container_id="c", path=path, bytes=1, created_at=1, source="assistant", modified=1
    )


def logs(text: str) -> dict:
    return {"type": "logs", "logs": text}


def done_of(result: ExecutionResult, *files: str, max_bytes: int = 1000, restarted: bool = False) -> ToolDone:
    result = msgspec.structs.replace(result, files=tuple(file(path) for path in files))
    return from_result(CALL, result, timeout=60, tier="1g", max_bytes=max_bytes, sandbox_restarted=restarted)


def ended(status: str, outputs: list[dict], text: str) -> ToolDone:
    item = {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": status,
        "code": "1",
        "container_id": "cntr_1",
        "outputs": outputs,
    }
    if status == "completed":
        item["antwort:result"] = {"stdout": "", "stderr": "", "exit_code": 0}
    return ToolDone(item, text)


def printed(*texts: str, **more) -> ExecutionResult:
    return ExecutionResult(output=tuple(Output("stdout", text) for text in texts), **{"status": "ok", **more})


def test_the_echo_alone_is_the_logs_and_the_text():
    expected = ended("completed", [logs("(10000, 70024)")], "(10000, 70024)")
    expected.item["antwort:result"]["note"] = "(10000, 70024)"

    assert done_of(printed(echo="(10000, 70024)")) == expected


def test_output_comes_before_the_echo():
    assert done_of(printed("a\n", "b\n", echo="3")).item["outputs"] == [logs("a\nb\n3")]
    assert done_of(printed("a", echo="3")).item["outputs"] == [logs("a\n3")]
    assert done_of(printed("a\n")).item["outputs"] == [logs("a\n")]


def test_without_output_the_text_says_so():
    assert done_of(printed()) == ended("completed", [], "(no output)")


def test_an_exception_is_a_completed_call_with_its_traceback():
    done = done_of(ExecutionResult(status="error", output=(Output("stderr", "Traceback…\nZeroDivisionError\n"),)))

    assert done.item["status"] == "completed"
    assert done.item["outputs"] == [logs("Traceback…\nZeroDivisionError\n")]
    assert "ZeroDivisionError" in done.text


@pytest.mark.parametrize("status", ["exit", "interrupted"])
def test_code_that_exits_by_itself_has_not_failed(status):
    assert done_of(printed("bye\n", status=status)).item["status"] == "completed"


@pytest.mark.parametrize(
    "result, expected",
    [
        (printed("so far\n", status="timeout"), ["60 s", "are as they were", "less at a time"]),
        (printed("so far\n", status="timeout", sandbox_alive=False), ["60 s", "are gone"]),
        (printed("so far\n", status="oom", sandbox_alive=False), ["more memory", "1g", "are gone"]),
        (
            printed("so far\n", status="ended", sandbox_alive=False, reason="it exited with code 3"),
            ["code 3", "are gone"],
        ),
    ],
)
def test_a_failure_keeps_the_output_and_says_what_to_do(result, expected):
    done = done_of(result)

    assert done.item["status"] == "failed"
    (output,) = done.item["outputs"]
    assert output["logs"].startswith("so far\n")
    for words in expected:
        assert words in done.text
        assert words in output["logs"]


def test_figures_are_images_in_the_item_and_a_note_in_the_text():
    done = done_of(printed("x\n", figures=(Figure("image/png", b"\x89PNG"), Figure("image/png", b"2"))))

    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert done.item["outputs"][:2] == [logs("x\n"), {"type": "image", "url": url}]
    assert "2 figures shown" in done.text
    assert "base64" not in done.text


def test_the_text_lists_the_files_that_were_written():
    assert "[files written: /mnt/data/a.csv, /mnt/data/b/c.png]" in done_of(printed(), "a.csv", "b/c.png").text
    many = done_of(printed(), *(f"{number}.csv" for number in range(50)))
    assert many.text.endswith("/mnt/data/19.csv and 30 more]")


def test_the_text_says_that_the_sandbox_was_restarted():
    done = done_of(printed("x\n"), restarted=True)

    assert done.text.startswith("[The sandbox was restarted")
    assert done.item["outputs"] == [logs("x\n")]


def test_outputs_are_truncated_to_max_bytes():
    (output,) = done_of(printed("ä" * 5000), max_bytes=1000).item["outputs"]

    assert len(output["logs"].encode()) < 1100
    assert "9000 bytes cut" in output["logs"]


def test_a_figure_that_is_too_large_is_left_out_and_the_logs_say_so():
    figures = (Figure("image/png", bytes(600)), Figure("image/png", bytes(9000)), Figure("image/png", b"3"))
    outputs = done_of(printed("x\n", figures=figures), max_bytes=1000).item["outputs"]

    assert [output["type"] for output in outputs] == ["logs", "image", "image"]
    assert outputs[0] == logs("x\n\n[1 figures were left out: too large]")


def test_the_text_is_truncated_for_the_model():
    assert len(done_of(printed("x" * 10 * MAX_MODEL_CHARS), max_bytes=10**9).text) < MAX_MODEL_CHARS + 100


def test_an_interrupted_call_keeps_the_output_and_the_reason():
    text = "half way\nThe sandbox was lost."

    assert interrupted(CALL, "half way", "The sandbox was lost.", 10_000) == ended("failed", [logs(text)], text)
    assert interrupted(CALL, "", "Lost.", 10_000).text == "Lost."
    (cut,) = interrupted(CALL, "x" * 1_000_000, "Lost.", 10_000).item["outputs"]
    assert len(cut["logs"]) < 10_100


def test_a_call_that_was_not_run_has_the_reason_as_logs_and_text():
    assert not_run(CALL, "No.") == ended("failed", [logs("No.")], "No.")


def test_the_result_has_both_streams_and_the_exit_code():
    output = (Output("stdout", "a"), Output("stderr", "b"), Output("stdout", "c"))
    done = done_of(ExecutionResult(status="exit", output=output, exit_code=3))
    assert done.item["antwort:result"] == {"stdout": "ac", "stderr": "b", "exit_code": 3}
    assert "antwort:result" not in not_run(CALL, "no").item


def test_text_files_are_outputs_within_the_limit():
    files = (TextFile("a.csv", "1,2"), TextFile("b.csv", "x" * 100), TextFile("c.csv", "y"))
    done = done_of(printed("done", text_files=files, keeps_variables=False), max_bytes=20)
    assert [output["logs"] for output in done.item["outputs"]][:2] == ["done", "1,2"]
    assert "bytes cut" in done.item["outputs"][2]["logs"]
    assert "[a.csv]\n1,2" in done.text
