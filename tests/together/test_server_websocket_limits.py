"""Authentication, limits, origin checks and the end of WebSockets, through the server process."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
from cross_origin_cases import ALLOWED_HOSTS, REJECTED_HOSTS, REJECTED_ORIGINS
from fixtures_server import create_key, run_server, stored_statuses
from fixtures_websocket import error_of, open_websocket, text_of
from waiting import wait_until
from websockets.exceptions import InvalidStatus

from antwort.auth import KeyFile

ORIGIN = "https://app.example"
KEYS = {
    "owner": ("--tenant", "a"),
    "second": ("--tenant", "a"),
    "other": ("--tenant", "b"),
    "revoked": ("--tenant", "c"),
    "few": ("--tenant", "d", "--requests-per-minute", "2"),
    "one": ("--tenant", "e", "--concurrent-responses", "1"),
}
MAX_PER_TENANT = 3


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keyed")
    keys = {name: create_key(directory, name, *options) for name, options in KEYS.items()}
    server = {"cors_origins": [ORIGIN], "websocket": {"max_per_tenant": MAX_PER_TENANT}}
    with run_server(directory, {"auth": {"keys_file": "keys.json"}, "server": server}) as running:
        running.keys = keys
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def refusal(server, key="none", **options) -> tuple[int, str]:
    """Status and code of the response to a handshake that the server refuses."""
    with pytest.raises(InvalidStatus) as refused, open_websocket(server, key, **options):
        pass
    response = refused.value.response
    assert response.headers["x-request-id"].startswith("req_")
    return response.status_code, json.loads(response.body)["error"]["code"]


def handshake(server, *lines: str) -> int:
    """The status of the response to a handshake with exactly these headers."""
    address = urlsplit(server.url)
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    head = ["GET /v1/responses HTTP/1.1", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *lines]
    with closing(socket.create_connection((address.hostname, address.port), timeout=30)) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        return int(connection.makefile("rb").readline().split()[1])


# ── authentication ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["none", "sk-antwort-0000000000000000-" + "x" * 43, ""], ids=str)
def test_a_connection_without_a_valid_key_is_refused(keyed, key):
    assert refusal(keyed, key) == (401, "invalid_api_key")


def test_a_key_that_is_revoked_ends_its_requests_and_not_those_of_others(keyed):
    with open_websocket(keyed, keyed.keys["revoked"]) as websocket:
        previous = websocket.respond()["response"]["id"]
        KeyFile(keyed.directory / "keys.json").revoke(keyed.keys["revoked"].split("-")[2])
        wait_until(lambda: websocket.respond(generate=False)["type"] == "error", interval=0.2)
        assert error_of(websocket.respond(previous_response_id=previous)) == (401, "invalid_api_key", None)
    assert refusal(keyed, keyed.keys["revoked"]) == (401, "invalid_api_key")
    with open_websocket(keyed, keyed.keys["owner"]) as websocket:
        assert websocket.respond()["type"] == "response.completed"


def test_stored_responses_belong_to_their_tenant(keyed):
    with open_websocket(keyed, keyed.keys["owner"]) as websocket:
        stored = websocket.respond(store=True)["response"]["id"]
    for key, kind in {"second": "response.completed", "other": "error"}.items():
        with open_websocket(keyed, keyed.keys[key]) as websocket:
            assert websocket.respond(previous_response_id=stored)["type"] == kind
    with keyed.http(headers={"authorization": f"Bearer {keyed.keys['other']}"}) as http:
        assert http.get(f"/v1/responses/{stored}").status_code == 404


# ── web pages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lines", [*REJECTED_HOSTS, *(("Host: localhost", line) for line in REJECTED_ORIGINS)], ids=str)
def test_without_keys_web_pages_and_other_names_are_refused(server, lines):
    # Without a Host header the handshake is not valid HTTP.
    assert handshake(server, *lines) in (400, 403)


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
def test_without_keys_loopback_names_are_allowed(server, host):
    assert handshake(server, f"Host: {host}") == 101


def test_with_keys_only_pages_of_configured_origins_are_allowed(keyed):
    key = keyed.keys["owner"]
    assert refusal(keyed, key, origin="https://evil.example") == (403, "forbidden")
    assert refusal(keyed, key, origin="null") == (403, "forbidden")
    assert refusal(keyed, origin=ORIGIN) == (401, "invalid_api_key")
    with open_websocket(keyed, key, origin=ORIGIN) as websocket:
        answer = websocket.connection.response
        assert answer is not None
        assert answer.headers["openai-organization"] == "a"
        assert websocket.respond()["type"] == "response.completed"


# ── rate limits and numbers ──────────────────────────────────────────────────────────────────────────────────────────


def test_requests_above_the_rate_limit_are_errors_that_keep_the_chain(keyed):
    with open_websocket(keyed, keyed.keys["few"]) as websocket:  # counts as the first request
        first = websocket.respond()["response"]["id"]
        refused = websocket.respond(previous_response_id=first)
        assert error_of(refused) == (429, "rate_limit_exceeded", None)
        assert int(refused["headers"]["retry-after"]) >= 1
        assert error_of(websocket.respond(previous_response_id=first)) == (429, "rate_limit_exceeded", None)
    assert refusal(keyed, keyed.keys["few"]) == (429, "rate_limit_exceeded")


def test_responses_above_the_concurrency_limit_are_errors(keyed):
    with open_websocket(keyed, keyed.keys["one"]) as websocket:
        for _ in range(3):  # a response is not counted any more when its last event is sent
            assert websocket.respond()["type"] == "response.completed"
        websocket.create("forever", stream_id="a")
        while websocket.receive()["type"] != "response.output_text.delta":
            pass
        assert error_of(websocket.respond(stream_id="b")) == (429, "rate_limit_exceeded", None)


def test_a_tenant_has_a_limited_number_of_connections(keyed):
    with ExitStack() as stack:
        for key in ["owner", "second", "owner"][:MAX_PER_TENANT]:
            stack.enter_context(open_websocket(keyed, keyed.keys[key]))
        assert refusal(keyed, keyed.keys["second"]) == (429, "rate_limit_exceeded")
        with open_websocket(keyed, keyed.keys["other"]) as websocket:
            assert websocket.respond()["type"] == "response.completed"
        with keyed.http(headers={"authorization": f"Bearer {keyed.keys['other']}"}) as http:
            assert "antwort_websockets 3.0" in wait_until(
                lambda: (text := http.get("/metrics").text) and "antwort_websockets 3.0" in text and text
            )
    wait_until(lambda: can_open(keyed, keyed.keys["second"]))


def can_open(server, key) -> bool:
    try:
        with open_websocket(server, key):
            return True
    except InvalidStatus:
        return False


def test_connections_count_in_the_limit_of_the_server(tmp_path):
    with run_server(tmp_path, {"server": {"max_connections": 2}}) as small, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(open_websocket(small))
        assert refusal(small) == (503, "unavailable")
        with small.http() as http:
            assert http.get("/v1/models").status_code == 503
            assert http.get("/healthz").status_code == 200
        stack.close()
        with small.http() as http:
            wait_until(lambda: http.get("/v1/models").status_code == 200)


# ── the end of a connection ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_old_connection_is_closed_when_its_response_has_ended(tmp_path):
    with run_server(tmp_path, {"server": {"websocket": {"max_age": 1}}}) as young:
        with open_websocket(young) as websocket:
            websocket.create("slowly")  # two seconds
            assert text_of(websocket.events()[-1]).startswith("word0 ")
            assert error_of(websocket.receive()) == (400, "websocket_connection_limit_reached", None)
            assert websocket.closed()[0] == 1001
        with open_websocket(young) as websocket:
            websocket.create("forever", stream_id="a")
            wait_until(lambda: websocket.respond(stream_id="b", generate=False)["type"] == "error", interval=0.2)
            refused = websocket.respond(stream_id="b")
            assert error_of(refused) == (400, "websocket_connection_limit_reached", None)
            assert refused["stream_id"] == "b"


def test_an_idle_connection_is_closed(tmp_path):
    config = {"server": {"websocket": {"idle_timeout": 0.3}}}
    with run_server(tmp_path, config) as hasty, open_websocket(hasty) as websocket:
        websocket.create("slowly")
        assert text_of(websocket.events()[-1]).startswith("word0 ")
        assert websocket.closed() == (1001, "the connection was idle")


def test_a_message_that_does_not_arrive_in_time_closes_the_connection(tmp_path):
    with run_server(tmp_path, {"server": {"body_timeout": 0.5}}) as hasty, open_websocket(hasty) as websocket:
        websocket.connection.socket.sendall(bytes([0x81, 0xFE]) + (1000).to_bytes(2, "big") + b"mask" + b"part")
        assert websocket.closed()[0] == 1008


def test_a_client_that_reads_nothing_is_disconnected_and_its_response_cancelled(tmp_path):
    with run_server(tmp_path, {"server": {"stall_timeout": 1}}) as hasty:
        options = {"max_queue": 1, "ping_interval": None}
        with open_websocket(hasty, **options) as websocket:
            websocket.create("flood " + "x" * 1_000_000, store=True)
            identifier = websocket.receive()["response"]["id"]
            wait_until(lambda: stored_statuses(hasty)[identifier] == "cancelled")
            with hasty.http() as http:
                wait_until(lambda: "antwort_websockets 0.0" in http.get("/metrics").text)
                assert http.get("/healthz").status_code == 200


def test_a_flood_of_pings_and_small_frames_does_not_block_others(server):
    with open_websocket(server) as websocket, server.http() as http:
        ping = bytes([0x89, 0x80]) + os.urandom(4)
        empty = bytes([0x00, 0x80]) + os.urandom(4)
        websocket.connection.socket.sendall(ping * 2000)
        websocket.connection.socket.sendall(bytes([0x01, 0x80]) + os.urandom(4) + empty * 40_000)
        assert http.get("/healthz").status_code == 200
        websocket.connection.socket.sendall(bytes([0x80, 0x80]) + os.urandom(4))
        assert error_of(websocket.receive()) == (400, "invalid_json", None)
        assert websocket.respond()["type"] == "response.completed"


def test_a_violation_of_the_protocol_closes_the_connection(server):
    with open_websocket(server) as websocket:
        websocket.connection.socket.sendall(bytes([0x83, 0x80]) + os.urandom(4))  # an unknown opcode
        assert websocket.closed()[0] == 1002


def test_a_handshake_with_a_header_that_the_parser_refuses_is_answered(server):
    assert handshake(server, "Host: localhost", "X-Long: " + "x" * 20_000) == 400


def test_a_server_that_stops_lets_responses_end_and_closes_the_connections(tmp_path):
    with run_server(tmp_path) as stopping:
        with open_websocket(stopping) as busy, open_websocket(stopping) as idle:
            busy.create("slowly", store=True)
            identifier = busy.receive()["response"]["id"]
            busy.create("waits")
            stopping.process.terminate()
            assert idle.closed() == (1012, "the server is stopping")
            assert text_of(busy.events()[-1]).startswith("word0 ")
            assert error_of(busy.receive()) == (503, "unavailable", None)
            assert busy.closed() == (1012, "the server is stopping")
        assert stopping.process.wait(30) == 0
        stopping.stop()  # closes its files
        assert stored_statuses(stopping) == {identifier: "completed"}


def test_a_response_that_does_not_end_in_time_is_cut_when_the_server_stops(tmp_path):
    with run_server(tmp_path, {"server": {"shutdown_timeout": 1}}) as stopping:
        with open_websocket(stopping) as websocket:
            websocket.create("forever", store=True)
            identifier = websocket.receive()["response"]["id"]
            stopping.process.terminate()
            assert websocket.closed()[0] == 1012
        assert stopping.process.wait(30) == 0
        stopping.stop()  # closes its files
        assert stored_statuses(stopping) == {identifier: "in_progress"}  # the next start ends it
        stopping.start()
        with stopping.http() as http:
            assert http.get(f"/v1/responses/{identifier}").json()["status"] == "failed"


def test_each_request_has_a_line_in_the_log_and_a_metric(server):
    with open_websocket(server) as websocket:
        websocket.respond(metadata={"a": "b"})
        websocket.respond(temperature=9)
    lines = wait_until(lambda: lines_of_last_connection(server))
    assert [(line["route"], line["status"]) for line in lines] == [
        ("websocket.create", 200),
        ("websocket.create", 400),
        ("handshake.connect", 101),
    ]
    assert len({line["request_id"] for line in lines}) == 3
    assert "traceback" not in server.read_log().lower()
    with server.http() as http:
        metrics = http.get("/metrics").text
    assert 'antwort_http_requests_total{method="WEBSOCKET",route="websocket.create",status="200"}' in metrics


def lines_of_last_connection(server):
    """The lines of the access log of the connection that was closed last; None until it has a line."""
    lines = [json.loads(line) for line in server.read_log().splitlines() if '"event": "request"' in line]
    last = lines[-1]
    if last["route"] != "handshake.connect":
        return None
    mine = [line for line in lines if line.get("connection_id") == last["connection_id"]]
    return mine if len(mine) == 3 else None
