"""Starts and stops server processes; reads their CPU time and memory from outside."""

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

START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.005
_STOP_TIMEOUT_SECONDS = 30.0
_OK = 200
# Bytecode is cached even if this machine disables it, and no proxy is used, because all servers are on loopback.
_REMOVED_VARIABLES = ("PYTHONDONTWRITEBYTECODE", "http_proxy", "https_proxy", "all_proxy")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in (*_REMOVED_VARIABLES, *map(str.upper, _REMOVED_VARIABLES))
}


class ServerNotReadyError(Exception):
    """A server ended or did not answer; the message fits into a table cell."""


@dataclass(frozen=True)
class ServerProcess:
    """A server that answers. `ready_after` is its start-up time in seconds."""

    pid: int
    port: int
    ready_after: float

    def cpu_seconds(self) -> float:
        """CPU time so far, with all threads and child processes."""
        return sum(map(_cpu_seconds, self._pids()))

    def own_cpu_seconds(self) -> float:
        """CPU time of its own process, without child processes."""
        return _cpu_seconds(self.pid)

    def resident_megabytes(self) -> float:
        """Resident memory of the process and its children."""
        return sum(map(_resident_megabytes, self._pids()))

    def _pids(self) -> list[int]:
        return descendants(self.pid)  # includes the process itself


def cpu_seconds_by_pid(pid: int) -> dict[int, float]:
    """CPU time so far of a process and each of its child processes."""
    return {one: _cpu_seconds(one) for one in descendants(pid)}


def _cpu_seconds(pid: int) -> float:
    """Reads the CPU clock of the process, in nanoseconds; /proc/PID/stat has only hundredths of a second."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock id that Linux assigns to the CPU clock of a process
    except OSError:
        return 0.0  # it has ended


def _resident_megabytes(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0  # it has ended
    return int(status.partition("\nVmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path], *, ready: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Start a server, with a free port for `{port}` in its command, and wait until the path `ready` answers 200."""
    port = free_port()
    argv = [str(part).replace("{port}", str(port)) for part in command]
    with log.open("wb") as lines:
        start_time = time.perf_counter()
        process = subprocess.Popen(argv, env={**ENVIRONMENT, **(environment or {})}, stdout=lines, stderr=lines)
        try:
            yield ServerProcess(process.pid, port, _wait_until_ready(process, port, ready, log, start_time))
        finally:
            stop(process)


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process; kill it after a timeout."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path, start_time: float) -> float:
    while (waited := time.perf_counter() - start_time) < START_TIMEOUT_SECONDS:
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise ServerNotReadyError(f"did not start: {lines[-1] if lines else f'exit status {process.returncode}'}")
        if _answers(port, path):
            return time.perf_counter() - start_time
        time.sleep(_POLL_SECONDS)
    raise ServerNotReadyError(f"not ready after {waited:.0f} s")


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == _OK
    except OSError:
        return False
    finally:
        connection.close()
