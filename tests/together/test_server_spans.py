"""OpenTelemetry spans of the server process: conventions for HTTP and generative AI, and no content."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from fixtures_server import ROOT, run_server
from fixtures_spans import read_spans
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes, http_attributes
from waiting import wait_until

SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
SCRIPT = {
    "answers": [
        {"when": {"text": "break"}, "reply": [{"fault": {"code": "rate_limit_exceeded", "status": 429}}]},
        {"when": {"text": "crash"}, "reply": [{"fault": {"code": "server_error", "status": 502}}]},
        {"when": {"text": "forever"}, "reply": [{"text": "begun"}, {"delay": 600}]},
        {
            "when": {"text": "search", "turn": 1, "tool": "file_search"},
            "reply": [{"call": {"name": "file_search", "arguments": {"query": "apples"}, "id": "call_1"}}],
        },
        {
            "when": {"text": "raise", "turn": 1, "tool": "file_search"},
            "reply": [{"call": {"name": "file_search", "arguments": {"query": "raise"}}}],
        },
        {"reply": [{"text": "You said: <<text>>"}], "usage": {"input_tokens": 12, "output_tokens": 7}},
    ]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = {"mine": {"kind": "scripted", "script": "script.yaml"}}
    program = ROOT / "tests" / "support" / "fixtures_spans.py"
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}, script=SCRIPT, program=program) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture
def traced(server):
    """The spans of the one POST /v1/responses that a test sends, by name; waits for its end."""
    before = len(read_spans(server.directory))

    def find_spans() -> dict[str, dict[str, Any]] | None:
        spans = read_spans(server.directory)[before:]
        request = next((span for span in spans if span["name"] == "POST /v1/responses"), None)
        return request and {span["name"]: span for span in spans if trace_of(span) == trace_of(request)}

    return lambda: wait_until(find_spans)


def names_of(server) -> set[str]:
    return {span["name"] for span in read_spans(server.directory)}


def trace_of(span: dict[str, Any]) -> str:
    return span["context"]["trace_id"]


def test_the_spans_of_a_request_and_its_model_call(client, traced):
    client.responses.create(
        input="content", max_output_tokens=100, temperature=0.5, top_p=0.9, text={"format": {"type": "json_object"}}
    )
    spans = traced()
    request, model_call = spans["POST /v1/responses"], spans["chat mine"]

    assert (request["kind"], model_call["kind"]) == ("SpanKind.SERVER", "SpanKind.CLIENT")
    assert request["attributes"] == {
        http_attributes.HTTP_REQUEST_METHOD: "POST",
        http_attributes.HTTP_ROUTE: "/v1/responses",
        http_attributes.HTTP_RESPONSE_STATUS_CODE: 200,
    }
    assert model_call["parent_id"] == request["context"]["span_id"]
    first_chunk = model_call["attributes"].pop(gen_ai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK)
    assert first_chunk > 0
    assert model_call["attributes"] == {
        gen_ai.GEN_AI_OPERATION_NAME: "chat",
        gen_ai.GEN_AI_PROVIDER_NAME: "scripted",
        gen_ai.GEN_AI_REQUEST_MODEL: "mine",
        gen_ai.GEN_AI_OUTPUT_TYPE: "json",
        gen_ai.GEN_AI_REQUEST_MAX_TOKENS: 100,
        gen_ai.GEN_AI_REQUEST_TEMPERATURE: 0.5,
        gen_ai.GEN_AI_REQUEST_TOP_P: 0.9,
        gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: ["stop"],
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: 12,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: 7,
    }
    assert request["status"]["status_code"] == model_call["status"]["status_code"] == "UNSET"


def test_the_span_of_a_streamed_request_ends_with_its_last_event(client, traced):
    with client.responses.create(input="hello", stream=True) as stream:
        list(stream)
    spans = traced()
    request, model_call = spans["POST /v1/responses"], spans["chat mine"]

    assert request["start_time"] <= model_call["start_time"]
    assert model_call["end_time"] <= request["end_time"]


def test_a_hosted_tool_call_has_a_span(server, client, traced):
    client.responses.create(input="search", tools=[SEARCH])
    spans = traced()
    tool = spans["execute_tool file_search"]

    assert tool["kind"] == "SpanKind.INTERNAL"
    assert tool["attributes"] == {
        gen_ai.GEN_AI_OPERATION_NAME: "execute_tool",
        gen_ai.GEN_AI_TOOL_NAME: "file_search",
        gen_ai.GEN_AI_TOOL_CALL_ID: "call_1",
        gen_ai.GEN_AI_TOOL_TYPE: "extension",
    }
    assert tool["parent_id"] == spans["POST /v1/responses"]["context"]["span_id"]
    reasons = [
        span["attributes"][gen_ai.GEN_AI_RESPONSE_FINISH_REASONS]
        for span in read_spans(server.directory)
        if trace_of(span) == trace_of(tool) and span["name"] == "chat mine"
    ]
    assert reasons == [["tool_call"], ["stop"]]


def test_a_failed_tool_call_has_an_error_status(client, traced):
    client.responses.create(input="raise", tools=[SEARCH])
    tool = traced()["execute_tool file_search"]

    assert tool["status"]["status_code"] == "ERROR"
    assert tool["attributes"][error_attributes.ERROR_TYPE] == "failed"


@pytest.mark.parametrize(
    "text, code, status", [("break", "rate_limit_exceeded", "UNSET"), ("crash", "server_error", "ERROR")]
)
def test_a_failed_model_call_has_an_error_status_and_the_request_for_5xx(client, traced, text, code, status):
    with pytest.raises(openai.APIStatusError):
        client.responses.create(input=text)
    spans = traced()
    request, model_call = spans["POST /v1/responses"], spans["chat mine"]

    assert model_call["status"]["status_code"] == "ERROR"
    assert model_call["attributes"][error_attributes.ERROR_TYPE] == code
    assert request["status"]["status_code"] == status
    assert request["attributes"].get(error_attributes.ERROR_TYPE) == ("502" if status == "ERROR" else None)


def test_spans_end_after_a_client_disconnect(client, traced):
    with client.responses.create(input="forever", stream=True) as stream:
        response = next(iter(stream)).response
    spans = traced()

    assert client.responses.retrieve(response.id).status == "cancelled"
    assert gen_ai.GEN_AI_RESPONSE_FINISH_REASONS not in spans["chat mine"]["attributes"]


def test_span_names_have_no_ids_and_unknown_paths_have_no_route(server, client):
    response = client.responses.create(input="hello")
    client.responses.retrieve(response.id)
    with server.http() as http:
        http.get("/v1/no/such/path")
    names = wait_until(lambda: (now := names_of(server)) >= {"GET", "GET /v1/responses/{response_id}"} and now)

    assert not re.search(r"resp_[0-9a-f]{32}", json.dumps([*names]))


def test_spans_contain_no_content(server, client):
    client.responses.create(input="xylophone", instructions="xylophone", user="xylophone", metadata={"x": "xylophone"})
    with server.http() as http:
        http.post("/v1/responses", json={"input": "x", "tools": [{"type": "function", "name": "xylophone !"}]})
        http.post("/v1/responses", json={"input": "x", "previous_response_id": "xylophone"})
        http.get("/v1/files/xylophone?after=xylophone")
    wait_until(lambda: "GET /v1/files/{file_id}" in names_of(server))

    assert "xylophone" not in json.dumps(read_spans(server.directory))
