from __future__ import annotations

import base64

import pytest

from antwort.api.items import Image, Logs
from antwort.containers.sandboxes.port import Figure, Outcome, Output
from antwort.engine.stores import ContainerFileRecord
from antwort.engine.truncate import MODEL_READS
from antwort.tools.builtins.codeinterpreter.results import Result, broke_off, came_to, could_not_run


def file(path: str) -> ContainerFileRecord:
    return ContainerFileRecord(
        id=f"cfile_{path}", container_id="c", path=path, bytes=1, created_at=1, source="assistant", modified=1
    )


def result(outcome: Outcome, *files: str, most: int = 1000, restarted: bool = False) -> Result:
    records = [file(path) for path in files]
    return came_to(outcome, records, seconds=60, tier="1g", most=most, restarted=restarted)


def printed(*texts: str, **more) -> Outcome:
    return Outcome(output=tuple(Output("stdout", text) for text in texts), **{"status": "ok", **more})


def test_an_echo_alone_is_the_logs_as_the_recording_has_it():
    assert result(printed(echo="(10000, 70024)")) == Result("completed", (Logs("(10000, 70024)"),), "(10000, 70024)")


def test_what_was_printed_comes_before_the_echo():
    assert result(printed("a\n", "b\n", echo="3")).outputs == (Logs("a\nb\n3"),)
    assert result(printed("a", echo="3")).outputs == (Logs("a\n3"),)
    assert result(printed("a\n")).outputs == (Logs("a\n"),)


def test_nothing_is_no_output_and_the_model_is_told_so():
    assert result(printed()) == Result("completed", (), "(no output)")


def test_an_exception_is_a_completed_call_with_its_traceback():
    outcome = Outcome(status="error", output=(Output("stderr", "Traceback…\nZeroDivisionError\n"),))

    assert result(outcome).status == "completed"
    assert result(outcome).outputs == (Logs("Traceback…\nZeroDivisionError\n"),)
    assert "ZeroDivisionError" in result(outcome).text


@pytest.mark.parametrize("status", ["exit", "interrupted"])
def test_code_that_leaves_by_itself_has_not_failed(status):
    assert result(printed("bye\n", status=status)).status == "completed"


@pytest.mark.parametrize(
    "outcome, says",
    [
        (printed("so far\n", status="timeout"), ["60 s", "are as they were", "less at a time"]),
        (printed("so far\n", status="timeout", alive=False), ["60 s", "are gone"]),
        (printed("so far\n", status="oom", alive=False), ["more memory", "1g", "are gone"]),
        (printed("so far\n", status="ended", alive=False, reason="it exited with code 3"), ["code 3", "are gone"]),
    ],
)
def test_a_failure_keeps_what_was_printed_and_says_what_to_do(outcome, says):
    failed = result(outcome)

    assert failed.status == "failed"
    (logs,) = failed.outputs
    assert isinstance(logs, Logs)
    assert logs.logs.startswith("so far\n")
    for words in says:
        assert words in failed.text
        assert words in logs.logs


def test_figures_are_pictures_for_the_caller_and_a_note_for_the_model():
    drawn = result(printed("x\n", figures=(Figure("image/png", b"\x89PNG"), Figure("image/png", b"2"))))

    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert drawn.outputs[:2] == (Logs("x\n"), Image(url))
    assert "2 figures shown" in drawn.text
    assert "base64" not in drawn.text


def test_the_model_is_told_which_files_were_written():
    assert "[files written: /mnt/data/a.csv, /mnt/data/b/c.png]" in result(printed(), "a.csv", "b/c.png").text
    many = result(printed(), *(f"{number}.csv" for number in range(50)))
    assert many.text.endswith("/mnt/data/19.csv and 30 more]")


def test_the_model_is_told_that_the_sandbox_is_a_new_one():
    told = result(printed("x\n"), restarted=True)

    assert told.text.startswith("[The sandbox was started anew")
    assert told.outputs == (Logs("x\n"),)


def test_outputs_are_cut_to_their_size_and_never_refused():
    long = result(printed("ä" * 5000), most=1000)

    (logs,) = long.outputs
    assert isinstance(logs, Logs)
    assert len(logs.logs.encode()) < 1100
    assert "9000 bytes cut" in logs.logs


def test_a_picture_that_is_too_large_is_left_out_and_the_logs_say_so():
    outcome = printed(
        "x\n", figures=(Figure("image/png", bytes(600)), Figure("image/png", bytes(9000)), Figure("image/png", b"3"))
    )
    kept = result(outcome, most=1000)

    assert [type(one) for one in kept.outputs] == [Logs, Image, Image]
    assert kept.outputs[0] == Logs("x\n\n[1 figures were left out: too large]")


def test_a_model_reads_no_more_than_an_excerpt():
    assert len(result(printed("x" * 10 * MODEL_READS), most=10**9).text) < MODEL_READS + 100


def test_a_call_that_broke_off_keeps_what_was_printed_and_says_why():
    result = broke_off("half way", "The sandbox was lost.", 10_000)

    assert result == Result("failed", (Logs("half way\nThe sandbox was lost."),), "half way\nThe sandbox was lost.")
    assert broke_off("", "Lost.", 10_000).text == "Lost."
    (cut,) = broke_off("x" * 1_000_000, "Lost.", 10_000).outputs
    assert isinstance(cut, Logs)
    assert len(cut.logs) < 10_100


def test_a_call_that_was_not_run_says_why():
    assert could_not_run("No.") == Result("failed", (Logs("No."),), "No.")
