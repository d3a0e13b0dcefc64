"""The server as a whole: capacity, clients that go away, a server that is killed."""

from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from antwort.sandbox.errors import CannotStart, WeakHost
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.host.process import descendants
from antwort.sandbox.server import SandboxSettings, make_app


def test_sessions_past_the_limits_are_429_and_a_destroyed_one_makes_room(serve):
    with serve("user", max_sessions="2", max_sessions_per_tenant="1", queue_seconds="0.2", modules="json") as running:
        client = running.client
        first = client.session(tenant="a")
        assert client.post("/sessions", {"tenant": "a"}).status == 429
        client.session(tenant="b")
        answer = client.post("/sessions", {"tenant": "c"})
        assert (answer.status, int(answer.headers["retry-after"]) >= 1) == (429, True)
        client.destroy(first)
        client.session(tenant="c")


def test_an_idle_session_expires_and_says_so(serve):
    with serve("user", modules="json") as running:
        session = running.client.session(expires_after_seconds=1)
        time.sleep(3.5)
        answer = running.client.post(f"/sessions/{session}/execute", {"code": "1"})
        assert (answer.status, answer.json["reason"]) == (410, "expired")


def test_tiers_are_enforced_and_refused_where_the_host_is_too_small(server):
    session = server.client.session(memory="4g")
    assert server.client.call("GET", f"/sessions/{session}").json["memory_bytes"] == 4 << 30
    server.client.destroy(session)
    if hosts.probe().memory_bytes < 64 << 30:
        assert server.client.post("/sessions", {"memory": "64g"}).status == 400
    assert server.client.post("/sessions", {"memory": "2g"}).status == 400


@pytest.mark.parametrize("extra", [b"", b"Accept: text/event-stream\r\n"], ids=["json", "events"])
def test_a_client_that_goes_away_stops_its_code(server, extra):
    session = server.client.session()
    body = json.dumps({"code": "import time\nwhile True: time.sleep(0.1)", "timeout_seconds": 60}).encode()
    host, _, port = server.client.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = (
            f"POST /sessions/{session}/execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode()
        )
        connection.sendall(head + extra + b"\r\n" + body)
        time.sleep(0.5)
    started = time.monotonic()
    assert server.client.run(session, "'free'")["result"] == "'free'"
    assert time.monotonic() - started < 3
    server.client.destroy(session)


def test_a_client_that_goes_away_leaves_no_session(serve):
    with serve("user", modules="json") as running:
        host, _, port = running.client.url.removeprefix("http://").partition(":")
        for _ in range(10):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(
                    b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n" + b'{"tenant":"t"}'
                )
        time.sleep(2)
        assert running.client.call("GET", "/health").json["sessions"] == 0


def test_calls_on_one_session_run_in_order(server):
    session = server.client.session()
    server.client.run(session, "import time\nseen = []")

    def append(number: int) -> None:
        server.client.run(session, f"seen.append({number}); time.sleep(0.02); seen.append({number})")

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(append, range(5)))
    seen = json.loads(server.client.run(session, "seen")["result"])
    assert seen[::2] == seen[1::2]
    server.client.destroy(session)


def test_a_killed_server_takes_everything_with_it(serve):
    with serve("user", modules="json") as running:
        running.client.session()
        family = descendants(running.process.pid)
        assert len(family) > 2
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        deadline = time.monotonic() + 5
        while (alive := [pid for pid in family if _lives(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive == []


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def test_a_weak_host_is_refused_unless_what_is_missing_is_named():
    weak = hosts.Host(layers=frozenset({"seccomp"}), landlock_abi=0, cgroups=None, root=False, memory_bytes=1 << 40)
    with pytest.raises(WeakHost, match="--allow-weaker-isolation=landlock,namespaces"):
        make_app(SandboxSettings(), weak)
    with pytest.raises(WeakHost, match="lacks: namespaces"):
        make_app(SandboxSettings(allow_weaker_isolation="landlock"), weak)
    make_app(SandboxSettings(allow_weaker_isolation="landlock,namespaces"), weak)


def test_without_namespaces_root_is_refused_whatever_is_waived():
    weak = hosts.Host(layers=frozenset(), landlock_abi=0, cgroups=None, root=True, memory_bytes=1 << 40)
    with pytest.raises(CannotStart, match="ordinary user"):
        make_app(SandboxSettings(allow_weaker_isolation="landlock,namespaces,seccomp"), weak)
