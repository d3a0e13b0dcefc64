"""Fixtures: a Kubernetes API server with the agent-sandbox CRDs, and a TCP proxy that drops connections to it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused, KubernetesApi
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import GROUP

ROOT = Path(__file__).parents[2]
START = ROOT.parent / "shared" / "kubernetes" / "start"
PROGRAMS = "etcd", "openssl", "curl", "xz"
"""What the script needs, beside a Python with PyYAML: that of the tests."""


@contextmanager
def api_server(directory: Path) -> Iterator[str]:
    """The path of a kubeconfig: that of `ANTWORT_TEST_KUBECONFIG`, or of a server that is started here."""
    if given := os.environ.get("ANTWORT_TEST_KUBECONFIG"):
        yield given
        return
    with started_api_server(directory, START) as path:
        yield path


@contextmanager
def started_api_server(directory: Path, start: Path) -> Iterator[str]:
    """The kubeconfig of a server that this script starts."""
    skip_without_programs(start)
    try:
        _start(directory, start)
        asyncio.run(_wait_for_group(str(directory / "kubeconfig")))
        yield str(directory / "kubeconfig")
    finally:
        _stop(directory)


def skip_without_programs(start: Path) -> None:
    """Skip the test, with the reason, where the script or a program that it runs is missing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not start.exists():
        reason = f"install {', '.join(missing)}" if missing else "put `shared` beside the repository"
        pytest.skip(f"no Kubernetes API server: set ANTWORT_TEST_KUBECONFIG, or {reason}")


def _start(directory: Path, start: Path) -> None:
    """Start the server; again at other ports, if another process has taken these meanwhile."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # PyYAML is here
    for attempt in (1, 2, 3):
        command = [str(start), str(directory), str(free_port_range())]
        started = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
        if started.returncode == 0:
            return
        _stop(directory)
        assert attempt < 3, started.stderr


def _stop(directory: Path) -> None:
    pids = directory / "pids"
    for pid in pids.read_text(encoding="utf-8").split() if pids.exists() else []:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    pids.unlink(missing_ok=True)


@contextmanager
def killed_api_server(directory: Path) -> Iterator[None]:
    """Kill the server of `started_api_server`, and start it again with its data. It serves claims some time later."""
    file = directory / "pids"
    *others, pid = file.read_text(encoding="utf-8").split()
    command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    os.kill(int(pid), signal.SIGKILL)
    try:
        yield
    finally:
        shell = ["sh", "-c", '"$@" >apiserver.log 2>&1 & echo $!', "sh", *command]
        started = subprocess.run(shell, cwd=directory, check=True, stdout=subprocess.PIPE, text=True)
        file.write_text("\n".join([*others, started.stdout.strip()]), encoding="utf-8")


async def _wait_for_group(kubeconfig: str) -> None:
    """Wait for the discovery of the API group, which follows the CRDs with a delay."""
    api = KubernetesApi.from_kubeconfig(kubeconfig)
    async with asyncio.timeout(30):
        while True:
            with suppress(ApiRefused):
                await api.request("GET", f"/apis/{GROUP}")
                break
            await asyncio.sleep(0.05)
    await api.aclose()


@asynccontextmanager
async def kubernetes_namespace(api: KubernetesApi, name: str) -> AsyncIterator[None]:
    """Context manager: a namespace, deleted at the end if it was not there before.

    An API server for custom resources alone has no namespaces, and accepts any. The cluster must not run the controller
    of agent-sandbox: that of the tests reports the statuses.
    """
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    try:
        await api.request("POST", "/api/v1/namespaces", body=body)
    except ApiRefused as refused:
        if refused.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            raise
        yield
        return
    try:
        yield
    finally:
        await api.request("DELETE", f"/api/v1/namespaces/{name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_port_range() -> int:
    """A port for the API server; etcd uses the two ports that are a thousand higher."""
    for port in random.sample(range(17_500, 27_500), 100):
        with suppress(OSError):
            for used in (port, port + 1000, port + 1001):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", used))
            return port
    raise AssertionError("there is no free port")


class DroppingProxy:
    """A TCP proxy on loopback. `accepted` counts its connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.accepted = 0
        self.is_silent = False
        """Whether replies on new connections are not passed on."""
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self._port

    async def pause(self) -> None:
        """Refuse connections, as an API server that is down."""
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    async def resume(self) -> None:
        """Listen again, at the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    def drop(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Pass on nothing on the connections that exist; they stay open, as after the loss of a route."""
        self._silent |= self._writers

    async def aclose(self) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}
        if self.is_silent:
            self._silent.add(writer)
        self.accepted += 1  # from here on `drop` resets it
        await asyncio.gather(self._copy(reader, up_writer), self._copy(up_reader, writer))
        self._writers -= {writer, up_writer}
        self._silent -= {writer, up_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if writer not in self._silent:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
