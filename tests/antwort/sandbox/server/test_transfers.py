"""Archive transfers: slow clients do not delay others."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

TRANSFERS = 12  # more than the shared threads of a small machine


def connect(server, line: str, rest: bytes = b"") -> socket.socket:
    host, _, port = server.client.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\n".encode() + rest)
    return connection


def check_service(server, session: str) -> None:
    started = time.monotonic()
    assert server.client.call("GET", f"/sessions/{session}/files").status == 200
    assert server.client.run(session, "1 + 1")["result"] == "2"
    assert server.client.execute("print(1)")["stdout"] == "1\n"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("direction", ["up", "down"])
def test_stalled_archive_transfers_do_not_delay_others(server, direction):
    session, other = server.client.session(), server.client.session()
    server.client.run(session, "open('large', 'wb').write(b'x' * 50_000_000)")
    path = f"/sessions/{session}/archive"
    with contextlib.ExitStack() as stalled:
        for _ in range(TRANSFERS):
            if direction == "up":
                connection = connect(server, f"PUT {path}", b"Content-Length: 100000\r\n\r\n" + b"\0" * 10)
            else:
                connection = connect(server, f"GET {path}", b"\r\n")
            stalled.enter_context(connection)
        time.sleep(0.5)
        check_service(server, other)
    time.sleep(1)
    check_service(server, other)
    server.client.destroy(session)
    server.client.destroy(other)


def test_the_server_stops_though_a_client_never_reads(serve):
    with serve("user", modules="json") as running:
        session = running.client.session()
        running.client.run(session, "open('large', 'wb').write(b'x' * 50_000_000)")
        with connect(running, f"GET /sessions/{session}/archive", b"\r\n"):
            time.sleep(0.5)
            running.process.terminate()
            running.process.wait(15)
