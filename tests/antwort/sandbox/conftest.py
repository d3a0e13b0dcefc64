"""A real sandbox server, once as an ordinary user and once as root, and what must be the same afterwards as before."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antwort.sandbox.conformance import Client
from antwort.sandbox.watchdog import descendants

ORDINARY_USER = 54321
ROOT = Path(__file__).parents[3]
IDENTITIES = ["user", "root"] if os.geteuid() == 0 else ["user"]


@dataclass
class Running:
    """A server process that can be talked to."""

    client: Client
    process: subprocess.Popen[bytes]
    state: Path
    identity: str
    secret: str

    def traces(self) -> dict[str, Any]:
        """Everything that a container could leave behind."""
        pid = self.process.pid
        return {
            "processes": len(descendants(pid)),
            "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())) if os.access(f"/proc/{pid}/fd", os.R_OK) else 0,
            "groups": len(list(Path("/sys/fs/cgroup").glob(f"*/antwort-{pid}-*"))),
            "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
            "files": sorted(p.name for p in self.state.rglob("*") if not p.name.endswith(".pyc"))[:100],
        }


@contextlib.contextmanager
def start(identity: str, **settings: str) -> Iterator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as state:
        command = [sys.executable, "-m", "antwort", "sandbox", "--port", str(port)]
        if identity == "user" and os.geteuid() == 0:
            os.chown(state, ORDINARY_USER, ORDINARY_USER)
            shown = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
            script = Path(__file__).with_name("as_user.py")
            command = [sys.executable, str(script), str(ORDINARY_USER), *map(str, shown), "--", *command]
        secret = "the-servers-own-secret-4711"
        environment = {"PATH": os.environ["PATH"], "SANDBOX_STATE": state, "SECRET_OF_THE_SERVER": secret}
        environment |= {f"SANDBOX_{name.upper()}": value for name, value in settings.items()}
        log = Path(state, "log").open("wb")  # noqa: SIM115 - closed below
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
        try:
            client = Client(f"http://127.0.0.1:{port}", settings.get("token"))
            _wait(client, process, Path(state, "log"))
            yield Running(client, process, Path(state), identity, secret)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


def _wait(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            if client.call("GET", "/health").status == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"the server did not start: {log.read_text()}")


@pytest.fixture(scope="session", params=IDENTITIES)
def server(request) -> Iterator[Running]:
    with start(request.param) as running:
        running.client.destroy(running.client.session())  # the zygote is assigned and a spare forked
        _at_rest(running)
        yield running


def _at_rest(server: Running) -> None:
    """Wait until nothing has changed for a while: the reserve is being filled in the background."""
    before, since, deadline = server.traces(), time.monotonic(), time.monotonic() + 30
    while time.monotonic() - since < 1.5 and time.monotonic() < deadline:
        time.sleep(0.1)
        if (now := server.traces()) != before:
            before, since = now, time.monotonic()


@pytest.fixture
def serve():
    """Start a server of one's own: `with serve("user", setting="value") as running`."""
    return start


@pytest.fixture
def identities() -> list[str]:
    return IDENTITIES


@dataclass
class Arena:
    """A container to attack from, and a sibling that must not notice."""

    server: Running
    client: Client
    session: str
    sibling: str
    answers: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def run(self, code: str, **fields):
        return self.client.run(self.session, textwrap.dedent(code).strip(), **fields)

    def run_beside(self, code: str):
        """Run it in the sibling."""
        return self.client.run(self.sibling, textwrap.dedent(code).strip())

    def value(self, code: str):
        """What the last expression is, or the whole answer if there is none."""
        seen = self.run(code)
        return seen["result"] if seen["result"] is not None else seen


@pytest.fixture
def arena(server: Running, request) -> Iterator[Arena]:
    limits = getattr(request, "param", {})
    before = server.traces()
    client = server.client
    small = {"memory_bytes": 256 << 20, "disk_bytes": 32 << 20, "disk_files": 500, "processes": 32}
    arena = Arena(server, client, client.session(**{**small, **limits}), client.session())
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            started = time.monotonic()
            try:
                if client.run(arena.sibling, "6 * 7")["result"] != "42":
                    arena.lost.append("a wrong answer")
            except (AssertionError, OSError) as error:
                arena.lost.append(str(error))
            arena.answers.append(time.monotonic() - started)
            stop.wait(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield arena
    finally:
        stop.set()
        asking.join()
        client.destroy(arena.session)
        client.destroy(arena.sibling)
    assert arena.lost == []
    assert arena.answers
    assert max(arena.answers) < 5
    _same(server, before)


def _same(server: Running, before: dict[str, Any]) -> None:
    """Processes, descriptors, groups, mounts and files are as they were; the spare may still be on its way."""
    deadline = time.monotonic() + 5
    while (after := server.traces()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    # Less is no trace: a connection may have been counted that has closed since.
    counts = {name: now for name, now in after.items() if isinstance(now, int)}
    assert {name: min(now, before[name]) for name, now in counts.items()} == counts, before
    assert after["files"] == before["files"]
