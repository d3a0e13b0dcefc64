"""Fixture: a sandbox server in a separate process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[2]


class SandboxProcess:
    """A sandbox server that can be stopped and restarted at the same address."""

    def __init__(
        self, directory: Path, environment: dict[str, str], settings: dict[str, str], python: str = sys.executable
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.token = "a token of the tests"
        self._directory = directory
        self._python = python
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "SANDBOX_STATE": str(directory / "state"),
            "SANDBOX_PORT": str(port),
            "SANDBOX_TOKEN": self.token,
            **{f"SANDBOX_{name.upper()}": value for name, value in settings.items()},
            **environment,
        }
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is healthy."""
        path = self._directory / "sandbox.log"
        with path.open("ab") as log:
            command = [self._python, "-m", "antwort", "sandbox"]
            self.process = subprocess.Popen(command, env=self._environment, cwd=self._directory, stdout=log, stderr=log)
        for _ in range(1500):
            assert self.process.poll() is None, path.read_text(encoding="utf-8")
            try:
                httpx2.get(f"{self.url}/health", trust_env=False).raise_for_status()
            except httpx2.TransportError:
                time.sleep(0.02)
            else:
                return
        self.stop()
        raise TimeoutError(path.read_text(encoding="utf-8"))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def sessions(self) -> list[dict]:
        """Its sessions, requested without the client under test."""
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.get(f"{self.url}/sessions", headers=headers, trust_env=False).json()["sessions"]

    def end_all(self) -> None:
        """End all sessions, as another client might."""
        for session in self.sessions():
            headers = {"authorization": f"Bearer {self.token}"}
            httpx2.delete(f"{self.url}/sessions/{session['id']}", headers=headers, trust_env=False)


@contextmanager
def sandbox_server(
    directory: Path, environment: dict[str, str] | None = None, *, python: str = sys.executable, **settings: str
) -> Iterator[SandboxProcess]:
    """Run a sandbox server. `settings` are its `SANDBOX_*` variables; `python` may be that of another installation."""
    running = SandboxProcess(directory, environment or {}, settings, python)
    try:
        yield running
    finally:
        running.stop()
