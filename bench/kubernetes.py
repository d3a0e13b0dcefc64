"""Benchmark: claim → first output with a ready pool on a real Kubernetes API server, beside the local jail.

Both run through the same port (`Sandboxes.acquire`, `Sandbox.run`). The API server is a real one with etcd; pods are
processes on loopback, which a controller in a process of its own (`claim_controller.py`) assigns as soon as it sees a
claim. So the controller's share is the least that a controller can take, and no pod is scheduled or started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from claim_controller import PODS, POLL_SECONDS
from measurements import Measurement, Row, Suite
from processes import free_port

from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import Output, Sandboxes
from antwort.tools.builtins.codeinterpreter.kubernetes import Claims, KubernetesApi, KubernetesSandboxes, PodConnector
from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import GROUP, Claim

HERE = Path(__file__).parent
START = HERE.parents[1] / "shared" / "kubernetes" / "start"
PROGRAMS = "etcd", "openssl", "curl", "xz"
PORTS = range(18_500, 19_400, 10)  # etcd uses the two ports that are a thousand higher
CODE = "import numpy, pandas, matplotlib.pyplot as plt\nprint(1)"
ROUNDS = 15
SETTLE_SECONDS = 1.0  # the oldest pod is used, so it has had four times as long to import its packages
MAX_OUTPUT = 1 << 20
START_TIMEOUT_SECONDS = 120

PEER = "local jail"
TOTAL, CONTROLLER, API, POD, FIRST_CODE, OWN = "total", "controller", "api", "pod", "code", "own"


class NoApiServerError(Exception):
    """There is no Kubernetes API server on this machine. The message says why."""


def suite() -> Suite:
    """All measurements in one run; claims and the local jail alternate."""
    try:
        with api_server() as kubeconfig, tempfile.TemporaryDirectory() as directory:
            samples = asyncio.run(measure(kubeconfig, Path(directory)))
    except NoApiServerError as error:
        return Suite([], [f"Kubernetes: skipped: {error}."])
    return Suite(rows(samples), NOTES)


NOTES = [
    "Kubernetes: a real API server with etcd; pods are `antwort sandbox` processes that were ready before the claim.",
    "  The first code imports numpy, pandas and matplotlib. Controller: from its watch event to its status request, as",
    "  it reports. API server: the rest of the time until the claim is seen ready (create, status write, two watches).",
    "  The second row is our own share: connection, check, session and the first code.",
]


def rows(samples: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
    """The rows of the table."""
    claimed, local = samples["claims"], samples[PEER]

    def row(label: str, what: str, peer: str | None = None) -> Row:
        peers = {} if peer is None else {PEER: Measurement.from_samples(local[peer])}
        return Row(label, Measurement.from_samples(claimed[what]), peers)

    return [
        row("claim → first output, ready pool", TOTAL, TOTAL),
        row("claim → first output, without controller and API server", OWN, TOTAL),
        row("of it: connection, check and session", POD, POD),
        row("of it: first code", FIRST_CODE, FIRST_CODE),
        row("claim → ready: controller", CONTROLLER),
        row("claim → ready: API server", API),
    ]


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────


class TimedClaims(Claims):
    """Claims that keep the name of the last one, and when it was seen ready."""

    last_name = ""
    ready_at = 0.0

    async def acquire(self, timeout: float) -> Claim:  # noqa: ASYNC109 - as the class has it
        claim = await super().acquire(timeout)
        self.last_name, self.ready_at = claim.metadata.name, perf_counter()
        return claim


async def measure(kubeconfig: str, directory: Path) -> Mapping[str, Mapping[str, list[float]]]:
    """Samples by backend and quantity."""
    namespace, port = f"bench-{secrets.token_hex(4)}", free_port()
    claims = TimedClaims(
        KubernetesApi.from_kubeconfig(kubeconfig),
        namespace=namespace,
        template="bench",
        warm_pool="bench",
        instance="bench",
    )
    pods = KubernetesSandboxes(claims, PodConnector(claims, port=port, token=None))
    jail = LocalSandboxes(directory / "jail", max_output=MAX_OUTPUT)
    samples: dict[str, defaultdict[str, list[float]]] = {"claims": defaultdict(list), PEER: defaultdict(list)}
    async with running_controller(kubeconfig, namespace, port, directory) as controller:
        try:
            await pods.start()
            await jail.start()
            for number in range(ROUNDS + 1):
                await controller.wait_for_full_pool()
                await asyncio.sleep(SETTLE_SECONDS)
                claim, local = await first_output(pods), await first_output(jail)
                event = await controller.adoption_of(claims.last_name)
                if number:
                    collect(samples[PEER], local)
                    collect(samples["claims"], claim, claims.ready_at, event)
        finally:
            await pods.aclose()
            await jail.aclose()
    return samples


@dataclass(frozen=True)
class FirstOutput:
    """When a sandbox was requested, was acquired, and had printed."""

    start: float
    acquired: float
    printed: float


async def first_output(sandboxes: Sandboxes) -> FirstOutput:
    """Acquire a sandbox, run code until its first output, and release the sandbox."""
    start = perf_counter()
    sandbox = await sandboxes.acquire(tenant="bench", memory_limit="1g", timeout=30)
    acquired = perf_counter()
    try:
        async with contextlib.aclosing(sandbox.run(CODE, timeout=30)) as events:
            async for event in events:
                if not isinstance(event, Output) or event.text != "1\n":
                    raise RuntimeError(f"the code did not run: {event}")
                return FirstOutput(start, acquired, perf_counter())
    finally:
        await sandboxes.release(sandbox)
    raise RuntimeError("the code printed nothing")


def collect(
    samples: defaultdict[str, list[float]],
    times: FirstOutput,
    ready_at: float | None = None,
    adoption: Mapping[str, float] | None = None,
) -> None:
    """Add the shares of one round."""
    claimed = times.start if ready_at is None else ready_at
    samples[TOTAL].append(times.printed - times.start)
    samples[OWN].append(times.printed - claimed)
    samples[POD].append(times.acquired - claimed)
    samples[FIRST_CODE].append(times.printed - times.acquired)
    if adoption is not None:
        controller = adoption["writing"] - adoption["seen"]
        samples[CONTROLLER].append(controller)
        samples[API].append(claimed - times.start - controller)


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class ControllerProcess:
    """The events of the controller."""

    lines: asyncio.StreamReader
    pods: int = 0
    adoptions: dict[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])

    async def wait_for_full_pool(self) -> None:
        """Read events until all pods are ready."""
        while self.pods < PODS:
            await self._read()

    async def adoption_of(self, name: str) -> Mapping[str, float]:
        """The times of the adoption of a claim."""
        while name not in self.adoptions:
            await self._read()
        return self.adoptions[name]

    async def _read(self) -> None:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            line = await self.lines.readline()
        if not line:
            raise RuntimeError("the controller has ended")
        event: dict[str, Any] = json.loads(line)
        if "ready" in event:
            self.pods = event["ready"]
        else:
            self.pods -= 1
            self.adoptions[event["claim"]] = event


@contextlib.asynccontextmanager
async def running_controller(
    kubeconfig: str, namespace: str, port: int, directory: Path
) -> AsyncIterator[ControllerProcess]:
    """A controller whose pods start in the background."""
    command = (sys.executable, str(HERE / "claim_controller.py"), kubeconfig, namespace, str(port), str(directory))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    try:
        yield ControllerProcess(process.stdout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@contextlib.contextmanager
def api_server() -> Iterator[str]:
    """The path of a kubeconfig: that of `ANTWORT_TEST_KUBECONFIG`, or of a server that is started here.

    The server must accept claims in any namespace, as one for custom resources alone does.
    """
    if given := os.environ.get("ANTWORT_TEST_KUBECONFIG"):
        yield given
        return
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not START.exists():
        reason = f"install {', '.join(missing)}" if missing else "put `shared` beside the repository"
        raise NoApiServerError(f"no Kubernetes API server: set ANTWORT_TEST_KUBECONFIG, or {reason}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # PyYAML is here
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            subprocess.run(
                [START, directory, str(free_port_range())],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=START_TIMEOUT_SECONDS,
                env=environment,
            )
            asyncio.run(wait_for_group(str(directory / "kubeconfig")))
            yield str(directory / "kubeconfig")
        finally:
            pids = directory / "pids"
            for pid in pids.read_text(encoding="ascii").split() if pids.exists() else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def free_port_range() -> int:
    """A free port for the API server, for which the two ports of etcd are free too."""
    for port in PORTS:
        with contextlib.suppress(OSError):
            for used in (port, port + 1000, port + 1001):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", used))
            return port
    raise NoApiServerError("no free port")


async def wait_for_group(kubeconfig: str) -> None:
    """Wait for the discovery of the API group, which follows the resource definitions with a delay."""
    api = KubernetesApi.from_kubeconfig(kubeconfig)
    async with asyncio.timeout(START_TIMEOUT_SECONDS):
        while True:
            with contextlib.suppress(ApiRefused):
                await api.request("GET", f"/apis/{GROUP}")
                break
            await asyncio.sleep(POLL_SECONDS)
    await api.aclose()
