"""The real process against bad input: 4xx with the right code and param, and the server goes on."""

from __future__ import annotations

import json
import socket
import time

import httpx2
import openai
import pytest
from fixtures_server import serving

LIMITS = {"max_body": 2_000_000, "max_file": 100_000, "body_timeout": 1.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), {"server": LIMITS}) as running:
        yield running


@pytest.fixture
def http(server):
    with server.http() as http:
        yield http


def test_the_screen_says_what_is_off(server):
    assert "off: no API keys, so only loopback clients are accepted" in server.screen
    assert "none run on the server" in server.screen


def deep(levels):
    return b'{"input": [{"type": "x", "y": ' + b"[" * levels + b"]" * levels + b"}]}"


BAD = {
    "nothing": (b"", "invalid_json", None),
    "no JSON": (b"{nope", "invalid_json", None),
    "half of it": (b'{"input": "x"', "invalid_json", None),
    "not UTF-8": (b'{"input": "\xff\xfe"}', "invalid_json", None),
    "a list": (b"[]", "invalid_type", None),
    "null": (b"null", "invalid_type", None),
    "deep": (deep(500), "invalid_json", None),
    "deep beyond reason": (b"[" * 900_000, "invalid_json", None),
    "deep in strings only": (b'{"inputs": "' + b"[" * 500 + b'"}', "unknown_parameter", "inputs"),
    "no input": (b"{}", "missing_required_parameter", "input"),
    "an empty list": (b'{"input": []}', "empty_array", "input"),
    "unknown": (b'{"input": "x", "host_mounts": []}', "unknown_parameter", "host_mounts"),
    "unknown in a tool": (
        b'{"input": "x", "tools": [{"type": "function", "name": "f", "x": 1}]}',
        "unknown_parameter",
        "tools[0].x",
    ),
    "a wrong type": (b'{"input": "x", "temperature": "hot"}', "invalid_type", "temperature"),
    "a wrong type deep inside": (
        b'{"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}',
        "invalid_type",
        "input[0].content[0].text",
    ),
    "an item of a type that is none": (b'{"input": [{"type": {}}]}', "invalid_type", "input[0].type"),
    "too hot": (b'{"input": "x", "temperature": 3}', "integer_above_max_value", "temperature"),
    "too few": (b'{"input": "x", "max_output_tokens": 1}', "integer_below_min_value", "max_output_tokens"),
    "no such model": (b'{"input": "x", "model": "other"}', "model_not_found", "model"),
    "a tool that is not here": (b'{"input": "x", "tools": [{"type": "shell"}]}', "invalid_value", "tools[0].type"),
    "no such tool": (
        b'{"input": "x", "tool_choice": {"type": "function", "name": "f"}}',
        "invalid_value",
        "tool_choice",
    ),
    "an answer to no call": (
        b'{"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}',
        None,
        "input",
    ),
    "both histories": (
        b'{"input": "x", "previous_response_id": "resp_1", "conversation": "conv_1"}',
        "mutually_exclusive_parameters",
        "previous_response_id",
    ),
    "too much metadata": (
        json.dumps({"input": "x", "metadata": {str(n): "x" for n in range(17)}}).encode(),
        "invalid_value",
        "metadata",
    ),
    "10,000 tools": (
        json.dumps({"input": "x", "tools": [{"type": "function", "name": f"f{n}"} for n in range(10_000)]}).encode(),
        "invalid_value",
        "tools",
    ),
    "background without a store": (
        b'{"input": "x", "background": true, "store": false}',
        "invalid_value",
        "background",
    ),
    "a surrogate": (b'{"input": "\\ud800"}', "invalid_json", None),
    "half a surrogate in UTF-8": (b'{"input": "\xed\xa0\x80"}', "invalid_json", None),
    "a name that is not UTF-8": (b'{"\xff": 1}', "invalid_json", None),
    "a byte order mark": (b'\xef\xbb\xbf{"input": "x"}', "invalid_json", None),
    "more behind the end": (b'{"input": "x"} {}', "invalid_json", None),
    "not a number": (b'{"input": "x", "temperature": NaN}', "invalid_json", None),
    "infinity": (b'{"input": "x", "temperature": -Infinity}', "invalid_json", None),
    "a number beyond all": (b'{"input": "x", "temperature": 1e999}', "invalid_value", "temperature"),
    "a number beyond all, deep inside": (b'{"input": [{"type": "x", "y": [1e999]}]}', "invalid_value", "input[0]"),
    "an integer beyond all, deep inside": (
        b'{"input": [{"type": "x", "y": ' + b"9" * 5000 + b"}]}",
        "invalid_value",
        "input[0]",
    ),
    "a negative limit": (b'{"input": "x", "max_output_tokens": -1}', "integer_below_min_value", "max_output_tokens"),
    "a broken integer": (b'{"input": "x", "max_output_tokens": 20.5}', "invalid_type", "max_output_tokens"),
    "a number for a yes": (b'{"input": "x", "stream": 1}', "invalid_type", "stream"),
    "a string for a list": (b'{"input": "x", "include": "message"}', "invalid_type", "include"),
    "an object for the input": (b'{"input": {"role": "user"}}', "invalid_type", "input"),
    "a number for an item": (b'{"input": [3]}', "invalid_type", "input[0]"),
    "nothing for an item": (b'{"input": [null]}', "invalid_type", "input[0]"),
    "a call by a list": (
        b'{"input": [{"type": "shell_call", "call_id": [1], "action": {}}]}',
        "invalid_type",
        "input[0].call_id",
    ),
    "an output by an object": (
        b'{"input": [{"role": "user", "content": "x"}, {"type": "shell_call_output", "call_id": {}}]}',
        "invalid_type",
        "input[1].call_id",
    ),
    "a code call by a list": (
        b'{"input": [{"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "call_id": []}]}',
        "invalid_type",
        "input[0].call_id",
    ),
    "more items than can be": (
        b'{"input": [' + b'{"role":"user","content":""},' * 8192 + b'{"role":"user","content":""}]}',
        "invalid_value",
        "input",
    ),
    "more objects than can be": (
        b'{"input": [{"type": "x", "y": [' + b"{}," * 100_000 + b"{}]}]}",
        "invalid_json",
        None,
    ),
    "an item of no type": (b'{"input": [{"type": 3}]}', "invalid_type", "input[0].type"),
    "a role that nobody has": (b'{"input": [{"role": "robot", "content": "x"}]}', "invalid_value", "input[0].role"),
    "a part that nobody knows": (
        b'{"input": [{"role": "user", "content": [{"type": "input_smell"}]}]}',
        "invalid_value",
        "input[0].content[0].type",
    ),
    "a call with a number": (
        b'{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 3}]}',
        "invalid_type",
        "input[0].arguments",
    ),
    "a tool without a type": (
        b'{"input": "x", "tools": [{"name": "f"}]}',
        "missing_required_parameter",
        "tools[0].type",
    ),
    "a tool of no type": (b'{"input": "x", "tools": [{"type": "teleport"}]}', "invalid_value", "tools[0].type"),
    "a tool with a bad name": (
        b'{"input": "x", "tools": [{"type": "function", "name": "a b"}]}',
        "invalid_value",
        "tools[0].name",
    ),
    "a schema that is none": (
        b'{"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": 3}}}',
        "invalid_type",
        "text.format.schema",
    ),
    "a key of metadata that is too long": (
        json.dumps({"input": "x", "metadata": {"k" * 65: "v"}}).encode(),
        "invalid_value",
        "metadata",
    ),
    "a huge number": (b'{"input": "x", "max_tool_calls": ' + b"9" * 5000 + b"}", "invalid_value", "max_tool_calls"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_is_answered_with_what_is_wrong(http, name):
    body, code, param = BAD[name]
    answer = http.post("/v1/responses", content=body)
    error = answer.json()["error"]

    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert error["param"] == param
    assert http.post("/v1/responses", json={"input": "hello"}).status_code == 200


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/conv_0/items", "/v1/responses/input_tokens"])
def test_a_bad_body_harms_nobody_elsewhere(http, path, name):
    body = BAD[name][0]
    if "conversations" in path:
        body = body.replace(b'"input"', b'"items"')
    answer = http.post(path, content=body)

    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body, said",
    [
        (b'{"input": "one", "input": "two"}', "You said: two"),
        (b'{"input": "a\\u0000b"}', "You said: a\x00b"),
        (b'{"input": "\\ud83d\\ude00"}', "You said: \U0001f600"),
        (b' \r\n\t{"input" : "x"}\n ', "You said: x"),
        (b'{"input": "x", "tools": null, "text": null, "reasoning": null, "metadata": null}', "You said: x"),
        (b'{"input": "x", "temperature": -0.0, "max_tool_calls": 99999999999999999999999}', "You said: x"),
    ],
)
def test_what_is_odd_but_right_is_answered(http, body, said):
    answer = http.post("/v1/responses", content=body)

    assert answer.status_code == 200
    assert answer.json()["output"][0]["content"][0]["text"] == said
    assert http.get(f"/v1/responses/{answer.json()['id']}").json() == answer.json()


def test_2048_tools_are_not_too_many(http):
    tools = [{"type": "function", "name": f"f{n}"} for n in range(2048)]

    assert http.post("/v1/responses", json={"input": "x", "tools": tools}).status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_has_come(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n{")
        answer = b""
        while piece := raw.recv(65536):  # its head and its body may come one after the other
            answer += piece

    assert b" 413 " in answer
    assert b"request_too_large" in answer


def test_a_body_that_does_not_say_how_large_it_is_is_refused_too(http):
    def endless():
        while True:
            yield b" " * 65536

    try:
        answer = http.post("/v1/responses", content=endless())
    except httpx2.WriteError:
        return  # it hung up on us while we were still sending
    assert answer.status_code == 413


def test_a_sender_who_falls_silent_is_not_waited_for(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        answer = raw.recv(65536)

    assert b" 408 " in answer


FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'


@pytest.mark.parametrize("path, begins", [(b"/v1/responses", b"{"), (b"/v1/files", FORM)])
def test_a_sender_who_only_drips_is_not_waited_for(server, path, begins):
    head = b"host: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\ncontent-length: 90000\r\n\r\n"
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST " + path + b" HTTP/1.1\r\n" + head + begins)
        raw.settimeout(0.1)
        until = time.monotonic() + 30
        answer = b""
        while not answer and time.monotonic() < until:
            try:
                raw.sendall(b"-")
                answer = raw.recv(65536)
            except TimeoutError:
                pass

    assert b" 408 " in answer


def test_a_sender_who_is_slow_but_steady_is_waited_for(server):
    body = b'{"input": "' + b"x" * 30_000 + b'"}'
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=10) as raw:
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 4000):
            raw.sendall(body[at : at + 4000])
            time.sleep(0.3)
        answer = raw.recv(65536)

    assert b" 200 " in answer


def test_a_sender_who_is_slow_with_the_headers_is_not_waited_for(tmp_path):
    with serving(tmp_path / "server", {"server": {"head_timeout": 1.0}}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        raw = socket.create_connection((host, int(port)), timeout=10)
        raw.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n")
        answer = raw.recv(65536)
        raw.close()

    assert b" 408 " in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"


def test_one_connection_too_many_is_a_503_that_says_when(tmp_path):
    with (
        serving(tmp_path / "server", {"server": {"max_connections": 2}}) as server,
        server.http() as first,
        server.http() as second,
    ):
        assert [one.get("/v1/models").status_code for one in (first, second)] == [200, 200]
        with server.http() as third:
            refused = third.get("/v1/models")
            assert third.get("/healthz").status_code == 200
        until = time.monotonic() + 10  # it takes a moment to see that the third has gone
        while first.get("/v1/models").status_code != 200:
            assert time.monotonic() < until

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-request-id"].startswith("req_")


def test_a_file_that_is_too_large_is_refused(server):
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
def test_every_wrong_request_gets_an_envelope(http, method, path, status, code):
    answer = http.request(method, path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["content-type"] == "application/json"


def test_a_wrong_method_is_told_all_the_right_ones(http):
    assert http.put("/v1/responses/resp_0").headers["allow"] == "DELETE, GET, HEAD"
    assert http.put("/v1/files").headers["allow"] == "GET, HEAD, POST"
    assert http.put("/v1/responses/input_tokens").headers["allow"] == "POST"


def test_a_reference_that_leads_nowhere_is_named_where_it_was_given(http):
    nowhere = {"type": "item_reference", "id": "msg_0"}
    asked = http.post("/v1/responses", json={"input": [nowhere]})
    begun = http.post("/v1/conversations", json={"items": [nowhere]})

    assert (asked.status_code, asked.json()["error"]["param"]) == (404, "input[0]")
    assert (begun.status_code, begun.json()["error"]["param"]) == (404, "items[0]")


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
def test_a_web_page_on_this_machine_does_not_get_in(http, headers):
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
def test_headers_that_two_readers_could_read_in_two_ways_are_refused(server, head):
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
def test_a_form_that_is_none_is_refused(http, kind, body):
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
def test_a_form_with_wrong_fields_says_which(http, fields, param):
    answer = http.post("/v1/files", files={"file": ("a.txt", b"a")}, data=fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_garbage_instead_of_http_harms_nobody(server, http):
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 5000, b"POST / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=5) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert http.get("/healthz").status_code == 200


def test_the_document_describes_every_route(http):
    document = http.get("/openapi.json").json()

    assert document["openapi"] == "3.1.0"
    assert {"CreateResponse", "Response", "ErrorEnvelope"} <= set(document["components"]["schemas"])
    assert "/v1/responses/{response_id}/input_items" in document["paths"]


def test_the_metrics_count_without_telling(http):
    http.post("/v1/responses", json={"input": "xylophone"})
    time.sleep(0.05)
    page = http.get("/metrics").text

    assert 'antwort_responses_total{model="scripted",status="completed"}' in page
    assert 'antwort_tokens_total{kind="output",model="scripted"}' in page
    assert "xylophone" not in page
