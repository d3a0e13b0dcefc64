"""The whole sandbox server: capacity, expiry, disconnects, SIGKILL, weak hosts, dependencies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from antwort.sandbox.errors import CannotStart, WeakHost
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.host.process import descendants
from antwort.sandbox.server import SandboxSettings, make_app


def test_sessions_above_the_limits_get_429_until_one_is_destroyed(serve):
    with serve("user", max_sessions="2", max_sessions_per_tenant="1", queue_seconds="0.2", modules="json") as running:
        client = running.client
        first = client.session(tenant="a")
        assert client.post("/sessions", {"tenant": "a"}).status == 429
        client.session(tenant="b")
        response = client.post("/sessions", {"tenant": "c"})
        assert (response.status, int(response.headers["retry-after"]) >= 1) == (429, True)
        client.destroy(first)
        client.session(tenant="c")


def test_an_idle_session_expires(serve):
    with serve("user", modules="json") as running:
        session = running.client.session(expires_after_seconds=1)
        time.sleep(3.5)
        response = running.client.post(f"/sessions/{session}/execute", {"code": "1"})
        assert (response.status, response.json["reason"]) == (410, "expired")


def test_memory_tiers_above_the_memory_of_the_host_are_rejected(server):
    session = server.client.session(memory="4g")
    assert server.client.call("GET", f"/sessions/{session}").json["memory_bytes"] == 4 << 30
    server.client.destroy(session)
    if hosts.probe().memory_bytes < 64 << 30:
        assert server.client.post("/sessions", {"memory": "64g"}).status == 400
    assert server.client.post("/sessions", {"memory": "2g"}).status == 400


@pytest.mark.parametrize("extra", [b"", b"Accept: text/event-stream\r\n"], ids=["json", "events"])
def test_a_disconnect_stops_the_code(server, extra):
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


def test_a_disconnect_during_creation_leaves_no_session(serve):
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


def test_all_processes_of_a_killed_server_end(serve):
    with serve("user", modules="json") as running:
        running.client.session()
        processes = descendants(running.process.pid)
        assert len(processes) > 2
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        deadline = time.monotonic() + 5
        while (alive := [pid for pid in processes if _is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive == []


def _is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def test_a_weak_host_is_rejected_unless_the_missing_protections_are_waived():
    weak = hosts.Host(layers=frozenset({"seccomp"}), landlock_abi=0, cgroups=None, root=False, memory_bytes=1 << 40)
    with pytest.raises(WeakHost, match="--allow-weaker-isolation=landlock,namespaces"):
        make_app(SandboxSettings(), weak)
    with pytest.raises(WeakHost, match="lacks: namespaces"):
        make_app(SandboxSettings(allow_weaker_isolation="landlock"), weak)
    make_app(SandboxSettings(allow_weaker_isolation="landlock,namespaces"), weak)


def test_root_without_namespaces_is_always_rejected():
    weak = hosts.Host(layers=frozenset(), landlock_abi=0, cgroups=None, root=True, memory_bytes=1 << 40)
    with pytest.raises(CannotStart, match="ordinary user"):
        make_app(SandboxSettings(allow_weaker_isolation="landlock,namespaces,seccomp"), weak)


IMPORT_WITHOUT_SERVER_PACKAGES = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "cryptography", "httpx2", "msgspec", "opentelemetry", "prometheus_client", "python_multipart", "structlog",
            "yaml",
        }:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Blocked())
import antwort.sandbox.cli, antwort.sandbox.server.loop, antwort.sandbox.server.app
print(*(name for name in sys.modules if name.startswith("antwort.") and name.split(".")[1] not in {"net", "sandbox"}))
"""


def test_the_sandbox_server_imports_only_net_and_needs_no_package_of_the_server_extra():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "src")}
    command = [sys.executable, "-c", IMPORT_WITHOUT_SERVER_PACKAGES]
    imported = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    assert imported.split() == []
