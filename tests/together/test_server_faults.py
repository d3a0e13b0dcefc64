"""Server process under faults: client disconnects, clients that do not read, SIGKILL and SIGTERM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import openai
import pytest
from fixtures_server import ROOT, run_server, stored_statuses
from waiting import wait_until

CONFIG = {"server": {"keep_alive": 0.2, "shutdown_timeout": 3}}


@pytest.fixture
def server(tmp_path):
    with run_server(tmp_path / "server", CONFIG) as running:
        yield running


def send_request(server, body: bytes, method: str = "POST", path: str = "/v1/responses") -> socket.socket:
    """Send a request over a socket, so that the test controls how the response is read."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.settimeout(20)
    raw.connect((host, int(port)))
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    raw.sendall(head.encode() + body)
    return raw


def test_a_disconnect_while_streaming_cancels_the_response(server):
    with server.client() as client:
        with client.responses.create(input="forever", stream=True) as stream:
            response = next(iter(stream)).response
        assert wait_until(lambda: client.responses.retrieve(response.id).status == "cancelled")
    with server.http() as http:
        assert "antwort_responses_running 0.0" in http.get("/metrics").text


def test_a_disconnect_while_waiting_cancels_the_response(server):
    with send_request(server, b'{"input": "forever"}'):
        wait_until(lambda: "in_progress" in stored_statuses(server).values())
    assert wait_until(lambda: list(stored_statuses(server).values()) == ["cancelled"])


def test_a_disconnect_does_not_cancel_a_background_response(server):
    with server.client() as client:
        with client.responses.create(input="slowly", background=True, stream=True) as stream:
            response = next(iter(stream)).response
        assert wait_until(lambda: client.responses.retrieve(response.id).status == "completed")


def test_an_idle_stream_sends_keep_alive_comments(server):
    with send_request(server, b'{"input": "forever", "stream": true}') as raw:
        received = b""
        while received.count(b": keep-alive\n\n") < 3:
            received += raw.recv(65536)
    assert b"id:" not in received.partition(b"\r\n\r\n")[2].split(b'"')[0]


def test_the_sdk_ignores_keep_alive_comments(tmp_path):
    with (
        run_server(tmp_path / "server", {"server": {"keep_alive": 0.05}}) as server,
        server.client() as client,
        client.responses.stream(model="scripted", input="slowly") as stream,
    ):
        for _ in stream:
            pass
        assert stream.get_final_response().output_text.startswith("word0 word1")


def test_clients_that_do_not_read_a_live_stream_use_bounded_memory(server):
    with server.client() as client:
        client.responses.create(input="warm up")
    before = server.memory_bytes()
    body = b'{"store": false, "stream": true, "input": "flood ' + b"x" * 1_000_000 + b'"}'
    readers = [send_request(server, body) for _ in range(8)]  # each response is 60 MB
    try:
        time.sleep(3)
        growth = server.memory_bytes() - before
        with server.client() as client:
            assert client.responses.create(input="hello").status == "completed"
    finally:
        for reader in readers:
            reader.close()
    assert growth < 200_000_000, f"{growth:,} bytes for eight clients that do not read"


def test_clients_that_do_not_read_a_background_stream_use_bounded_memory(server):
    with server.client() as client:
        response = client.responses.create(input="flood " + "x" * 200_000, background=True)  # 12 MB
        wait_until(lambda: client.responses.retrieve(response.id).status == "completed", 60)
        path = f"/v1/responses/{response.id}"
        before = server.memory_bytes()
        readers = [send_request(server, b"", "GET", path + "?stream=true") for _ in range(12)]
        try:
            time.sleep(3)
            growth = server.memory_bytes() - before
        finally:
            for reader in readers:
                reader.close()
        assert client.responses.create(input="hello").status == "completed"
    assert growth < 200_000_000, f"{growth:,} bytes for twelve clients that do not read"


def test_a_stalled_client_is_disconnected(tmp_path):
    flood = b'{"stream": true, "input": "flood ' + b"x" * 1_000_000 + b'"}'
    with run_server(tmp_path / "server", {"server": {"stall_timeout": 0.5}}) as server, send_request(server, flood):
        assert wait_until(lambda: list(stored_statuses(server).values()) == ["cancelled"])


def test_after_sigkill_a_streamed_response_is_failed_and_others_are_intact(tmp_path):
    with run_server(tmp_path / "server") as server:
        with server.client() as client:
            completed = client.responses.create(input="before")
            stream = client.responses.create(input="forever", stream=True)
            response = next(iter(stream)).response
            server.kill()
            with pytest.raises(openai.APIConnectionError):
                client.models.list()
            stream.close()
        server.start()
        with server.client() as client:
            lost = client.responses.retrieve(response.id)
            assert (lost.status, lost.error.code) == ("failed", "server_error")
            assert client.responses.retrieve(completed.id).output_text == "You said: before"
            assert client.responses.create(input="after", previous_response_id=completed.id).status == "completed"


def test_after_sigkill_a_background_response_is_resumed(tmp_path):
    with run_server(tmp_path / "server") as server:
        with server.client() as client:
            response = client.responses.create(input="slowly", background=True)
            time.sleep(0.6)
        server.kill()
        server.start()
        with server.client() as client:
            assert wait_until(lambda: client.responses.retrieve(response.id).status == "completed")
            with client.responses.retrieve(response.id, stream=True) as stream:
                events = list(stream)
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events].count("response.created") == 1
    assert events[-1].response.output_text.startswith("word0 word1")


def test_a_second_server_on_the_same_store_fails_to_start_without_side_effects(tmp_path):
    with run_server(tmp_path / "server") as server, server.client() as client:
        stream = client.responses.create(input="slowly", stream=True)
        response = next(iter(stream)).response
        command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        second = subprocess.run(
            command, cwd=server.directory, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

        assert second.returncode == 1
        assert "antwort.db is in use by another antwort" in second.stderr
        assert f"process {server.process.pid}" in second.stderr
        assert [event.type for event in stream][-1] == "response.completed"
        assert client.responses.retrieve(response.id).status == "completed"


def test_sigterm_stops_in_time_and_background_responses_resume(tmp_path):
    with run_server(tmp_path / "server", CONFIG) as server:
        with server.client() as client:
            response = client.responses.create(input="slowly", background=True)
            resumed_stream = client.responses.retrieve(response.id, stream=True)
            foreground = client.responses.create(input="forever", stream=True)
            lost = next(iter(foreground)).response
            started_at = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started_at < 8
            resumed_stream.close()
            foreground.close()
        server.start()
        with server.client() as client:
            assert wait_until(lambda: client.responses.retrieve(response.id).status == "completed")
            assert client.responses.retrieve(lost.id).status == "failed"
