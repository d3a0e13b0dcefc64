"""A server that lives and dies with its parent: real processes, killed without a chance to clean up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from antwort.sandbox.errors import Refused
from antwort.sandbox.host import parent
from antwort.sandbox.host.process import descendants

ROOT = Path(__file__).parents[4]
USER = 54321

WATCHER = (
    "from antwort.sandbox.host import parent; import time; parent.watch(); print('here', flush=True); time.sleep(600)"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WATCHER
SERVER = "import sys; sys.argv[1:] = ['sandbox', *{arguments!r}]; from antwort.cli import main; main()"

PARENT = """
import os, subprocess, sys, threading, time
kept, ours = os.pipe()
def start():
    command = [sys.executable, "-c", {code!r}]
    child = subprocess.Popen(command, stdin=kept, stdout=sys.stdout)
    if {leaky}:  # another process has the pipe's other end too, and outlives the parent
        stranger = subprocess.Popen(["sleep", "60"], pass_fds=[ours], stdout=subprocess.DEVNULL)
        print(stranger.pid, flush=True)
    print(child.pid, flush=True)
starting = threading.Thread(target=start)
starting.start()
starting.join()
os.close(kept)
for line in sys.stdin:
    if line == "close\\n":
        os.close(ours)
time.sleep(600)
"""


@dataclass
class Family:
    """A parent, and the child that watches it."""

    parent: subprocess.Popen[str]
    child: int
    others: list[int]


@contextlib.contextmanager
def family(code: str, *, leaky: bool = False, identity: str = "root", **environment: str) -> Iterator[Family]:
    command = [sys.executable, "-c", PARENT.format(code=code, leaky=leaky)]
    if identity == "user" and os.geteuid() == 0:
        shown = [str(path) for path in {Path(sys.base_prefix), Path(sys.prefix), ROOT}]
        script = Path(__file__).parents[1] / "as_user.py"
        command = [sys.executable, str(script), str(USER), *shown, "--", *command]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as started:
        assert started.stdout is not None
        pids = [int(started.stdout.readline()) for _ in range(2 if leaky else 1)]
        found = Family(started, pids[-1], pids[:-1])
        try:
            yield found
        finally:
            started.kill()
            for pid in found.others:
                os.kill(pid, signal.SIGKILL)
            if lives(found.child):
                os.kill(found.child, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def gone(*pids: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(lives, pids))


def word(found: Family) -> str:
    assert found.parent.stdout is not None
    return found.parent.stdout.readline().strip()


@pytest.mark.parametrize("leaky", [False, True], ids=["alone", "with the pipe in a stranger's hands"])
def test_it_ends_when_the_parent_is_killed(leaky):
    with family(WATCHER, leaky=leaky) as found:
        assert word(found) == "here"
        found.parent.kill()
        found.parent.wait()
        assert gone(found.child)


def test_it_ends_when_the_parent_closes_the_pipe():
    with family(WATCHER) as found:
        assert word(found) == "here"
        assert found.parent.stdin is not None
        found.parent.stdin.write("close\n")
        found.parent.stdin.flush()
        assert gone(found.child)
        assert lives(found.parent.pid)


def test_it_lives_on_though_the_thread_that_started_it_has_ended():
    """What the kernel's own signal would get wrong."""
    with family(WATCHER) as found:
        assert word(found) == "here"
        time.sleep(0.5)
        assert lives(found.child)


def test_one_that_does_not_end_in_good_order_is_ended():
    with family(STUBBORN.replace("parent.watch()", "parent._GRACE_SECONDS = 0.2; parent.watch()")) as found:
        assert word(found) == "here"
        found.parent.kill()
        found.parent.wait()
        assert gone(found.child)


def test_without_a_pipe_it_is_refused():
    with Path(os.devnull).open() as nothing, pytest.raises(Refused, match="pipe as standard input"):
        parent.watch(nothing.fileno())
    assert "parent" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("identity", ["user", "root"] if os.geteuid() == 0 else ["user"])
def test_a_killed_parent_leaves_no_server_no_container_and_no_socket(identity):
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as place:
        path = Path(place, "private", "socket")
        if os.geteuid() == 0 and identity == "user":
            os.chown(place, USER, USER)
        code = SERVER.format(arguments=["--uds", str(path), "--with-parent"])
        with family(code, identity=identity, SANDBOX_STATE=place, SANDBOX_MODULES="json") as found:
            _wait(path, found)
            transport = httpx2.HTTPTransport(uds=str(path))
            with httpx2.Client(transport=transport, base_url="http://sandbox", timeout=30) as client:
                assert client.get("/health").status_code == 200
                session = client.post("/sessions", json={}).json()["id"]
                running = threading.Thread(target=_run_for_ever, args=(path, session))
                running.start()
                while client.get(f"/sessions/{session}").json()["calls"] == 0:
                    time.sleep(0.02)
                everybody = descendants(found.child)
                assert len(everybody) > 4, "server, zygotes, init, interpreter, and what the code has started"
                groups = list(Path("/sys/fs/cgroup").glob(f"*/antwort-{found.child}-*"))
                assert bool(groups) == (identity == "root" and Path("/sys/fs/cgroup/memory").exists())
                found.parent.kill()
                found.parent.wait()
                assert gone(*everybody)
                running.join(20)
                assert not running.is_alive()
        assert not path.exists()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/antwort-{found.child}-*"))


def _wait(path: Path, found: Family) -> None:
    """Until somebody listens; whoever asks from then on waits for an answer."""
    while lives(found.child):
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):
            caller.connect(str(path))
            return
        time.sleep(0.02)
    pytest.fail("the server did not start")


def _run_for_ever(path: Path, session: str) -> None:
    transport = httpx2.HTTPTransport(uds=str(path))
    code = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '600'])\nwhile True: time.sleep(1)"
    with (
        httpx2.Client(transport=transport, base_url="http://sandbox", timeout=60) as client,
        contextlib.suppress(httpx2.TransportError),
    ):
        client.post(f"/sessions/{session}/execute", json={"code": code, "timeout_seconds": 600})
