"""Invalid input to the server process: 4xx with code and param, and the server keeps running."""

from __future__ import annotations

import json
import socket
import time

import httpx2
import openai
import pytest
from fixtures_server import run_server

LIMITS = {"max_body": 2_000_000, "max_file": 100_000, "body_timeout": 1.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = {"scripted": {"kind": "scripted", "script": "script.yaml"}, "default_for_unknown": False}
    with run_server(tmp_path_factory.mktemp("server"), {"server": LIMITS, "models": models}) as running:
        yield running


@pytest.fixture
def http(server):
    with server.http() as http:
        yield http


def test_the_startup_banner_shows_what_is_off(server):
    assert "off: no API keys in .antwort/keys.json, so only loopback clients are accepted" in server.banner
    assert "code       off, as the configuration says" in server.banner


def deep(levels):
    return b'{"input": [{"type": "x", "y": ' + b"[" * levels + b"]" * levels + b"}]}"


INVALID_BODIES = {
    "empty": (b"", "invalid_json", None),
    "not JSON": (b"{nope", "invalid_json", None),
    "truncated JSON": (b'{"input": "x"', "invalid_json", None),
    "not UTF-8": (b'{"input": "\xff\xfe"}', "invalid_json", None),
    "a list": (b"[]", "invalid_type", None),
    "null": (b"null", "invalid_type", None),
    "deeply nested": (deep(500), "invalid_json", None),
    "900,000 levels deep": (b"[" * 900_000, "invalid_json", None),
    "brackets in a string": (b'{"inputs": "' + b"[" * 500 + b'"}', "unknown_parameter", "inputs"),
    "no input": (b"{}", "missing_required_parameter", "input"),
    "an empty list": (b'{"input": []}', "empty_array", "input"),
    "unknown parameter": (b'{"input": "x", "host_mounts": []}', "unknown_parameter", "host_mounts"),
    "unknown parameter of a tool": (
        b'{"input": "x", "tools": [{"type": "function", "name": "f", "x": 1}]}',
        "unknown_parameter",
        "tools[0].x",
    ),
    "wrong type": (b'{"input": "x", "temperature": "hot"}', "invalid_type", "temperature"),
    "wrong type of a nested field": (
        b'{"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}',
        "invalid_type",
        "input[0].content[0].text",
    ),
    "item type is an object": (b'{"input": [{"type": {}}]}', "invalid_type", "input[0].type"),
    "temperature above the maximum": (b'{"input": "x", "temperature": 3}', "decimal_above_max_value", "temperature"),
    "max_output_tokens below the minimum": (
        b'{"input": "x", "max_output_tokens": 1}',
        "integer_below_min_value",
        "max_output_tokens",
    ),
    "unknown model": (b'{"input": "x", "model": "other"}', "model_not_found", "model"),
    "unsupported tool": (b'{"input": "x", "tools": [{"type": "image_generation"}]}', "invalid_value", "tools[0].type"),
    "tool_choice of an undeclared tool": (
        b'{"input": "x", "tool_choice": {"type": "function", "name": "f"}}',
        "invalid_value",
        "tool_choice",
    ),
    "output without its call": (
        b'{"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}',
        None,
        "input",
    ),
    "two histories": (
        b'{"input": "x", "previous_response_id": "resp_1", "conversation": "conv_1"}',
        "mutually_exclusive_parameters",
        "previous_response_id",
    ),
    "too much metadata": (
        json.dumps({"input": "x", "metadata": {str(n): "x" for n in range(17)}}).encode(),
        "object_above_max_properties",
        "metadata",
    ),
    "10,000 tools": (
        json.dumps({"input": "x", "tools": [{"type": "function", "name": f"f{n}"} for n in range(10_000)]}).encode(),
        "array_above_max_length",
        "tools",
    ),
    "background with store false": (
        b'{"input": "x", "background": true, "store": false}',
        "invalid_value",
        "background",
    ),
    "a surrogate": (b'{"input": "\\ud800"}', "invalid_json", None),
    "half a surrogate in UTF-8": (b'{"input": "\xed\xa0\x80"}', "invalid_json", None),
    "a name that is not UTF-8": (b'{"\xff": 1}', "invalid_json", None),
    "a byte order mark": (b'\xef\xbb\xbf{"input": "x"}', "invalid_json", None),
    "trailing data": (b'{"input": "x"} {}', "invalid_json", None),
    "not a number": (b'{"input": "x", "temperature": NaN}', "invalid_json", None),
    "infinity": (b'{"input": "x", "temperature": -Infinity}', "invalid_json", None),
    "number out of range": (b'{"input": "x", "temperature": 1e999}', "invalid_value", "temperature"),
    "nested number out of range": (b'{"input": [{"type": "x", "y": [1e999]}]}', "invalid_value", "input[0]"),
    "nested integer out of range": (
        b'{"input": [{"type": "x", "y": ' + b"9" * 5000 + b"}]}",
        "invalid_value",
        "input[0]",
    ),
    "a negative limit": (b'{"input": "x", "max_output_tokens": -1}', "integer_below_min_value", "max_output_tokens"),
    "fractional integer": (b'{"input": "x", "max_output_tokens": 20.5}', "invalid_type", "max_output_tokens"),
    "number instead of a boolean": (b'{"input": "x", "stream": 1}', "invalid_type", "stream"),
    "a string for a list": (b'{"input": "x", "include": "message"}', "invalid_type", "include"),
    "an object for the input": (b'{"input": {"role": "user"}}', "invalid_type", "input"),
    "a number for an item": (b'{"input": [3]}', "invalid_type", "input[0]"),
    "null instead of an item": (b'{"input": [null]}', "invalid_type", "input[0]"),
    "call_id is a list": (
        b'{"input": [{"type": "shell_call", "call_id": [1], "action": {}}]}',
        "invalid_type",
        "input[0].call_id",
    ),
    "call_id is an object": (
        b'{"input": [{"role": "user", "content": "x"}, {"type": "shell_call_output", "call_id": {}}]}',
        "invalid_type",
        "input[1].call_id",
    ),
    "call_id of a code call is a list": (
        b'{"input": [{"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "call_id": []}]}',
        "invalid_type",
        "input[0].call_id",
    ),
    "too many items": (
        b'{"input": [' + b'{"role":"user","content":""},' * 8192 + b'{"role":"user","content":""}]}',
        "array_above_max_length",
        "input",
    ),
    "too many objects": (
        b'{"input": [{"type": "x", "y": [' + b"{}," * 100_000 + b"{}]}]}",
        "invalid_json",
        None,
    ),
    "item type is a number": (b'{"input": [{"type": 3}]}', "invalid_type", "input[0].type"),
    "unknown role": (b'{"input": [{"role": "robot", "content": "x"}]}', "invalid_value", "input[0].role"),
    "unknown content part": (
        b'{"input": [{"role": "user", "content": [{"type": "input_unknown"}]}]}',
        "invalid_value",
        "input[0].content[0].type",
    ),
    "arguments is a number": (
        b'{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 3}]}',
        "invalid_type",
        "input[0].arguments",
    ),
    "a tool without a type": (
        b'{"input": "x", "tools": [{"name": "f"}]}',
        "missing_required_parameter",
        "tools[0].type",
    ),
    "unknown tool type": (b'{"input": "x", "tools": [{"type": "unknown_tool"}]}', "invalid_value", "tools[0].type"),
    "invalid tool name": (
        b'{"input": "x", "tools": [{"type": "function", "name": "a b"}]}',
        "invalid_value",
        "tools[0].name",
    ),
    "schema is a number": (
        b'{"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": 3}}}',
        "invalid_type",
        "text.format.schema",
    ),
    "a key of metadata that is too long": (
        json.dumps({"input": "x", "metadata": {"k" * 65: "v"}}).encode(),
        "string_above_max_length",
        "metadata",
    ),
    "a huge number": (b'{"input": "x", "max_tool_calls": ' + b"9" * 5000 + b"}", "invalid_value", "max_tool_calls"),
}


@pytest.mark.parametrize("name", INVALID_BODIES)
def test_an_invalid_body_is_a_400_with_code_and_param(http, name):
    body, code, param = INVALID_BODIES[name]
    answer = http.post("/v1/responses", content=body)
    error = answer.json()["error"]

    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert error["param"] == param
    assert http.post("/v1/responses", json={"input": "hello"}).status_code == 200


@pytest.mark.parametrize("name", INVALID_BODIES)
@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/conv_0/items", "/v1/responses/input_tokens"])
def test_an_invalid_body_is_a_4xx_at_other_endpoints(http, path, name):
    body = INVALID_BODIES[name][0]
    if "conversations" in path:
        body = body.replace(b'"input"', b'"items"')
    answer = http.post(path, content=body)

    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body, text",
    [
        (b'{"input": "one", "input": "two"}', "You said: two"),
        (b'{"input": "a\\u0000b"}', "You said: a\x00b"),
        (b'{"input": "\\ud83d\\ude00"}', "You said: \U0001f600"),
        (b' \r\n\t{"input" : "x"}\n ', "You said: x"),
        (b'{"input": "x", "tools": null, "text": null, "reasoning": null, "metadata": null}', "You said: x"),
        (b'{"input": "x", "temperature": -0.0, "max_tool_calls": 99999999999999999999999}', "You said: x"),
    ],
)
def test_unusual_valid_bodies_are_accepted(http, body, text):
    answer = http.post("/v1/responses", content=body)

    assert answer.status_code == 200
    assert answer.json()["output"][0]["content"][0]["text"] == text
    assert http.get(f"/v1/responses/{answer.json()['id']}").json() == answer.json()


def test_2048_tools_are_accepted(http):
    tools = [{"type": "function", "name": f"f{n}"} for n in range(2048)]

    assert http.post("/v1/responses", json={"input": "x", "tools": tools}).status_code == 200


def test_an_oversized_content_length_is_rejected_before_the_body(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n{")
        answer = b""
        while piece := raw.recv(65536):  # the head and the body may arrive separately
            answer += piece

    assert b" 413 " in answer
    assert b"request_too_large" in answer


def test_an_oversized_chunked_body_is_rejected(http):
    def endless():
        while True:
            yield b" " * 65536

    try:
        answer = http.post("/v1/responses", content=endless())
    except httpx2.WriteError:
        return  # the server closed the connection while the client was sending
    assert answer.status_code == 413


def test_a_stalled_body_times_out(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        answer = raw.recv(65536)

    assert b" 408 " in answer


FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'


@pytest.mark.parametrize("path, start", [(b"/v1/responses", b"{"), (b"/v1/files", FORM)])
def test_a_body_below_the_minimum_rate_times_out(server, path, start):
    head = b"host: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\ncontent-length: 90000\r\n\r\n"
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST " + path + b" HTTP/1.1\r\n" + head + start)
        raw.settimeout(0.1)
        deadline = time.monotonic() + 30
        answer = b""
        while not answer and time.monotonic() < deadline:
            try:
                raw.sendall(b"-")
                answer = raw.recv(65536)
            except TimeoutError:
                pass

    assert b" 408 " in answer


def test_a_slow_body_above_the_minimum_rate_is_accepted(server):
    body = b'{"input": "' + b"x" * 30_000 + b'"}'
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 4000):
            raw.sendall(body[at : at + 4000])
            time.sleep(0.3)
        answer = raw.recv(65536)

    assert b" 200 " in answer


def test_slow_headers_time_out(tmp_path):
    with run_server(tmp_path / "server", {"server": {"head_timeout": 1.0}}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        raw = socket.create_connection((host, int(port)), timeout=10)
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n")
        answer = raw.recv(65536)
        raw.close()

    assert b" 408 " in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"


def test_a_request_above_the_connection_limit_gets_503_with_retry_after(tmp_path):
    body = {"input": "forever", "stream": True, "store": False}
    with run_server(tmp_path / "server", {"server": {"max_connections": 2}}) as server, server.http() as third:
        with (
            server.http() as first,
            server.http() as second,
            first.stream("POST", "/v1/responses", json=body) as one,
            second.stream("POST", "/v1/responses", json=body) as other,
        ):
            assert (one.status_code, other.status_code) == (200, 200)
            rejected = third.get("/v1/models")
            assert third.get("/healthz").status_code == 200
        deadline = time.monotonic() + 10  # until the server has noticed the disconnects
        while third.get("/v1/models").status_code != 200:
            assert time.monotonic() < deadline

    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "unavailable")
    assert rejected.headers["retry-after"] == "1"
    assert rejected.headers["x-request-id"].startswith("req_")


def test_idle_connections_do_not_count_towards_the_connection_limit(tmp_path):
    with (
        run_server(tmp_path / "server", {"server": {"max_connections": 2}}) as server,
        server.http() as first,
        server.http() as second,
        server.http() as third,
    ):
        for client in (first, second, third, first):
            assert client.get("/v1/models").status_code == 200


def test_an_oversized_file_is_a_413(server):
    with server.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.files.create(file=("a", b"x" * 150_000), purpose="user_data")
    assert caught.value.status_code == 413


@pytest.mark.parametrize(
    "method, path, status, code",
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1/responses/", 404, "unknown_url"),
        ("PUT", "/v1/responses", 405, "method_not_supported"),
        ("PATCH", "/v1/files/x", 405, "method_not_supported"),
        ("GET", "/v1/responses/resp_0", 404, "not_found"),
        ("GET", "/v1/responses/%00", 404, "not_found"),
        ("GET", "/v1/responses/..%2f..%2fetc", 404, "unknown_url"),
        ("GET", "/v1/files/" + "x" * 5000, 404, "not_found"),
        ("POST", "/v1/responses/resp_0/cancel", 404, "not_found"),
        ("GET", "/v1/files?limit=x", 400, "invalid_type"),
        ("GET", "/v1/files?limit=10001", 400, "integer_above_max_value"),
        ("GET", "/v1/responses/resp_0?starting_after=x", 400, "invalid_type"),
        ("GET", "/v1/responses/resp_0?stream=maybe", 400, "invalid_type"),
        ("GET", "/v1/files?limit=0", 400, "integer_below_min_value"),
        ("GET", "/v1/files?limit=" + "9" * 5000, 400, "invalid_type"),
        ("GET", "/v1/files?order=up", 400, "invalid_value"),
        ("GET", "/v1/files?after=file-0", 400, "invalid_value"),
        ("GET", "/v1/conversations/conv_0/items", 404, "not_found"),
        ("GET", "/v1/responses/%ff", 404, "not_found"),
        ("GET", "/v1/files?after=%ff", 400, "invalid_value"),
        ("GET", "/v1/files?limit=-1", 400, "integer_below_min_value"),
        ("GET", "/v1/files?limit=1.5", 400, "invalid_type"),
        ("GET", "/v1/files?limit=%D9%A1", 400, "invalid_type"),
        ("GET", "/v1/responses/resp_0?starting_after=" + "9" * 30, 400, "invalid_type"),
        ("GET", "/v1/responses/resp_0?include[]=%00", 400, "invalid_value"),
        ("OPTIONS", "/v1/responses", 405, "method_not_supported"),
    ],
)
def test_every_error_has_an_envelope(http, method, path, status, code):
    answer = http.request(method, path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["content-type"] == "application/json"


def test_a_405_lists_the_allowed_methods(http):
    assert http.put("/v1/responses/resp_0").headers["allow"] == "DELETE, GET, HEAD"
    assert http.put("/v1/files").headers["allow"] == "GET, HEAD, POST"
    assert http.put("/v1/responses/input_tokens").headers["allow"] == "POST"


def test_an_unresolved_item_reference_is_a_404_with_its_path(http):
    reference = {"type": "item_reference", "id": "msg_0"}
    response = http.post("/v1/responses", json={"input": [reference]})
    conversation = http.post("/v1/conversations", json={"items": [reference]})

    assert (response.status_code, response.json()["error"]["param"]) == (404, "input[0]")
    assert (conversation.status_code, conversation.json()["error"]["param"]) == (404, "items[0]")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
    ],
)
def test_cross_origin_requests_are_403_without_keys(http, headers):
    assert http.post("/v1/responses", json={"input": "x"}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked",
        b"content-length: 3\r\ncontent-length: 4",
        b"content-length: -1",
        b"content-length: x",
        b"transfer-encoding: chunked, identity",
        b"x : y",
        b"x: a\x00b",
    ],
)
def test_ambiguous_headers_are_rejected(server, head):
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n{}")
        answer = raw.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] in ("invalid_http", "invalid_json")


@pytest.mark.parametrize(
    "kind, body",
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--y\r\n"),
        ("multipart/form-data; boundary=" + "x" * 5000, b"--x\r\n"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--',
        ),
        ("application/json", b"{}"),
        ("", b"x"),
    ],
)
def test_an_invalid_form_is_a_400(http, kind, body):
    answer = http.post("/v1/files", content=body, headers={"content-type": kind})

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields, param",
    [
        ({}, "purpose"),
        ({"purpose": "fun"}, "purpose"),
        ({"purpose": "user_data", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"purpose": "user_data", "expires_after[anchor]": "now"}, "expires_after[anchor]"),
        (
            {"purpose": "user_data", "expires_after[anchor]": "created_at", "expires_after[seconds]": "-1"},
            "expires_after[seconds]",
        ),
        (
            {"purpose": "user_data", "expires_after[anchor]": "created_at", "expires_after[seconds]": "1e5"},
            "expires_after[seconds]",
        ),
    ],
)
def test_an_invalid_form_field_is_named(http, fields, param):
    answer = http.post("/v1/files", files={"file": ("a.txt", b"a")}, data=fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_server_survives_garbage_instead_of_http(server, http):
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 5000, b"POST / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=5) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert http.get("/healthz").status_code == 200


def test_the_openapi_document_is_served(http):
    document = http.get("/openapi.json").json()

    assert document["openapi"] == "3.1.0"
    assert {"CreateResponse", "Response", "ErrorEnvelope"} <= set(document["components"]["schemas"])
    assert "/v1/responses/{response_id}/input_items" in document["paths"]


def test_metrics_contain_counts_and_no_content(http):
    http.post("/v1/responses", json={"input": "xylophone"})
    time.sleep(0.05)
    page = http.get("/metrics").text

    assert 'antwort_responses_total{model="scripted",status="completed"}' in page
    assert 'antwort_tokens_total{kind="output",model="scripted"}' in page
    assert "xylophone" not in page
