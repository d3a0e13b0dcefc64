from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from antwort.telemetry import Metrics, ModelCallSpan, SandboxSpan, redact_exception

LOGS = """
import logging, structlog
from antwort.telemetry import audit, log, configure_logging
configure_logging("info", "json")
structlog.contextvars.bind_contextvars(request_id="req_1")
audit("file.delete", "file-1")
logging.getLogger("antwort.engine").warning("response %s", "resp_1")
logging.getLogger("antwort.engine").debug("below the level")
try:
    raise ValueError("a secret prompt") from KeyError("another")
except ValueError:
    log.exception("unexpected_error")
    logging.getLogger("library").exception("library error")
"""


def test_log_lines_are_json_with_the_request_id_and_without_exception_messages():
    completed = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in completed.stderr.splitlines()]

    assert [line["event"] for line in lines] == ["audit", "response resp_1", "unexpected_error", "library error"]
    assert {line["request_id"] for line in lines} == {"req_1"}
    assert (lines[0]["action"], lines[0]["object_id"]) == ("file.delete", "file-1")
    assert [line.get("exception") for line in lines[2:]] == ["ValueError", "ValueError"]
    assert lines[2]["cause"] == "KeyError"
    assert "secret" not in completed.stderr


def test_an_exception_is_logged_by_type_and_location():
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("message")
    event = redact_exception(logging.getLogger(), "error", {"event": "x", "exc_info": caught.value})

    assert event["exception"] == "RuntimeError"
    assert event["where"][-1].startswith("antwort/test_telemetry.py:")
    assert redact_exception(None, "error", {"event": "x", "exc_info": None}) == {"event": "x"}


def test_model_call_metrics():
    metrics = Metrics()
    call = ModelCallSpan(metrics, "mine", "upstream", "scripted", {})
    call.record_chunk()
    call.record_chunk()
    call.finished("stop", 10, 5)
    call.close()
    failed = ModelCallSpan(metrics, "mine", "upstream", "scripted", {})
    failed.failed("server_error")
    failed.close()
    page, content_type = metrics.render()

    assert content_type.startswith("text/plain")
    assert b'antwort_tokens_total{kind="input",model="mine"} 10.0' in page
    assert b'antwort_model_first_piece_seconds_count{model="mine"} 1.0' in page
    assert b'antwort_model_seconds_count{model="mine"} 2.0' in page
    assert b'antwort_model_faults_total{code="server_error",model="mine"} 1.0' in page


def test_sandbox_metrics_are_labelled_by_status():
    metrics = Metrics()
    done = SandboxSpan(metrics, "execute", "cntr_1", "1g")
    done.ended("ok", printed=3)
    assert done.close() >= 0
    failed = SandboxSpan(metrics, "acquire", "cntr_1", "1g")
    failed.failed("fault")
    failed.close()
    SandboxSpan(metrics, "execute", "cntr_1", "1g").close()
    page = metrics.render()[0]

    assert b'antwort_sandbox_seconds_count{status="ok",work="execute"} 1.0' in page
    assert b'antwort_sandbox_seconds_count{status="abandoned",work="execute"} 1.0' in page
    assert b'antwort_sandbox_seconds_count{status="fault",work="acquire"} 1.0' in page
    assert b"cntr_1" not in page


def test_each_metrics_object_has_its_own_registry():
    Metrics().requests.labels("GET", "x", "200").inc()

    assert b'route="x"' not in Metrics().render()[0]
