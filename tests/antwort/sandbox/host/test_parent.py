"""Parent watch: the server exits with its parent, tested with processes that are killed."""

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
from antwort.sandbox.host.bubblewrap import find_bwrap
from antwort.sandbox.host.process import descendants

ROOT = Path(__file__).parents[4]
USER = 54321

WATCHER = (
    "from antwort.sandbox.host import parent; import time; "
    "parent.watch(); print('started', flush=True); time.sleep(600)"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WATCHER
SERVER = "import sys; sys.argv[1:] = ['sandbox', *{arguments!r}]; from antwort.cli import main; main()"

PARENT = """
import os, subprocess, sys, threading, time
read_end, write_end = os.pipe()
def start():
    command = [sys.executable, "-c", {code!r}]
    child = subprocess.Popen(command, stdin=read_end, stdout=sys.stdout)
    if {leaky}:  # another process has the pipe's other end too, and outlives the parent
        other = subprocess.Popen(["sleep", "60"], pass_fds=[write_end], stdout=subprocess.DEVNULL)
        print(other.pid, flush=True)
    print(child.pid, flush=True)
starting = threading.Thread(target=start)
starting.start()
starting.join()
os.close(read_end)
for line in sys.stdin:
    if line == "close\\n":
        os.close(write_end)
time.sleep(600)
"""


@dataclass
class Processes:
    """A parent, and the child that watches it."""

    parent: subprocess.Popen[str]
    child: int
    others: list[int]


@contextlib.contextmanager
def start_processes(
    code: str, *, leaky: bool = False, identity: str = "root", **environment: str
) -> Iterator[Processes]:
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
        found = Processes(started, pids[-1], pids[:-1])
        try:
            yield found
        finally:
            started.kill()
            for pid in found.others:
                os.kill(pid, signal.SIGKILL)
            if is_alive(found.child):
                os.kill(found.child, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def exited(*pids: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def read_line(found: Processes) -> str:
    assert found.parent.stdout is not None
    return found.parent.stdout.readline().strip()


@pytest.mark.parametrize("leaky", [False, True], ids=["alone", "pipe inherited by another process"])
def test_the_child_exits_when_the_parent_is_killed(leaky):
    with start_processes(WATCHER, leaky=leaky) as found:
        assert read_line(found) == "started"
        found.parent.kill()
        found.parent.wait()
        assert exited(found.child)


def test_the_child_exits_when_the_parent_closes_the_pipe():
    with start_processes(WATCHER) as found:
        assert read_line(found) == "started"
        assert found.parent.stdin is not None
        found.parent.stdin.write("close\n")
        found.parent.stdin.flush()
        assert exited(found.child)
        assert is_alive(found.parent.pid)


def test_the_child_survives_the_thread_that_started_it():
    """PR_SET_PDEATHSIG would kill it."""
    with start_processes(WATCHER) as found:
        assert read_line(found) == "started"
        time.sleep(0.5)
        assert is_alive(found.child)


def test_a_child_that_ignores_sigterm_is_killed():
    with start_processes(STUBBORN.replace("parent.watch()", "parent._GRACE_SECONDS = 0.2; parent.watch()")) as found:
        assert read_line(found) == "started"
        found.parent.kill()
        found.parent.wait()
        assert exited(found.child)


def test_process_1_of_a_pid_namespace_exits_with_the_pipe_though_it_ignores_signals():
    """Its parent's pid is 0, and it gets no signal of its own."""
    bwrap = find_bwrap()
    assert bwrap is not None
    code = STUBBORN.replace("parent.watch()", "parent._GRACE_SECONDS = 0.2; parent.watch()")
    code = code.replace("'started'", "os.getpid(), os.getppid()").replace("import time", "import os, time")
    command = [
        *(str(bwrap), "--unshare-user", "--unshare-pid", "--as-pid-1", "--die-with-parent"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", sys.executable, "-c", code),
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        try:
            assert started.stdout.readline().split() == ["1", "0"]
            assert started.poll() is None
            started.stdin.close()
            assert started.wait(20) != 0
        finally:
            started.kill()


def test_watch_without_a_pipe_is_refused():
    with Path(os.devnull).open() as nothing, pytest.raises(Refused, match="pipe as standard input"):
        parent.watch(nothing.fileno())
    assert "parent" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("identity", ["user", "root"] if os.geteuid() == 0 else ["user"])
def test_a_killed_parent_leaves_no_server_no_container_and_no_socket(identity):
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as directory:
        path = Path(directory, "private", "socket")
        if os.geteuid() == 0 and identity == "user":
            os.chown(directory, USER, USER)
        code = SERVER.format(arguments=["--uds", str(path), "--with-parent"])
        with start_processes(code, identity=identity, SANDBOX_STATE=directory, SANDBOX_MODULES="json") as found:
            _wait(path, found)
            transport = httpx2.HTTPTransport(uds=str(path))
            with httpx2.Client(transport=transport, base_url="http://sandbox", timeout=30) as client:
                assert client.get("/health").status_code == 200
                session = client.post("/sessions", json={}).json()["id"]
                running = threading.Thread(target=_run_for_ever, args=(path, session))
                running.start()
                while client.get(f"/sessions/{session}").json()["calls"] == 0:
                    time.sleep(0.02)
                processes = descendants(found.child)
                assert len(processes) > 4, "server, zygotes, init, interpreter and its children"
                cgroups = list(Path("/sys/fs/cgroup").glob(f"*/antwort-{found.child}-*"))
                assert bool(cgroups) == (identity == "root" and Path("/sys/fs/cgroup/memory").exists())
                found.parent.kill()
                found.parent.wait()
                assert exited(*processes)
                running.join(20)
                assert not running.is_alive()
        assert not path.exists()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/antwort-{found.child}-*"))


def _wait(path: Path, found: Processes) -> None:
    """Wait until the server listens."""
    while is_alive(found.child):
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
