"""The HTTP client of the suite: repeated requests, limits of answers, the envelope of errors, and curl commands."""

from __future__ import annotations

import gzip
import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from fake_search_api import running

from antwort.conformance.client import (
    ApiClient,
    Exchange,
    InvalidUrl,
    Reply,
    Unreachable,
    UploadedContent,
    base_url,
    expect_deleted,
    quoted,
)
from antwort.conformance.grammar import Violation

Canned = tuple[int, dict[str, str], bytes]
JSON = {"content-type": "application/json"}


@contextmanager
def canned_server(*answers: Canned, ended: threading.Event | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server with these answers in turn. An answer that is too short waits for `ended`."""
    left = list(answers)
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
            pass

        def do_GET(self) -> None:
            received.append(dict(self.headers.items()))
            status, headers, body = left.pop(0)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            if ended is not None:
                ended.wait(30)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server):
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            if ended is not None:
                ended.set()


@contextmanager
def api_client(url: str, **options: Any) -> Iterator[tuple[ApiClient, list[float]]]:
    pauses: list[float] = []
    client = ApiClient(url, "sk-test", sleep=pauses.append, **options)
    try:
        yield client, pauses
    finally:
        client.close()


def too_many(**headers: str) -> Canned:
    return 429, {name.replace("_", "-"): value for name, value in headers.items()}, b"{}"


@pytest.mark.parametrize(
    "answers, pauses, status",
    [
        ([too_many(retry_after="7"), (200, {}, b"{}")], [7], 200),
        ([too_many(retry_after="0.5")] * 3, [0.5, 0.5], 429),
        ([too_many()], [], 429),
        ([too_many(retry_after="61")], [], 429),
        ([too_many(retry_after="soon")], [], 429),
        ([too_many(retry_after="nan")], [], 429),
        ([too_many(retry_after="1", x_should_retry="false")], [], 429),
        ([(503, {"retry-after": "1"}, b"{}")], [], 503),
    ],
)
def test_a_request_is_repeated_after_429_only(answers, pauses, status):
    with canned_server(*answers) as (url, received), api_client(url) as (client, slept):
        reply = client.get("/models")

    assert (reply.status, slept, client.requests, len(received)) == (status, pauses, len(answers), len(answers))
    assert received[0]["authorization"] == "Bearer sk-test"


def test_a_redirect_is_not_followed():
    with canned_server((302, {"location": "http://127.0.0.1:9/"}, b"")) as (url, _), api_client(url) as (client, _):
        assert client.get("/models").status == 302


def test_an_answer_that_does_not_end_is_no_answer():
    ended = threading.Event()
    endless = (200, {"content-length": "10"}, b"1")
    with canned_server(endless, ended=ended) as (url, _), api_client(url, timeout=0.05) as (client, _):
        with pytest.raises(Unreachable, match=r"0\.05 seconds"):
            client.get("/models")
        ended.set()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"], ids=["head", "body"])
def test_an_answer_that_trickles_is_no_answer(sent):
    """Each byte comes in time, the answer does not."""
    ended = threading.Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65536)
                self.request.sendall(sent or b"HTTP/1.1 200 OK\r\nx: ")
                while not ended.wait(0.02):
                    self.request.sendall(b"y")

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    with running(server), api_client(f"http://127.0.0.1:{server.server_address[1]}", timeout=0.2) as (client, _):
        try:
            with pytest.raises(Unreachable, match=r"0\.2 seconds"):
                client.get("/models")
        finally:
            ended.set()


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br", "zstd"])
def test_a_compressed_answer_is_not_decompressed(encoding):
    bomb = gzip.compress(gzip.compress(bytes(1 << 24)))
    with (
        canned_server((200, {"content-encoding": encoding}, bomb)) as (url, received),
        api_client(url) as (client, _),
        pytest.raises(Violation, match="content-encoding"),
    ):
        client.get("/models")

    assert {name.lower(): value for name, value in received[0].items()}["accept-encoding"] == "identity"


def test_an_id_that_fits_into_no_url_is_a_violation():
    with api_client("http://127.0.0.1:9") as (client, _), pytest.raises(Violation, match="fit into a URL"):
        client.get(f"/responses/{'x' * 70_000}")


def test_an_answer_that_is_too_large_is_a_violation():
    with (
        canned_server((200, {}, b"1" * 1001)) as (url, _),
        api_client(url, max_body=1000) as (client, _),
        pytest.raises(Violation, match="an answer of up to 1000 bytes"),
    ):
        client.get("/models")


def test_a_closed_connection_is_no_answer():
    with (
        canned_server((200, {"content-length": "10"}, b"1")) as (url, _),
        api_client(url) as (client, _),
        pytest.raises(Unreachable, match="RemoteProtocolError"),
    ):
        client.get("/models")


@pytest.mark.parametrize(
    "url, expected",
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("https://api.example/", "https://api.example/v1"),
        ("https://api.example/openai/v1/", "https://api.example/openai/v1"),
    ],
)
def test_v1_is_added_to_a_url_without_a_path(url, expected):
    assert base_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "api.example", "ftp://api.example", "http://", "http://a/?b", "http://a/#b", "http://a:b@c/"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidUrl):
        base_url(url)


def reply(status: int, value: Any) -> Reply:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reply(status, JSON, content, Exchange("GET", "http://127.0.0.1/v1/models"))


ERROR = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}


def test_an_error_is_read_from_its_envelope():
    assert reply(404, {"error": ERROR}).error(400, 404) == ERROR


@pytest.mark.parametrize(
    "status, value",
    [
        (200, {"error": ERROR}),
        (404, {}),
        (404, {"error": "no"}),
        (404, {"error": {**ERROR, "message": ""}}),
        (404, {"error": {"message": "no", "type": "a"}}),
        (404, [ERROR]),
        (404, b"<html>"),
        (404, b"\xff"),
        (404, b"[" * 100_000),
    ],
)
def test_another_answer_is_no_error(status, value):
    with pytest.raises(Violation):
        reply(status, value).error(404)


@pytest.mark.parametrize(
    "status, value",
    [(200, {"id": "a", "object": "file"}), (200, {"id": "b", "object": "file", "deleted": True}), (404, {})],
)
def test_another_answer_is_no_deletion(status, value):
    with pytest.raises(Violation):
        expect_deleted(reply(status, value), "file", "a")


def test_a_request_is_shown_as_a_shell_command_without_the_key():
    url = "http://127.0.0.1/v1/responses"
    posted = shlex.split(Exchange("POST", url, {"input": "it's $HOME"}).as_curl())
    uploaded = shlex.split(Exchange("POST", url, {"purpose": "user_data"}, UploadedContent("a.txt", b"1")).as_curl())
    large = Exchange("POST", url, {"input": "x" * 5000}).as_curl()

    assert posted[:5] == ["curl", "-sS", "-X", "POST", url]
    assert json.loads(posted[-1]) == {"input": "it's $HOME"}
    assert "Authorization: Bearer $API_KEY" in posted
    assert uploaded[-4:] == ["-F", "file=@a.txt", "-F", "purpose=user_data"]
    assert large.endswith("-d @BODY  # 5013 characters: see --json")


def test_an_id_of_a_server_cannot_change_the_path():
    assert quoted("../models?a#b") == "..%2Fmodels%3Fa%23b"
