from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from antwort.config import ServerSettings
from antwort.http.protocol import connection_limiter
from antwort.net.connections import OVERLOADED

GET = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
SETTINGS = ServerSettings(head_timeout=1.0, max_head=4000, max_connections=3)


async def app(scope, receive, send):
    """Responds with the path, after 2 s for /slow."""
    if scope["path"] == "/slow":
        await asyncio.sleep(2.0)
    body = b"overloaded" if OVERLOADED in scope else scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            http=connection_limiter(SETTINGS).protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=60,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def connected(address):
    with socket.create_connection(address, timeout=10) as raw:
        yield raw


def read_to_end(raw) -> bytes:
    """All bytes until the peer closes the connection."""
    seen = b""
    while chunk := raw.recv(65536):
        seen += chunk
    return seen


def read_response(raw) -> bytes:
    """One response of the application."""
    seen = b""
    while not seen.partition(b"\r\n\r\n")[2]:
        chunk = raw.recv(65536)
        assert chunk
        seen += chunk
    return seen


def parse_error(response: bytes) -> tuple[int, dict]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: req_" in head
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_head_that_arrives_slowly_times_out(address):
    with connected(address) as raw:
        began = time.monotonic()
        raw.sendall(b"GET / HTTP/1.1\r\n")
        try:
            while time.monotonic() - began < 30:
                raw.sendall(b"x: y\r\n")
                time.sleep(0.05)
        except OSError:
            pass  # disconnected, as expected
        else:
            pytest.fail("the connection was not closed")


def test_a_partial_head_gets_408(address):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        status, error = parse_error(read_to_end(raw))

    assert (status, error["code"]) == (408, "timeout")


def test_a_connection_without_data_is_closed_without_a_response(address):
    with connected(address) as raw:
        assert read_to_end(raw) == b""


def test_the_head_of_a_second_request_times_out_too(address):
    for rest in (b"GET / HT", b"\r\n"):
        with connected(address) as raw:
            raw.sendall(GET)
            assert read_response(raw).endswith(b"/hello")
            raw.sendall(rest)
            assert parse_error(read_to_end(raw))[0] == 408


def test_a_partial_pipelined_head_does_not_cut_the_response_before(address):
    with connected(address) as raw:
        raw.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n")
        assert read_response(raw).endswith(b"/slow")
        assert parse_error(read_to_end(raw))[0] == 408


def test_the_head_timeout_does_not_apply_between_requests(address):
    with connected(address) as raw:
        for _ in range(2):
            raw.sendall(GET)
            assert read_response(raw).endswith(b"/hello")
            time.sleep(SETTINGS.head_timeout * 1.5)


@pytest.mark.parametrize("line", [b"x-long: " + b"a" * 300, b"a" * 300])
def test_an_endless_head_is_rejected(address, line):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(1000):
                raw.sendall(line + (b"\r\n" if b":" in line else b""))
                time.sleep(0.001)
        except OSError:
            return
        pytest.fail("the connection was not closed")


def test_a_head_above_the_limit_gets_431(address):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * SETTINGS.max_head)
        status, error = parse_error(read_to_end(raw))

    assert (status, error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02", b"HELLO\r\n\r\n", b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_invalid_http_gets_an_error_envelope(address, garbage):
    with connected(address) as raw:
        raw.sendall(garbage)
        status, error = parse_error(read_to_end(raw))

    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_http")


def test_the_head_limit_does_not_apply_to_bodies(address):
    body = b"x" * 50_000
    with connected(address) as raw:
        raw.sendall(b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + body)
        assert read_response(raw).endswith(b"/body")


def test_a_request_above_the_connection_limit_is_marked_and_its_connection_closed(address):
    active = [socket.create_connection(address, timeout=10) for _ in range(SETTINGS.max_connections)]
    try:
        for raw in active:
            raw.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(0.5)
        with connected(address) as raw:
            raw.sendall(GET)
            assert read_to_end(raw).endswith(b"overloaded")
        for raw in active:
            assert read_response(raw).endswith(b"/slow")
    finally:
        for raw in active:
            raw.close()


def test_idle_connections_do_not_keep_out_new_ones(address):
    idle = [socket.create_connection(address, timeout=10) for _ in range(SETTINGS.max_connections)]
    try:
        for raw in idle:
            raw.sendall(GET)
            assert read_response(raw).endswith(b"/hello")
        with connected(address) as raw:
            raw.sendall(GET)
            assert read_response(raw).endswith(b"/hello")
        assert idle[0].recv(1) == b""
    finally:
        for raw in idle:
            raw.close()
