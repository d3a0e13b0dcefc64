"""Benchmark: start, call and file transfer times of an isolated Python, with peers.

Measured are the sandbox server over HTTP on loopback, and the container pool without HTTP. The
peers are a Jupyter kernel, `python -c` in bubblewrap, and plain `python -c`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import programs
from measurements import Measurement, Row, Suite
from peer_process import PeerFailedError, run_peer

from antwort.sandbox import Pool, probe
from antwort.sandbox.host.process import descendants

FIRST_WITHOUT_HTTP_TARGET, FIRST_TARGET, WARM_TARGET, IDLE_MEGABYTES_TARGET = 0.015, 0.025, 0.0015, 8
IMPORTS = "import numpy, pandas, matplotlib.pyplot as plt\nprint(1)"
PLOT = "plt.plot([1, 2, 3])\nNone"
ROUNDS, CALLS, IMAGES, IDLE, AT_ONCE, EXECUTIONS = 40, 300, 10, 20, 100, 150
LARGE = 100 << 20
SMALL_FILES = 1_000


def suite() -> Suite:
    """All measurements in one run."""
    kernel: dict[str, Any] | str
    try:
        kernel = run_peer("ipykernel_calls")
    except PeerFailedError as error:
        kernel = str(error)
    started = programs.start_times(IMPORTS)
    large, small = _large(), _small()
    file_times = programs.file_times(large, small)
    kernel_times = _kernel_measurements(kernel)
    jail = asyncio.run(_jail_times(prefork=True))
    cold = asyncio.run(_jail_times(prefork=False))
    with _server() as (client, server):
        first, warm, image = _session_times(client)
        large_in, large_out, small_in, small_out = _file_times(client, large, small)
        memory = _idle_megabytes(client, server)
        each = _executions(client)
        concurrent = _concurrent_creations(client)
    concurrent_peers = _concurrent_kernels(kernel) | programs.concurrent_start_times(IMPORTS, AT_ONCE)
    return Suite(
        [
            Row(
                "create → first output, without HTTP", jail, kernel_times("start") | started, FIRST_WITHOUT_HTTP_TARGET
            ),
            Row("create → first output, without HTTP, no prefork", cold, kernel_times("start") | started),
            Row("create → first output, HTTP", first, kernel_times("start") | started, FIRST_TARGET),
            Row("warm call, HTTP", warm, kernel_times("warm"), WARM_TARGET),
            Row("image out, HTTP", image, kernel_times("image")),
            Row("100 MB file in", large_in, kernel_times("large in") | file_times["large in"]),
            Row("100 MB file out", large_out, kernel_times("large out") | file_times["large out"]),
            Row(
                f"{SMALL_FILES:,} small files in, one tar", small_in, kernel_times("small in") | file_times["small in"]
            ),
            Row(
                f"{SMALL_FILES:,} small files out, one tar",
                small_out,
                kernel_times("small out") | file_times["small out"],
            ),
            Row("private memory of an idle container", memory, kernel_times("memory"), IDLE_MEGABYTES_TARGET),
            Row("POST /execute, per run, one client per core", each, started),
            Row(f"{AT_ONCE} concurrent container creations", concurrent, concurrent_peers),
        ],
        [
            "Sandbox: the first code imports numpy, pandas and matplotlib in every case. The pool preforks one",
            "container, and rounds are 50 ms apart: this measures the caller's waiting time, not the total work.",
            "Files: the kernel transfers them as message attachments, the programs through pipes and in a new Python",
            "each time; both on the host's disk, without path checks. Concurrent: each peer has imported",
            "everything and stays alive until all are started.",
        ],
    )


def _kernel_measurements(kernel: dict[str, Any] | str) -> Callable[[str], dict[str, Measurement | str]]:
    def of(what: str) -> dict[str, Measurement | str]:
        if isinstance(kernel, str):
            return {"ipykernel": kernel}
        value = kernel[what]
        return {"ipykernel": Measurement(value, value, "MB") if what == "memory" else Measurement.from_samples(value)}

    return of


def _concurrent_kernels(kernel: dict[str, Any] | str) -> dict[str, Measurement | str]:
    if isinstance(kernel, str):
        return {"ipykernel": kernel}
    gigabytes = AT_ONCE * kernel["memory"] / 1024
    return {"ipykernel": f"skipped: {AT_ONCE} kernels would need {gigabytes:.0f} GB"}


async def _jail_times(*, prefork: bool) -> Measurement:
    async with Pool(probe(), prefork=prefork) as pool:
        await pool.wait_ready()
        await (await pool.create()).end("warm")
        samples: list[float] = []
        for _ in range(ROUNDS):
            await asyncio.sleep(0.05)
            start_time = time.perf_counter()
            container = await pool.create()
            reply = await container.execute(IMPORTS, timeout=30)
            samples.append(time.perf_counter() - start_time)
            if reply.stdout != "1\n":
                raise RuntimeError(f"the code did not run: {reply}")
            await container.end("measured")
    return Measurement.from_samples(samples)


@contextlib.contextmanager
def _server() -> Iterator[tuple[httpx2.Client, int]]:
    with socket.socket() as sock, tempfile.TemporaryDirectory() as state:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        environment = {**os.environ, "SANDBOX_STATE": state, "SANDBOX_MAX_SESSIONS": "200"}
        environment["SANDBOX_MAX_SESSIONS_PER_TENANT"] = "200"
        process = subprocess.Popen([sys.executable, "-m", "antwort", "sandbox", "--port", str(port)], env=environment)
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                _wait(client)
                yield client, process.pid
        finally:
            process.terminate()
            process.wait()


def _wait(client: httpx2.Client) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx2.TransportError):
            if client.get("/health").status_code == httpx2.codes.OK:
                client.delete(f"/sessions/{_create(client)}")
                return
        time.sleep(0.05)
    raise RuntimeError("the sandbox server did not start")


def _create(client: httpx2.Client) -> str:
    return client.post("/sessions", json={}).raise_for_status().json()["id"]


def _run(client: httpx2.Client, session: str, code: str) -> dict[str, Any]:
    return client.post(f"/sessions/{session}/execute", json={"code": code}).raise_for_status().json()


def _session_times(client: httpx2.Client) -> tuple[Measurement, Measurement, Measurement]:
    first: list[float] = []
    for _ in range(ROUNDS):
        time.sleep(0.05)
        start_time = time.perf_counter()
        session = _create(client)
        result = _run(client, session, IMPORTS)
        first.append(time.perf_counter() - start_time)
        if result["stdout"] != "1\n":
            raise RuntimeError(f"the code did not run: {result}")
        client.delete(f"/sessions/{session}")
    session = _create(client)
    _run(client, session, IMPORTS)
    warm = [_timed(lambda: _run(client, session, "1 + 1")) for _ in range(CALLS)]
    _run(client, session, PLOT)
    image = [_timed(lambda: _run(client, session, PLOT)) for _ in range(IMAGES)]
    client.delete(f"/sessions/{session}")
    return Measurement.from_samples(first), Measurement.from_samples(warm), Measurement.from_samples(image)


def _timed(action: Callable[[], object]) -> float:
    start_time = time.perf_counter()
    action()
    return time.perf_counter() - start_time


def _large() -> bytes:
    return os.urandom(1 << 20) * (LARGE >> 20)


def _small() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for i in range(SMALL_FILES):
            member = tarfile.TarInfo(f"small/{i}.txt")
            member.size = 1_000
            tar.addfile(member, io.BytesIO(b"x" * 1_000))
    return packed.getvalue()


def _file_times(
    client: httpx2.Client, large: bytes, small: bytes
) -> tuple[Measurement, Measurement, Measurement, Measurement]:
    session = _create(client)
    file, archive = f"/sessions/{session}/files/large", f"/sessions/{session}/archive"
    up = [_timed(lambda: client.put(file, content=large).raise_for_status()) for _ in range(3)]
    down = [_timed(lambda: client.get(file).raise_for_status().read()) for _ in range(3)]
    client.delete(file)
    many_up = [_timed(lambda: client.put(archive, content=small).raise_for_status()) for _ in range(3)]
    many_down = [_timed(lambda: client.get(archive).raise_for_status().read()) for _ in range(3)]
    client.delete(f"/sessions/{session}")
    return (
        Measurement.from_samples(up),
        Measurement.from_samples(down),
        Measurement.from_samples(many_up),
        Measurement.from_samples(many_down),
    )


def _idle_megabytes(client: httpx2.Client, server: int) -> Measurement:
    """Private memory per idle container: private pages and page tables of all its processes."""
    before = set(descendants(server))
    sessions = [_create(client) for _ in range(IDLE)]
    time.sleep(1)
    created = set(descendants(server)) - before
    each = sum(map(programs.own_megabytes, created)) / IDLE
    for session in sessions:
        client.delete(f"/sessions/{session}")
    return Measurement(each, each, "MB")


def _executions(client: httpx2.Client) -> Measurement:
    """Time per one-shot run with one client per core; a 429 is retried."""

    def once(_: int) -> None:
        run = {"code": "print(1)"}
        while (answer := client.post("/execute", json=run)).status_code == httpx2.codes.TOO_MANY_REQUESTS:
            time.sleep(0.002)
        result = answer.raise_for_status().json()
        if (result["status"], result["stdout"]) != ("success", "1\n"):
            raise RuntimeError(f"the code did not run: {result}")

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        took = _timed(lambda: list(threads.map(once, range(EXECUTIONS))))
    return Measurement(took / EXECUTIONS, took / EXECUTIONS)


def _concurrent_creations(client: httpx2.Client) -> Measurement:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        sessions: list[str] = []
        took = _timed(lambda: sessions.extend(threads.map(lambda _: _create(client), range(AT_ONCE))))
        list(threads.map(lambda session: client.delete(f"/sessions/{session}"), sessions))
    return Measurement(took, took)
