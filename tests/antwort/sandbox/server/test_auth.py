"""Authentication: the bearer token; without one loopback clients only, and no web pages."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from cross_origin_cases import ALLOWED_FETCH_SITE, ALLOWED_HOSTS, REJECTED_HOSTS, REJECTED_ORIGINS

from antwort.testing.sandbox_protocol import Client

REQUESTS = {
    "health": "GET /health",
    "execute": "POST /execute",
    "sessions": "GET /sessions",
    "unknown": "GET /no/such/path",
}


def get_status(server, line: str, *headers: str) -> tuple[int, str]:
    """The status, and the error if the body has one."""
    host, _, port = server.client.url.removeprefix("http://").partition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), 10)) as connection:
        head = "".join(f"{header}\r\n" for header in (*headers, "Connection: close", "Content-Length: 0"))
        connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n".encode())
        response = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = response.partition(b"\r\n\r\n")
    try:
        error = json.loads(body).get("error", "")
    except ValueError:
        error = ""
    return int(head.split()[1]), error


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
def test_loopback_hosts_are_allowed(server, host):
    assert get_status(server, "GET /health", f"Host: {host}")[0] == 200


@pytest.mark.parametrize("line", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("headers", REJECTED_HOSTS, ids=str)
def test_other_hosts_are_rejected(server, line, headers):
    status, error = get_status(server, line, *headers)
    assert status == 403
    assert "loopback name" in error
    assert "SANDBOX_TOKEN" in error


@pytest.mark.parametrize("line", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("header", REJECTED_ORIGINS)
def test_web_pages_are_rejected(server, line, header):
    status, error = get_status(server, line, "Host: localhost", header)
    assert status == 403
    assert "web page" in error


def test_the_address_bar_of_a_browser_may_open_the_health_check(server):
    assert get_status(server, "GET /health", "Host: localhost", ALLOWED_FETCH_SITE)[0] == 200


def test_with_a_token_any_host_and_origin_is_allowed(serve):
    with serve("user", token="right", modules="json") as running:
        without_token, wrong = Client(running.client.url), Client(running.client.url, "wrong")
        assert without_token.call("GET", "/health").status == 200
        for client in (without_token, wrong):
            assert client.post("/execute", {"code": "1"}).status == 401
            assert client.call("GET", "/sessions").status == 401
        assert running.client.execute("print(1)")["stdout"] == "1\n"
        other_host = ("Host: sandbox.example", "Origin: https://console.example")
        assert get_status(running, "GET /health", *other_host)[0] == 200
        assert get_status(running, "GET /sessions", *other_host, "Authorization: Bearer right")[0] == 200
        assert get_status(running, "GET /sessions", "Host: localhost")[0] == 401


def test_a_router_that_keeps_authorization_for_itself_sends_the_token_in_another_header(serve):
    with serve("user", token="right", modules="json") as running:
        for headers, status in (
            (("X-Antwort-Authorization: Bearer right",), 200),
            (("Authorization: Bearer of-the-router", "X-Antwort-Authorization: Bearer right"), 200),
            (("Authorization: Bearer right", "X-Antwort-Authorization: Bearer wrong"), 401),
            (("X-Antwort-Authorization: right",), 401),
        ):
            assert get_status(running, "GET /sessions", "Host: localhost", *headers)[0] == status
