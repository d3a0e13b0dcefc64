from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from antwort.telemetry import Metrics, ModelCall, SandboxWork, told_without_content

LOGS = """
import logging, structlog
from antwort.telemetry import audit, log, set_up_logging
set_up_logging("info", "json")
structlog.contextvars.bind_contextvars(request_id="req_1")
audit("file.delete", "file-1")
logging.getLogger("antwort.engine").warning("response %s", "resp_1")
logging.getLogger("antwort.engine").debug("not told")
try:
    raise ValueError("a secret prompt") from KeyError("another")
except ValueError:
    log.exception("unexpected_error")
    logging.getLogger("elsewhere").exception("it failed")
"""


def test_lines_are_json_with_the_request_and_without_content():
    told = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in told.stderr.splitlines()]

    assert [line["event"] for line in lines] == ["audit", "response resp_1", "unexpected_error", "it failed"]
    assert {line["request_id"] for line in lines} == {"req_1"}
    assert (lines[0]["action"], lines[0]["object_id"]) == ("file.delete", "file-1")
    assert [line.get("exception") for line in lines[2:]] == ["ValueError", "ValueError"]
    assert lines[2]["cause"] == "KeyError"
    assert "secret" not in told.stderr


def test_an_exception_is_told_by_type_and_place():
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("who said what")
    told = told_without_content(logging.getLogger(), "error", {"event": "x", "exc_info": caught.value})

    assert told["exception"] == "RuntimeError"
    assert told["where"][-1].startswith("antwort/test_telemetry.py:")
    assert told_without_content(None, "error", {"event": "x", "exc_info": None}) == {"event": "x"}


def test_a_call_of_a_model_is_counted():
    metrics = Metrics()
    call = ModelCall(metrics, "mine", "upstream", "scripted", {})
    call.piece()
    call.piece()
    call.finished("stop", 10, 5)
    call.close()
    failed = ModelCall(metrics, "mine", "upstream", "scripted", {})
    failed.failed("server_error")
    failed.close()
    page, kind = metrics.page()

    assert kind.startswith("text/plain")
    assert b'antwort_tokens_total{kind="input",model="mine"} 10.0' in page
    assert b'antwort_model_first_piece_seconds_count{model="mine"} 1.0' in page
    assert b'antwort_model_seconds_count{model="mine"} 2.0' in page
    assert b'antwort_model_faults_total{code="server_error",model="mine"} 1.0' in page


def test_the_work_of_a_sandbox_is_counted_by_how_it_ended():
    metrics = Metrics()
    done = SandboxWork(metrics, "execute", "cntr_1", "1g")
    done.ended("ok", printed=3)
    assert done.close() >= 0
    failed = SandboxWork(metrics, "acquire", "cntr_1", "1g")
    failed.failed("fault")
    failed.close()
    SandboxWork(metrics, "execute", "cntr_1", "1g").close()
    page = metrics.page()[0]

    assert b'antwort_sandbox_seconds_count{status="ok",work="execute"} 1.0' in page
    assert b'antwort_sandbox_seconds_count{status="abandoned",work="execute"} 1.0' in page
    assert b'antwort_sandbox_seconds_count{status="fault",work="acquire"} 1.0' in page
    assert b"cntr_1" not in page


def test_registries_do_not_know_of_each_other():
    Metrics().requests.labels("GET", "x", "200").inc()

    assert b'route="x"' not in Metrics().page()[0]
