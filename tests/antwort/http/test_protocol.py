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
from antwort.http.protocol import CROWDED, protocol_for

GET = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
SETTINGS = ServerSettings(head_timeout=1.0, max_head=4000, max_connections=3)


async def app(scope, receive, send):
    """Says what it was asked for, slowly where that is wanted."""
    if scope["path"] == "/slow":
        await asyncio.sleep(2.0)
    body = b"crowded" if CROWDED in scope else scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, http=protocol_for(SETTINGS), ws="none", lifespan="off", log_config=None, timeout_keep_alive=60
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


def everything(raw) -> bytes:
    """Until the other side has closed."""
    seen = b""
    while chunk := raw.recv(65536):
        seen += chunk
    return seen


def answer(raw) -> bytes:
    """One answer of the application's."""
    seen = b""
    while not seen.partition(b"\r\n\r\n")[2]:
        chunk = raw.recv(65536)
        assert chunk
        seen += chunk
    return seen


def error_of(said: bytes) -> tuple[int, dict]:
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: req_" in head
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_head_that_comes_slowly_is_not_waited_for(address):
    with connected(address) as raw:
        began = time.monotonic()
        raw.sendall(b"GET / HTTP/1.1\r\n")
        try:
            while time.monotonic() - began < 30:
                raw.sendall(b"x: y\r\n")
                time.sleep(0.05)
        except OSError:
            pass  # it has hung up, which is what is wanted
        else:
            pytest.fail("it would have listened for ever")


def test_half_a_head_is_told_that_it_was_too_slow(address):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        status, error = error_of(everything(raw))

    assert (status, error["code"]) == (408, "timeout")


def test_who_says_nothing_is_told_nothing(address):
    with connected(address) as raw:
        assert everything(raw) == b""


def test_the_second_request_has_no_more_time_than_the_first(address):
    for rest in (b"GET / HT", b"\r\n"):
        with connected(address) as raw:
            raw.sendall(GET)
            assert answer(raw).endswith(b"/hello")
            raw.sendall(rest)
            assert error_of(everything(raw))[0] == 408


def test_an_answer_under_way_is_not_cut_short_by_the_next_head(address):
    with connected(address) as raw:
        raw.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n")
        assert answer(raw).endswith(b"/slow")
        assert error_of(everything(raw))[0] == 408


def test_a_connection_that_is_kept_is_not_cut_off_between_requests(address):
    with connected(address) as raw:
        for _ in range(2):
            raw.sendall(GET)
            assert answer(raw).endswith(b"/hello")
            time.sleep(SETTINGS.head_timeout * 1.5)


@pytest.mark.parametrize("line", [b"x-long: " + b"a" * 300, b"a" * 300])
def test_a_head_without_end_is_refused(address, line):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(1000):
                raw.sendall(line + (b"\r\n" if b":" in line else b""))
                time.sleep(0.001)
        except OSError:
            return
        pytest.fail("it would have listened for ever")


def test_a_head_that_is_too_large_is_told_so(address):
    with connected(address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * SETTINGS.max_head)
        status, error = error_of(everything(raw))

    assert (status, error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02", b"HELLO\r\n\r\n", b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_what_is_no_request_gets_an_envelope(address, garbage):
    with connected(address) as raw:
        raw.sendall(garbage)
        status, error = error_of(everything(raw))

    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_http")


def test_a_large_body_is_no_large_head(address):
    body = b"x" * 50_000
    with connected(address) as raw:
        raw.sendall(b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + body)
        assert answer(raw).endswith(b"/body")


def test_one_connection_too_many_is_known_to_the_application_and_closed(address):
    held = [socket.create_connection(address, timeout=10) for _ in range(SETTINGS.max_connections)]
    try:
        for raw in held:
            raw.sendall(GET)
            assert answer(raw).endswith(b"/hello")
        with connected(address) as raw:
            raw.sendall(GET)
            assert everything(raw).endswith(b"crowded")
    finally:
        for raw in held:
            raw.close()
