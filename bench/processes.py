"""Servers that are measured from outside: started, waited for, weighed, and ended by their id."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antwort.sandbox.host.process import descendants

PATIENCE = 120.0
_NAP = 0.005
_ENDING = 30.0
_OK = 200
# Bytecode may be written, whatever this machine prefers, and nothing here goes through a proxy: all is on loopback.
_DROPPED = ("PYTHONDONTWRITEBYTECODE", "http_proxy", "https_proxy", "all_proxy")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in (*_DROPPED, *map(str.upper, _DROPPED))}


class NotReadyError(Exception):
    """A server ended, or never answered; the message fits into a cell."""


@dataclass(frozen=True)
class Server:
    """One that answers. `ready_after` is how long that took."""

    pid: int
    port: int
    ready_after: float

    def cpu(self) -> float:
        """Seconds of processor time so far, all threads and child processes included."""
        return sum(map(_cpu, self._pids()))

    def own_cpu(self) -> float:
        """The same of its own process alone."""
        return _cpu(self.pid)

    def megabytes(self) -> float:
        """What it holds of the machine's memory."""
        return sum(map(_resident, self._pids()))

    def _pids(self) -> list[int]:
        return descendants(self.pid)  # itself, too


def _cpu(pid: int) -> float:
    """From the process's own clock, which knows nanoseconds; /proc/PID/stat counts in hundredths of a second."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # how Linux numbers the processor clock of a process
    except OSError:
        return 0.0  # it has ended


def _resident(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0  # it has ended
    return int(status.partition("\nVmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path], *, ready: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server; `{port}` in its command is one that is free. It is there once the path `ready` answers."""
    port = free_port()
    argv = [str(part).replace("{port}", str(port)) for part in command]
    with log.open("wb") as lines:
        begun = time.perf_counter()
        process = subprocess.Popen(argv, env={**ENVIRONMENT, **(environment or {})}, stdout=lines, stderr=lines)
        try:
            yield Server(process.pid, port, _wait(process, port, ready, log, begun))
        finally:
            end(process)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, and wait; one that does not is killed."""
    process.terminate()
    try:
        process.wait(_ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, path: str, log: Path, begun: float) -> float:
    while (waited := time.perf_counter() - begun) < PATIENCE:
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise NotReadyError(f"it did not start: {lines[-1] if lines else f'exit status {process.returncode}'}")
        if _answers(port, path):
            return time.perf_counter() - begun
        time.sleep(_NAP)
    raise NotReadyError(f"it was not ready after {waited:.0f} s")


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == _OK
    except OSError:
        return False
    finally:
        connection.close()
