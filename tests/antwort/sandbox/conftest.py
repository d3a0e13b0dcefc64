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
"""How long a zygote may stay after its tenant was last there: until somebody looks for idle ones."""
ANSWER_SECONDS = 15
"""The longest that a sibling may wait for `6 * 7`: generous, for a busy machine, and yet no standstill."""
ROOT = Path(__file__).parents[3]
IDENTITIES = ["user", "root"] if os.geteuid() == 0 else ["user"]


@dataclass(frozen=True)
class Client(conformance.Client):
    """One that knows for whom the server has run anything, and when last."""

    tenants: dict[str, float] = field(default_factory=dict)

    def post(self, path: str, value):
        answer = super().post(path, value)
        if path in {"/execute", "/sessions"} and answer.status < 400:
            self.tenants[value.get("tenant", "")] = time.monotonic()
        return answer


@dataclass
class Running:
    """A server process that can be talked to."""

    client: Client
    process: subprocess.Popen[bytes]
    state: Path
    identity: str
    secret: str
    at_rest: Counter[str] = field(default_factory=Counter)
    """What there is when one tenant has been there: its zygote with a container forked ahead, and one in reserve."""
    nest: Counter[str] = field(default_factory=Counter)
    """What there is more of for each further tenant."""

    def settle(self) -> None:
        """Find out what is there at rest, unless that is known."""
        if not self.at_rest:
            self.at_rest = _at_rest(self, "")
            self.nest = _at_rest(self, "another") - self.at_rest
            assert (self.nest["zygotes"], self.nest["containers"], self.nest["processes"]) == (1, 1, 4)

    def traces(self) -> Counter[str]:
        """Everything that a container could leave behind, counted."""
        pid = self.process.pid
        descriptors, mounts = Path(f"/proc/{pid}/fd"), Path(f"/proc/{pid}/mountinfo")
        zygotes = _children(pid)
        return Counter(
            {
                "zygotes": len(zygotes),  # each in a bubblewrap, and its containers are its children
                "containers": sum(len(_children(inside)) for zygote in zygotes for inside in _children(zygote)),
                "processes": len(descendants(pid)),
                "descriptors": len(list(descriptors.iterdir())) if os.access(descriptors, os.R_OK) else 0,
                "groups": sum(
                    name.startswith(f"{cgroups.PREFIX}{pid}-")
                    for _, below, _ in os.walk(cgroups.ROOT)  # however deep ours is
                    for name in below
                ),
                "mounts": mounts.read_text(encoding="utf-8").count("\n"),
                "files": sum(self._files()),
            }
        )

    def _files(self) -> Iterator[int]:
        """How many in each directory, without installed packages: those are kept on purpose, and bounded."""
        for directory, below, files in os.walk(self.state):  # which does not mind what goes meanwhile
            if directory == str(self.state / "packages"):
                below[:] = [name for name in below if name.startswith(".")]
            yield len(below) + sum(not name.endswith(".pyc") for name in files)

    def left_over(self, *, seconds: float = 20) -> Counter[str]:
        """What there is more of than may stay, once things have had time to go.

        A zygote stays for each tenant that was there of late. All else is held to the same figures from the first
        test to the last, without any allowance: one server serves them all, and a little at a time would add up.
        """
        deadline = time.monotonic() + seconds
        while (left := self._left_over()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _left_over(self) -> Counter[str]:
        traces = self.traces()
        long_ago = time.monotonic() - WARM_SECONDS
        warm = sum(last > long_ago for last in self.client.tenants.values())
        further = max(0, min(warm - 1, traces["zygotes"] - self.at_rest["zygotes"]))
        return traces - self.at_rest - Counter({name: further * count for name, count in self.nest.items()})


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # ended meanwhile
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    return []


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
        environment["PYTHONPATH"] = str(ROOT / "src")  # the tree that these tests belong to, whichever is installed
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
        running.settle()
        yield running


def _at_rest(server: Running, tenant: str) -> Counter[str]:
    """Wait until nothing has changed for a while: the reserve is being filled in the background."""
    server.client.destroy(server.client.session(tenant=tenant))  # the zygote is assigned and a spare forked
    before, since, deadline = server.traces(), time.monotonic(), time.monotonic() + 30
    while time.monotonic() - since < 1.5 and time.monotonic() < deadline:
        time.sleep(0.1)
        if (now := server.traces()) != before:
            before, since = now, time.monotonic()
    return before


@pytest.fixture(scope="session")
def serve():
    """Start a server of one's own: `with serve("user", setting="value") as running`."""
    return start


@pytest.fixture
def package_index(tmp_path) -> Iterator[fake_package_index.Index]:
    with fake_package_index.running(tmp_path) as index:
        yield index


@pytest.fixture(params=["user", "root"])
def identity(request) -> str:
    """Who starts the server."""
    if request.param not in IDENTITIES:
        pytest.skip("this needs root")
    return request.param


@pytest.fixture(scope="session")
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


@contextlib.contextmanager
def beside(server: Running, **limits) -> Iterator[Arena]:
    """An arena on this server; afterwards the sibling must have answered all along, and nothing may be left."""
    server.settle()
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
    assert max(arena.answers) < ANSWER_SECONDS
    assert server.left_over() == {}


@pytest.fixture
def arena(server: Running, request) -> Iterator[Arena]:
    with beside(server, **getattr(request, "param", {})) as arena:
        yield arena


@pytest.fixture
def arena_on():
    """An arena on a server of one's own: `with arena_on(running) as arena`."""
    return beside
