"""Errors as clients and operators see them: codes, messages of the upstream, tool types, unknown paths, the log."""

from __future__ import annotations

import json
import re
from typing import get_args

import openai
import pytest
from fake_upstream import FakeUpstream, running_upstream
from fixtures_server import ROOT, run_server
from openai.types.responses import ResponseError
from openai.types.responses.tool_choice_types import ToolChoiceTypes
from stream_grammar import read_frames
from waiting import wait_until

KEY = "pineapple-of-the-operator"
SDK_CODES = set(get_args(ResponseError.model_fields["code"].annotation))
TOOL_CALL_ERROR = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    settings = {"base_url": upstream.url, "api_key_env": "UPSTREAM_KEY", "attempts": 1}
    unreachable = {"kind": "chat_completions", "base_url": "http://bob:hidden-7@127.0.0.1:9/v1?sig=hidden-8"}
    models = {
        "chat": {"kind": "chat_completions", **settings},
        "responses": {"kind": "responses", **settings},
        "offline": {**unreachable, "attempts": 1},
    }
    environment = {"UPSTREAM_KEY": KEY}
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}, environment=environment) as running:
        yield running


@pytest.fixture
def http(server, upstream):
    upstream.reset()
    with server.http() as client:
        yield client


def create_error(http, **parameters):
    answer = http.post("/v1/responses", json={"input": "hello", **parameters})
    return answer.status_code, answer.json()["error"]


def log_lines(server, event: str) -> list[dict]:
    lines = [json.loads(line) for line in server.read_log().splitlines()]
    return [line for line in lines if line["event"] == event]


# ── messages of the upstream ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["chat", "responses"])
@pytest.mark.parametrize("status", [400, 422])
def test_the_message_of_an_upstream_400_reaches_the_caller_and_the_log(server, http, upstream, model, status):
    upstream.set_replies(upstream.json({"error": {"message": TOOL_CALL_ERROR, "code": None}}, status))
    given, error = create_error(http, model=model)

    assert (given, error["code"], error["type"]) == (400, "invalid_prompt", "invalid_request_error")
    assert (
        error["message"] == f"The model's upstream rejected the request as invalid. Upstream message: {TOOL_CALL_ERROR}"
    )
    logged = log_lines(server, "upstream_refused")[-1]
    assert (logged["model"], logged["status"], logged["message"]) == (model, status, TOOL_CALL_ERROR)
    assert logged["address"] == upstream.root.removeprefix("http://")


def test_an_error_within_a_stream_reaches_the_caller_and_the_log(server, http, upstream):
    error = {"error": {"message": f"bad image for {KEY}", "type": "invalid_request_error", "code": 400}}
    upstream.set_replies(FakeUpstream.sse(error))
    _, given = create_error(http, model="chat")

    assert given["message"].endswith("Upstream message: bad image for [redacted]")
    assert log_lines(server, "upstream_stream_error")[-1]["message"] == "bad image for [redacted]"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500])
def test_an_upstream_that_repeats_its_headers_leaks_neither_key_nor_address(server, http, upstream, status):
    port = upstream.root.rpartition(":")[2]
    message = (
        f"bad request to {upstream.url}/chat/completions from 10.1.2.3 with headers "
        f"{{'Authorization': 'Bearer {KEY}', 'X-Api-Key': '{KEY}'}}, host gpu-7.internal:{port}\x1b[2J"
    )
    upstream.set_replies(upstream.json({"error": {"message": message, "code": KEY}}, status))
    body = http.post("/v1/responses", json={"model": "chat", "input": "hello"}).text

    for text in (body, server.read_log()):
        assert not [secret for secret in (KEY, "10.1.2.3", "gpu-7", "\\u001b") if secret in text]
    assert port not in body


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_are_a_502_without_the_message_of_the_upstream(http, upstream, status):
    message = "Incorrect API key provided: pine****ator."
    upstream.set_replies(upstream.json({"error": {"message": message, "code": "invalid_api_key"}}, status))
    given, error = create_error(http, model="chat")

    assert (given, error["code"]) == (502, "server_error")
    assert "credentials" in error["message"]
    assert "pine" not in error["message"]


def test_a_long_message_of_the_upstream_is_shortened(http, upstream):
    upstream.set_replies(upstream.json({"error": {"message": "too bad " * 8000}}, 400))

    assert len(create_error(http, model="chat")[1]["message"]) < 700


@pytest.mark.parametrize(
    "message, code, quoted",
    [
        ("This model does not accept the unknown parameter 'top_k'.", "invalid_prompt", "parameter 'top_k'."),
        ("Invalid message: 'please explain incorrect api key errors'", "invalid_prompt", "incorrect api key errors'"),
        (f"{'model ' * 10_000}not found", "invalid_prompt", "model model"),
        ("no such host: token=abcdefg12345 at http%3A%2F%2F10.0.0.5%3A8000", "invalid_prompt", "at [address]"),
    ],
    ids=["unknown parameter", "caller's own words", "long", "secrets"],
)
def test_an_upstream_400_about_the_request_is_quoted_whatever_words_are_in_it(http, upstream, message, code, quoted):
    upstream.set_replies(upstream.json({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400))
    status, error = create_error(http, model="chat")

    assert (status, error["code"]) == (400, code)
    assert quoted in error["message"]
    assert not [secret for secret in ("abcdefg12345", "10.0.0.5") if secret in error["message"]]


# ── error codes ──────────────────────────────────────────────────────────────────────────────────────────────────────

# By name: the status and the error of the upstream, and the code of the response.
FAILURES = {
    "invalid": (400, {"message": "no"}, "invalid_prompt"),
    "too long": (400, {"message": "maximum context length"}, "context_length_exceeded"),
    "filtered": (400, {"message": "no", "code": "content_filter"}, "invalid_prompt"),
    "too large": (413, {"message": "no"}, "request_too_large"),
    "missing": (404, {"message": "no", "code": "model_not_found"}, "model_not_found"),
    "sealed": (400, {"message": "no", "code": "invalid_encrypted_content"}, "invalid_encrypted_content"),
    "busy": (429, {"message": "no"}, "rate_limit_exceeded"),
    "key": (401, {"message": "no"}, "server_error"),
    "odd": (418, {"message": "no", "code": "teapot"}, "server_error"),
    "failed": (500, {"message": "no", "code": "kaput"}, "server_error"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_codes_of_failed_responses_are_those_of_the_sdk_or_documented(http, upstream, name):
    status, body, code = FAILURES[name]
    upstream.set_replies(upstream.json({"error": body}, status))
    streamed = http.post("/v1/responses", json={"model": "responses", "input": "hello", "stream": True})
    *_, error, failed = read_frames(streamed.content)
    stored = http.get(f"/v1/responses/{failed['response']['id']}").json()

    assert error["error"]["code"] == failed["response"]["error"]["code"] == stored["error"]["code"] == code
    assert code in SDK_CODES or code in documented_codes()


def documented_codes() -> list[str]:
    """The codes in the documentation that the SDKs do not declare."""
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z_]+)` \| no \|", page, re.MULTILINE)


@pytest.mark.parametrize(
    "parameters, code, message",
    [
        (
            {"temperature": 9},
            "decimal_above_max_value",
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 9 instead.",
        ),
        (
            {"top_p": -0.5},
            "decimal_below_min_value",
            "Invalid 'top_p': decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
        ),
        (
            {"top_logprobs": 21},
            "integer_above_max_value",
            "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead.",
        ),
        (
            {"max_output_tokens": 1},
            "integer_below_min_value",
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 1 instead.",
        ),
        (
            {"metadata": {str(number): "" for number in range(17)}},
            "object_above_max_properties",
            (
                "Invalid 'metadata': too many properties. "
                "Expected an object with at most 16 properties, but got an object with 17 properties instead."
            ),
        ),
        (
            {"input": [{}] * 8193},
            "array_above_max_length",
            (
                "Invalid 'input': array too long. "
                "Expected an array with maximum length 8192, but got an array with length 8193 instead."
            ),
        ),
        (
            {"metadata": {"k": "v" * 513}},
            "string_above_max_length",
            "Invalid 'metadata': string too long. Expected a string with maximum length 512.",
        ),
        (
            {"model": 7},
            "invalid_type",
            "Invalid type for 'model': expected a string, but got an integer instead.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_value_outside_of_its_range_has_the_code_and_the_message_of_openai(http, parameters, code, message):
    status, error = create_error(http, **parameters)

    assert (status, error["code"], error["message"]) == (400, code, message)
    assert error["param"] in parameters


# ── tool types ───────────────────────────────────────────────────────────────────────────────────────────────────────

CLIENT_RUN = "apply_patch", "computer", "computer_use_preview", "local_shell", "shell"
AVAILABLE = ", ".join(map(repr, ("function", "custom", "namespace", "tool_search", *CLIENT_RUN)))
CHOICES = {*get_args(ToolChoiceTypes.model_fields["type"].annotation), "mcp"}
UNAVAILABLE = sorted(CHOICES - {*CLIENT_RUN, "computer_use"})
"""The tool types that the SDK lists for a `tool_choice`. `computer_use` is one of `computer_use_preview`."""


@pytest.mark.parametrize("kind", UNAVAILABLE)
def test_a_tool_type_that_the_sdk_knows_is_not_available_on_this_server(http, kind):
    required = {"file_search": {"vector_store_ids": []}, "mcp": {"server_label": "x"}}
    options = {"code_interpreter": {"container": {"type": "auto"}}} | required
    status, error = create_error(http, tools=[{"type": kind, **options.get(kind, {})}])

    assert (status, error["code"], error["param"]) == (400, "invalid_value", "tools[0].type")
    expected = f"Tool type '{kind}' is not available on this server. Available types: {AVAILABLE}."
    assert error["message"] == expected


@pytest.mark.parametrize("kind", UNAVAILABLE)
def test_a_tool_choice_that_the_sdk_knows_is_not_available_on_this_server(http, kind):
    chosen = {"type": kind} | ({"server_label": "x"} if kind == "mcp" else {})
    choices = chosen, {"type": "allowed_tools", "mode": "auto", "tools": [chosen]}
    for choice, param in zip(choices, ("tool_choice.type", "tool_choice.tools[0].type"), strict=True):
        _, error = create_error(http, tool_choice=choice)
        assert f"'{kind}' is not available on this server. Available types: {AVAILABLE}." in error["message"]
        assert error["param"] == param


def test_a_tool_type_that_does_not_exist_is_an_error_that_lists_the_available_ones(http):
    expected = f"Invalid value: 'teleport'. Supported values are: {AVAILABLE}."

    assert create_error(http, tools=[{"type": "teleport"}])[1]["message"] == expected
    assert create_error(http, tool_choice={"type": "teleport"})[1]["message"] == expected


def test_a_tool_type_in_a_namespace_is_an_error_that_lists_those_of_a_namespace(http):
    inner = {"type": "namespace", "name": "b", "description": "", "tools": []}
    _, error = create_error(http, tools=[{**inner, "tools": [inner]}])

    assert error["param"] == "tools[0].tools[0].type"
    assert (
        error["message"] == "Tool type 'namespace' is not available in a namespace. "
        "Available types: 'function', 'custom'."
    )


# ── long values ──────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = "z" * 100_000


@pytest.mark.parametrize(
    "choice, param",
    [
        ({"type": "function", "name": LONG}, "tool_choice.name"),
        ({"type": "mcp", "server_label": LONG}, "tool_choice.server_label"),
        ({"type": LONG}, "tool_choice.type"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": LONG}]}, "tool_choice.tools[0].name"),
    ],
)
def test_a_long_name_in_a_tool_choice_is_an_error_that_does_not_repeat_it(http, choice, param):
    status, error = create_error(http, tool_choice=choice)

    assert (status, error["code"], error["param"]) == (400, "string_above_max_length", param)
    assert len(error["message"]) < 300


def test_a_long_model_name_in_a_path_is_an_error_that_does_not_repeat_it(http):
    answer = http.get(f"/v1/models/{'z' * 513}")
    error = answer.json()["error"]

    assert (answer.status_code, error["code"]) == (404, "model_not_found")
    assert error["message"] == "The model does not exist: its name has more than 512 characters."
    assert "'zzz" in http.get(f"/v1/models/{'z' * 512}").json()["error"]["message"]


# ── unknown paths and methods ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path, meant",
    [
        ("/responses", "/v1/responses"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/openai/v1/responses/resp_1", "/v1/responses/resp_1"),
        ("/v1/responses/", "/v1/responses"),
        ("//v1/responses", "/v1/responses"),
    ],
)
def test_an_unknown_path_says_whether_v1_is_missing(server, http, path, meant):
    answer = http.request("GET", f"{server.url}{path}")
    error = answer.json()["error"]

    assert (answer.status_code, error["code"], error["type"]) == (404, "unknown_url", "invalid_request_error")
    assert f"Invalid URL (GET {path}). Did you mean {meant}? Set base_url to" in error["message"]


def test_the_sdk_with_a_base_url_without_v1_gets_the_correct_one(server):
    with (
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match=r"Did you mean /v1/responses\?.*/v1"),
    ):
        client.responses.create(input="hello")


def test_an_unknown_path_without_a_similar_one_is_named(http):
    assert "Invalid URL (GET /v1/nothing%0A): there is nothing" in http.get("/v1/nothing%0A").json()["error"]["message"]
    assert "paths of the API begin with '/v1'" in http.get("/nothing").json()["error"]["message"]


def test_a_wrong_method_lists_the_allowed_ones(http):
    answer = http.put("/v1/responses/resp_1")

    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD")
    assert answer.json()["error"]["message"].endswith("this path supports only DELETE, GET, HEAD.")


# ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body, code, param",
    [
        ({"input": "hello", "temperature": 9}, "decimal_above_max_value", "temperature"),
        ({"input": "hello", "new\nline\x1b[2J": 1}, "unknown_parameter", "new\\nline\\x1b[2J"),
        ({"input": "hello", "x" * 5000: 1}, "unknown_parameter", "x" * 100),
        ({"input": "hello", "model": "nothing"}, "model_not_found", "model"),
    ],
)
def test_the_log_line_of_a_4xx_has_code_and_param(server, http, body, code, param):
    request_id = http.post("/v1/responses", json=body).headers["x-request-id"]

    line = wait_until(lambda: [one for one in log_lines(server, "request") if one["request_id"] == request_id])[0]
    assert (line["status"], line["code"], line["param"]) == (400, code, param)


def test_the_log_line_of_an_unknown_path_has_its_code(server, http):
    request_id = http.get("/responses").headers["x-request-id"]

    line = wait_until(lambda: [one for one in log_lines(server, "request") if one["request_id"] == request_id])[0]
    assert (line["status"], line["code"], line["param"]) == (404, "unknown_url", None)


@pytest.mark.parametrize("stream", [False, True])
def test_an_unreachable_upstream_is_logged_with_model_and_address_and_no_traceback(server, http, stream):
    answer = http.post("/v1/responses", json={"model": "offline", "input": "hello", "stream": stream})

    assert "The model cannot be reached. Try again." in answer.text
    assert "127.0.0.1" not in answer.text
    logged = log_lines(server, "upstream_unreachable")[-1]
    assert (logged["model"], logged["address"], logged["error"]) == ("offline", "127.0.0.1:9", "ConnectError")
    assert not {"exception", "where", "exc_info"} & set(logged)
    assert not [word for word in ("hidden-7", "hidden-8", "Traceback") if word in server.read_log() + answer.text]
