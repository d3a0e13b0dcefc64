from __future__ import annotations

import json

import pytest

from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Figure,
    Output,
    SandboxAuthError,
    SandboxProtocolError,
    SandboxRefused,
    SandboxUnavailable,
)
from antwort.containers.sandboxes.protocol import ErrorReply, decode_event
from antwort.net.sse import ServerEvent


def event(name: str, value: object) -> ServerEvent:
    return ServerEvent(name, json.dumps(value).encode())


def result_of(**fields: object) -> ExecutionResult:
    result = decode_event(event("result", {"status": "success", "output": [], **fields}))
    assert isinstance(result, ExecutionResult)
    return result


def test_output_events_are_decoded():
    assert decode_event(event("output", {"stream": "stderr", "text": "oh"})) == Output("stderr", "oh")


def test_a_result_is_decoded_with_output_figures_and_duration():
    result = result_of(
        output=[{"stream": "stdout", "text": "a"}],
        result="42",
        images=[{"mime": "image/png", "data": "iVBO"}],
        execution_time_ms=7,
        cut_bytes=3,
        exit_code=0,
        images_left_out=0,
    )

    assert (result.status, result.sandbox_alive, result.echo) == ("ok", True, "42")
    assert (result.output, result.figures) == ((Output("stdout", "a"),), (Figure("image/png", b"\x89PN"),))
    assert (result.duration_ms, result.cut_bytes, result.files, result.sandbox_replaced) == (7, 3, (), False)


@pytest.mark.parametrize(
    "status, reason, expected",
    [
        ("error", None, ("error", True)),
        ("exit", None, ("exit", True)),
        ("interrupted", None, ("interrupted", True)),
        ("timeout", None, ("timeout", True)),
        ("timeout", "it did not heed the interrupt", ("timeout", False)),
        ("ended", "oom", ("oom", False)),
        ("ended", "it exited with code 3", ("ended", False)),
        ("unknown to this client", None, ("ended", False)),
    ],
)
def test_the_status_of_a_result(status, reason, expected):
    result = result_of(status=status, reason=reason)

    assert (result.status, result.sandbox_alive) == expected
    assert result.reason == reason


def test_an_error_event_is_unavailable():
    with pytest.raises(SandboxUnavailable, match="the server failed"):
        decode_event(event("error", {"error": "the server failed"}))


@pytest.mark.parametrize(
    "malformed",
    [
        ServerEvent("output", b"{"),
        event("output", {"stream": "elsewhere", "text": ""}),
        event("result", []),
        event("result", {"status": "success", "output": "none"}),
        event("result", {"status": "success", "images": [{"mime": "image/png", "data": "not base64!"}]}),
    ],
)
def test_a_malformed_event_is_a_protocol_error(malformed):
    with pytest.raises(SandboxProtocolError):
        decode_event(malformed)


@pytest.mark.parametrize(
    "status, expected, why",
    [
        (404, SandboxRefused, "missing"),
        (413, SandboxRefused, "size"),
        (400, SandboxRefused, "path"),
        (401, SandboxAuthError, None),
        (500, SandboxUnavailable, None),
    ],
)
def test_an_error_status_is_mapped(status, expected, why):
    error = ErrorReply(status, "No.", 1.0).as_sandbox_error("path")

    assert type(error) is expected
    assert getattr(error, "why", None) == why
