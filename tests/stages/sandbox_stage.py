"""A stage for sandboxes: a sandbox server as a process of its own, as it runs elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[2]


@dataclass
class SandboxProcess:
    """A running sandbox server."""

    url: str
    token: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def sessions(self) -> list[dict]:
        """What it has, asked past our own client."""
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.get(f"{self.url}/sessions", headers=headers, trust_env=False).json()["sessions"]

    def end_all(self) -> None:
        """End them, as somebody else might."""
        for session in self.sessions():
            headers = {"authorization": f"Bearer {self.token}"}
            httpx2.delete(f"{self.url}/sessions/{session['id']}", headers=headers, trust_env=False)


@contextmanager
def sandbox_server(place: Path, port: int | None = None, **settings: str) -> Iterator[SandboxProcess]:
    """A sandbox server for a while, where one was before or anywhere. `settings` are its `SANDBOX_*` variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = port or probe.getsockname()[1]
    token = "a token of the tests"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "SANDBOX_STATE": str(place / "state"),
        "SANDBOX_PORT": str(port),
        "SANDBOX_TOKEN": token,
        **{f"SANDBOX_{name.upper()}": value for name, value in settings.items()},
    }
    with (place / "sandbox.log").open("wb") as log:
        command = [sys.executable, "-m", "antwort", "sandbox"]
        process = subprocess.Popen(command, env=environment, cwd=place, stdout=log, stderr=log)
        running = SandboxProcess(f"http://127.0.0.1:{port}", token, process)
        try:
            _wait(running, place / "sandbox.log")
            yield running
        finally:
            process.terminate()
            process.wait(30)


def _wait(running: SandboxProcess, log: Path) -> None:
    for _ in range(1500):
        assert running.process.poll() is None, log.read_text(encoding="utf-8")
        try:
            httpx2.get(f"{running.url}/health", trust_env=False).raise_for_status()
        except httpx2.TransportError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(log.read_text(encoding="utf-8"))
