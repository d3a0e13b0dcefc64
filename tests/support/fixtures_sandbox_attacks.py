"""Fixtures: a real sandbox server, started as an ordinary user and as root, and checks for leaked resources."""

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fake_package_index
import pytest

from antwort.sandbox.host import cgroups
from antwort.sandbox.host.process import descendants
from antwort.sandbox.pool import pool
from antwort.testing import sandbox_protocol as conformance

ORDINARY_USER = 54321
WARM_SECONDS = pool.IDLE_TIMEOUT_SECONDS + 15
"""How long a zygote may stay after its tenant's last request: the idle timeout and a sweep."""
MAX_REPLY_SECONDS = 15
"""The maximum time of `6 * 7` in a sibling; generous, for a busy machine."""
ROOT = Path(__file__).parents[2]
IDENTITIES = ["user", "root"] if os.geteuid() == 0 else ["user"]


@dataclass(frozen=True)
class Client(conformance.Client):
    """Records the tenants and the time of their last request."""

    tenants: dict[str, float] = field(default_factory=dict)

    def post(self, path: str, value):
        response = super().post(path, value)
        if path in {"/execute", "/sessions"} and response.status < 400:
            self.tenants[value.get("tenant", "")] = time.monotonic()
        return response


@dataclass
class RunningServer:
    """A server process and a client of it."""

    client: Client
    process: subprocess.Popen[bytes]
    state: Path
    identity: str
    secret: str
    baseline: Counter[str] = field(default_factory=Counter)
    """Resources with one idle tenant: its zygote with a preforked container, and the warm zygote."""
    per_tenant: Counter[str] = field(default_factory=Counter)
    """Additional resources for each further tenant."""

    def measure_baseline(self) -> None:
        """Measure the resources of an idle server, once."""
        if not self.baseline:
            self.baseline = _idle_resources(self, "")
            self.per_tenant = _idle_resources(self, "another") - self.baseline
            assert (self.per_tenant["zygotes"], self.per_tenant["containers"], self.per_tenant["processes"]) == (
                1,
                1,
                4,
            )

    def resources(self) -> Counter[str]:
        """Number of everything that a container could leak."""
        pid = self.process.pid
        descriptors, mounts = Path(f"/proc/{pid}/fd"), Path(f"/proc/{pid}/mountinfo")
        zygotes = _children(pid)
        return Counter(
            {
                "zygotes": len(zygotes),  # each is a bubblewrap process, and its containers are its grandchildren
                "containers": sum(len(_children(inside)) for zygote in zygotes for inside in _children(zygote)),
                "processes": len(descendants(pid)),
                "descriptors": len(list(descriptors.iterdir())) if os.access(descriptors, os.R_OK) else 0,
                "cgroups": sum(
                    name.startswith(f"{cgroups.PREFIX}{pid}-")
                    for _, below, _ in os.walk(cgroups.ROOT)  # at any depth
                    for name in below
                ),
                "mounts": mounts.read_text(encoding="utf-8").count("\n"),
                "files": sum(self._files()),
            }
        )

    def _files(self) -> Iterator[int]:
        """Number of entries per directory, without installed packages, which are cached."""
        for directory, below, files in os.walk(self.state):  # tolerates removals meanwhile
            if directory == str(self.state / "packages"):
                below[:] = [name for name in below if name.startswith(".")]
            yield len(below) + sum(not name.endswith(".pyc") for name in files)

    def leaked(self, *, seconds: float = 20) -> Counter[str]:
        """Resources over the baseline, after time for cleanup.

        A zygote may stay for each recent tenant. Everything else must equal the baseline from the first test to the
        last, without tolerance: one server serves all tests, and small leaks would add up.
        """
        deadline = time.monotonic() + seconds
        while (leaked := self._leaked_now()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return leaked

    def _leaked_now(self) -> Counter[str]:
        resources = self.resources()
        long_ago = time.monotonic() - WARM_SECONDS
        warm = sum(last > long_ago for last in self.client.tenants.values())
        further = max(0, min(warm - 1, resources["zygotes"] - self.baseline["zygotes"]))
        return resources - self.baseline - Counter({name: further * count for name, count in self.per_tenant.items()})


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # ended meanwhile
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    return []


@contextlib.contextmanager
def start(identity: str, **settings: str) -> Iterator[RunningServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as state:
        command = [sys.executable, "-m", "antwort", "sandbox", "--port", str(port)]
        if identity == "user" and os.geteuid() == 0:
            os.chown(state, ORDINARY_USER, ORDINARY_USER)
            shown = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
            script = ROOT / "tests" / "antwort" / "sandbox" / "as_user.py"
            command = [sys.executable, str(script), str(ORDINARY_USER), *map(str, shown), "--", *command]
        secret = "the-servers-own-secret-4711"
        environment = {"PATH": os.environ["PATH"], "SANDBOX_STATE": state, "SECRET_OF_THE_SERVER": secret}
        environment["PYTHONPATH"] = str(ROOT / "src")  # the source of these tests, whichever is installed
        environment |= {f"SANDBOX_{name.upper()}": value for name, value in settings.items()}
        log = Path(state, "log").open("wb")  # noqa: SIM115 - closed below
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
        try:
            client = Client(f"http://127.0.0.1:{port}", settings.get("token"))
            _wait(client, process, Path(state, "log"))
            yield RunningServer(client, process, Path(state), identity, secret)
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
def server(request) -> Iterator[RunningServer]:
    with start(request.param) as running:
        running.measure_baseline()
        yield running


def _idle_resources(server: RunningServer, tenant: str) -> Counter[str]:
    """Resources after 1.5 s without a change: the warm zygote starts in the background."""
    server.client.destroy(server.client.session(tenant=tenant))  # assigns a zygote and preforks a container
    before, since, deadline = server.resources(), time.monotonic(), time.monotonic() + 30
    while time.monotonic() - since < 1.5 and time.monotonic() < deadline:
        time.sleep(0.1)
        if (now := server.resources()) != before:
            before, since = now, time.monotonic()
    return before


@pytest.fixture(scope="session")
def serve():
    """Start another server: `with serve("user", setting="value") as running`."""
    return start


@pytest.fixture
def package_index(tmp_path) -> Iterator[fake_package_index.Index]:
    with fake_package_index.running(tmp_path) as index:
        yield index


@pytest.fixture(params=["user", "root"])
def identity(request) -> str:
    """The user that starts the server."""
    if request.param not in IDENTITIES:
        pytest.skip("needs root")
    return request.param


@pytest.fixture(scope="session")
def identities() -> list[str]:
    return IDENTITIES


@dataclass
class Attacker:
    """A container to attack from, and a sibling that must not be affected."""

    server: RunningServer
    client: Client
    session: str
    sibling: str
    reply_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, code: str, **fields):
        return self.client.run(self.session, textwrap.dedent(code).strip(), **fields)

    def run_in_sibling(self, code: str):
        return self.client.run(self.sibling, textwrap.dedent(code).strip())

    def evaluate(self, code: str):
        """The result of the last expression, or the whole report if there is none."""
        seen = self.run(code)
        return seen["result"] if seen["result"] is not None else seen


@contextlib.contextmanager
def attack(server: RunningServer, **limits) -> Iterator[Attacker]:
    """An attacker on this server; the sibling must reply throughout, and nothing may leak."""
    server.measure_baseline()
    client = server.client
    small_limits = {"memory_bytes": 256 << 20, "disk_bytes": 32 << 20, "disk_files": 500, "processes": 32}
    attacker = Attacker(server, client, client.session(**{**small_limits, **limits}), client.session())
    stop = threading.Event()

    def poll_sibling() -> None:
        while not stop.is_set():
            started = time.monotonic()
            try:
                if client.run(attacker.sibling, "6 * 7")["result"] != "42":
                    attacker.failures.append("a wrong result")
            except (AssertionError, OSError) as error:
                attacker.failures.append(str(error))
            attacker.reply_seconds.append(time.monotonic() - started)
            stop.wait(0.05)

    polling = threading.Thread(target=poll_sibling)
    polling.start()
    try:
        yield attacker
    finally:
        stop.set()
        polling.join()
        client.destroy(attacker.session)
        client.destroy(attacker.sibling)
    assert attacker.failures == []
    assert attacker.reply_seconds
    assert max(attacker.reply_seconds) < MAX_REPLY_SECONDS
    assert server.leaked() == {}


@pytest.fixture
def attacker(server: RunningServer, request) -> Iterator[Attacker]:
    with attack(server, **getattr(request, "param", {})) as attacker:
        yield attacker


@pytest.fixture
def attacker_on():
    """An attacker on another server: `with attacker_on(running) as attacker`."""
    return attack
