from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError, invalid
from antwort.api.events import ErrorEvent, OutputTextDelta
from antwort.api.projection import ResponseView
from antwort.api.requests import ALL_REFUSED, CreateResponse
from antwort.http.wires.websocket.messages import (
    MessageError,
    error_message,
    event_message,
    read_create,
    read_envelope,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
STREAM_IDS = st.from_regex(r"[A-Za-z0-9_.-]{1,256}", fullmatch=True)


def message(**fields: Any) -> bytes:
    return json.dumps({"type": "response.create", **fields}).encode()


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_message_or_a_message_error(body):
    status = None
    try:
        assert read_envelope(body).body == body
    except MessageError as refused:
        status = refused.error.status
    assert status in (None, 400)


@given(st.dictionaries(st.text() | st.sampled_from(["input", "tools", "generate", "stream"]), JSON))
def test_any_fields_are_a_request_or_an_api_error(fields):
    status = None
    try:
        assert type(read_create(message(**fields), ALL_REFUSED).request) is CreateResponse
    except ApiError as error:
        status = error.status
    assert status in (None, 400)


@given(STREAM_IDS)
def test_a_stream_id_comes_back_in_events_and_errors(stream_id):
    read = read_envelope(message(stream_id=stream_id))
    event = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta='"}', sequence_number=4)
    sent = json.loads(event_message(ResponseView(), event, read.stream_id))
    assert (sent["stream_id"], sent["delta"], sent["sequence_number"]) == (stream_id, '"}', 4)
    assert json.loads(error_message(invalid("no"), read.stream_id))["stream_id"] == stream_id


@given(st.text().filter(lambda text: not text.isascii() or len(text) > 256 or " " in text))
def test_another_stream_id_is_refused(stream_id):
    with pytest.raises(MessageError) as refused:
        read_envelope(message(stream_id=stream_id))
    assert refused.value.error.code == "invalid_stream_id"


def test_an_unknown_type_is_refused_in_its_lane():
    with pytest.raises(MessageError) as refused:
        read_envelope(b'{"type": "response.steer", "stream_id": "main"}')
    assert (refused.value.stream_id, refused.value.error.param) == ("main", "type")
    assert "'response.create'" in refused.value.error.message


def test_the_request_is_that_of_http():
    fields: dict[str, Any] = {
        "model": "m",
        "input": "x",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
    }
    created = read_create(message(**fields, stream=True, background=False, stream_id="a"), ALL_REFUSED)
    assert created.generate
    assert (created.request.model, created.request.input, created.request.stream) == ("m", "x", None)
    assert created.request.background is None


@pytest.mark.parametrize(
    "fields, generate",
    [
        ({}, True),
        ({"generate": True}, True),
        ({"generate": None}, True),
        ({"generate": False}, False),
        ({"generate": True, "prompt_cache_options": {"prewarm": True}}, False),
        ({"prompt_cache_options": {"prewarm": False}}, True),
    ],
    ids=str,
)
def test_generate(fields, generate):
    assert read_create(message(**fields), ALL_REFUSED).generate is generate


def test_an_error_has_its_headers_and_no_empty_fields():
    error = ApiError(429, "Slow down.", kind="rate_limit_error", code="rate_limit_exceeded", retry_after=3)
    assert json.loads(error_message(error, request_id="req_1")) == {
        "type": "error",
        "status": 429,
        "error": {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"},
        "headers": {"retry-after": "3", "x-request-id": "req_1"},
    }
    assert sorted(json.loads(error_message(invalid("no")))) == ["error", "status", "type"]


def test_an_error_event_has_a_status():
    event = ErrorEvent(error=invalid("no").envelope().error, sequence_number=2)
    sent = json.loads(event_message(ResponseView(), event, "a", 502))
    assert (sent["type"], sent["status"], sent["sequence_number"], sent["stream_id"]) == ("error", 502, 2, "a")
