"""The real process when things go wrong: callers who go, readers who do not read, a kill, a stop."""

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

FAST = {"server": {"keep_alive": 0.2, "shutdown_timeout": 3}}


@pytest.fixture
def server(tmp_path):
    with run_server(tmp_path / "server", FAST) as running:
        yield running


def ask(server, body: bytes, method: str = "POST", path: str = "/v1/responses") -> socket.socket:
    """A request over a bare socket, so that the test decides how it is read."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.settimeout(20)
    raw.connect((host, int(port)))
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    raw.sendall(head.encode() + body)
    return raw


def test_whoever_goes_while_streaming_ends_the_work(server):
    with server.client() as client:
        with client.responses.create(input="forever", stream=True) as stream:
            response = next(iter(stream)).response
        assert wait_until(lambda: client.responses.retrieve(response.id).status == "cancelled")
    with server.http() as http:
        assert "antwort_responses_running 0.0" in http.get("/metrics").text


def test_whoever_goes_while_waiting_ends_the_work(server):
    with ask(server, b'{"input": "forever"}'):
        wait_until(lambda: "in_progress" in stored_statuses(server).values())
    assert wait_until(lambda: list(stored_statuses(server).values()) == ["cancelled"])


def test_whoever_goes_leaves_background_alone(server):
    with server.client() as client:
        with client.responses.create(input="slowly", background=True, stream=True) as stream:
            response = next(iter(stream)).response
        assert wait_until(lambda: client.responses.retrieve(response.id).status == "completed")


def test_a_silent_stream_is_kept_alive(server):
    with ask(server, b'{"input": "forever", "stream": true}') as raw:
        seen = b""
        while seen.count(b": keep-alive\n\n") < 3:
            seen += raw.recv(65536)
    assert b"id:" not in seen.partition(b"\r\n\r\n")[2].split(b'"')[0]


def test_the_sdk_reads_over_signs_of_life(tmp_path):
    with (
        run_server(tmp_path / "server", {"server": {"keep_alive": 0.05}}) as server,
        server.client() as client,
        client.responses.stream(model="scripted", input="slowly") as stream,
    ):
        for _ in stream:
            pass
        assert stream.get_final_response().output_text.startswith("word0 word1")


def test_a_reader_who_does_not_read_costs_no_memory(server):
    with server.client() as client:
        client.responses.create(input="warm up")
    before = server.memory_bytes()
    body = b'{"store": false, "stream": true, "input": "flood ' + b"x" * 1_000_000 + b'"}'
    readers = [ask(server, body) for _ in range(8)]  # each answer would be sixty megabytes
    try:
        time.sleep(3)
        grown = server.memory_bytes() - before
        with server.client() as client:
            assert client.responses.create(input="hello").status == "completed"
    finally:
        for reader in readers:
            reader.close()
    assert grown < 200_000_000, f"{grown:,} bytes for eight readers who do not read"


def test_a_follower_who_does_not_read_costs_no_memory(server):
    with server.client() as client:
        response = client.responses.create(input="flood " + "x" * 200_000, background=True)  # twelve megabytes
        wait_until(lambda: client.responses.retrieve(response.id).status == "completed", 60)
        path = f"/v1/responses/{response.id}"
        before = server.memory_bytes()
        readers = [ask(server, b"", "GET", path + "?stream=true") for _ in range(12)]
        try:
            time.sleep(3)
            grown = server.memory_bytes() - before
        finally:
            for reader in readers:
                reader.close()
        assert client.responses.create(input="hello").status == "completed"
    assert grown < 200_000_000, f"{grown:,} bytes for twelve followers who do not read"  # of sixty megabytes each


def test_a_reader_who_takes_nothing_for_too_long_is_gone(tmp_path):
    flood = b'{"stream": true, "input": "flood ' + b"x" * 1_000_000 + b'"}'
    with run_server(tmp_path / "server", {"server": {"stall_timeout": 0.5}}) as server, ask(server, flood):
        assert wait_until(lambda: list(stored_statuses(server).values()) == ["cancelled"])


def test_killed_while_streaming_the_response_is_failed_and_the_rest_is_there(tmp_path):
    with run_server(tmp_path / "server") as server:
        with server.client() as client:
            whole = client.responses.create(input="before")
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
            assert client.responses.retrieve(whole.id).output_text == "You said: before"
            assert client.responses.create(input="after", previous_response_id=whole.id).status == "completed"


def test_killed_in_the_background_the_response_is_done_again(tmp_path):
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
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text.startswith("word0 word1")


def test_a_second_server_on_the_same_store_refuses_to_start_and_harms_nothing(tmp_path):
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


def test_told_to_stop_it_lets_go_in_time_and_background_goes_on_later(tmp_path):
    with run_server(tmp_path / "server", FAST) as server:
        with server.client() as client:
            response = client.responses.create(input="slowly", background=True)
            follower = client.responses.retrieve(response.id, stream=True)
            attended = client.responses.create(input="forever", stream=True)
            lost = next(iter(attended)).response
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
            follower.close()
            attended.close()
        server.start()
        with server.client() as client:
            assert wait_until(lambda: client.responses.retrieve(response.id).status == "completed")
            assert client.responses.retrieve(lost.id).status == "failed"
