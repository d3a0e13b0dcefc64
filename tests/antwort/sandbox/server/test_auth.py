"""Who is let in: the token's bearer, or where there is no token the programs of this machine and no web page."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from antwort.sandbox.server.auth import _calls_loopback
from antwort.testing.sandbox_protocol import Client

REQUESTS = {
    "health": "GET /health",
    "execute": "POST /execute",
    "sessions": "GET /sessions",
    "nothing": "GET /no/such/place",
}


def ask(server, line: str, *headers: str) -> tuple[int, str]:
    """The status, and the error if there is one."""
    host, _, port = server.client.url.removeprefix("http://").partition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), 10)) as connection:
        head = "".join(f"{header}\r\n" for header in (*headers, "Connection: close", "Content-Length: 0"))
        connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        error = json.loads(body).get("error", "")
    except ValueError:
        error = ""
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "127.8.9.10:1", "localhost:3", "LocalHost", "[::1]:80"]
)
def test_by_a_loopback_name_it_answers(server, host):
    assert ask(server, "GET /health", f"Host: {host}")[0] == 200


@pytest.mark.parametrize("line", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize(
    "headers",
    [
        ("Host: rebound.example:8080",),
        ("Host: 127.0.0.1.rebound.example",),
        ("Host: 192.0.2.1:8080",),
        ("Host: 0.0.0.0:8080",),
        ("Host: localhost", "Host: rebound.example"),
        ("Host: ",),
        (),
    ],
    ids=str,
)
def test_by_any_other_name_nothing_is_answered(server, line, headers):
    status, error = ask(server, line, *headers)
    assert status == 403
    assert "loopback name" in error
    assert "SANDBOX_TOKEN" in error


@pytest.mark.parametrize("line", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize(
    "header",
    [
        "Origin: https://evil.example",
        "Origin: null",
        "Origin: http://localhost:3000",
        "origin: http://127.0.0.1:8080",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
def test_no_page_is_answered_wherever_it_came_from(server, line, header):
    status, error = ask(server, line, "Host: localhost", header)
    assert status == 403
    assert "web page" in error


def test_a_person_at_the_address_bar_may_look_at_the_health(server):
    assert ask(server, "GET /health", "Host: localhost", "Sec-Fetch-Site: none")[0] == 200


def test_with_a_token_the_token_is_enough(serve):
    with serve("user", token="right", modules="json") as running:
        anybody, wrong = Client(running.client.url), Client(running.client.url, "wrong")
        assert anybody.call("GET", "/health").status == 200
        for client in (anybody, wrong):
            assert client.post("/execute", {"code": "1"}).status == 401
            assert client.call("GET", "/sessions").status == 401
        assert running.client.execute("print(1)")["stdout"] == "1\n"
        there = ("Host: sandbox.example", "Origin: https://console.example")
        assert ask(running, "GET /health", *there)[0] == 200
        assert ask(running, "GET /sessions", *there, "Authorization: Bearer right")[0] == 200
        assert ask(running, "GET /sessions", "Host: localhost")[0] == 401


@pytest.mark.parametrize(
    "host, loopback",
    [
        (b"localhost", True),
        (b"localhost:", False),
        (b"localhost:80", True),
        (b"localhost:8o", False),
        (b"localhost.:80", False),
        (b"x.localhost", False),
        (b"127.0.0.1", True),
        (b"127.255.0.9:65535", True),
        (b"127.1", False),
        (b"2130706433", False),
        (b"::1", False),
        (b"[::1]", True),
        (b"[::1]:1", True),
        (b"[::1", False),
        (b"[::2]:1", False),
        (b"[127.0.0.1]", True),
        (b"user@localhost", False),
        (b"localhost/", False),
        (b"\xff", False),
        (b"", False),
        (b":80", False),
    ],
)
def test_what_a_loopback_name_is(host, loopback):
    assert _calls_loopback(host) is loopback
