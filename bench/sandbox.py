"""How long an isolated Python takes to be there, to answer, and to hand files in and out.

Ours is the real server, as a process of its own, over HTTP on loopback; the jail alone is measured beside it. The
peers start what people use instead: a Jupyter kernel, `bubblewrap python -c`, and plain `python -c`.
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
from peer_process import PeerFailedError, ask
from readings import Reading, Row, Suite

from antwort.sandbox import Pool, probe
from antwort.sandbox.host.process import descendants

FIRST_IN_THE_JAIL, FIRST, WARM, IDLE_MEGABYTES = 0.015, 0.025, 0.0015, 8
IMPORTS = "import numpy, pandas, matplotlib.pyplot as plt\nprint(1)"
PLOT = "plt.plot([1, 2, 3])\nNone"
ROUNDS, CALLS, IMAGES, IDLE, AT_ONCE, EXECUTIONS = 40, 300, 10, 20, 100, 150
LARGE = 100 << 20
SMALL_FILES = 1_000


def suite() -> Suite:
    """Everything in one run, the peers in between."""
    kernel: dict[str, Any] | str
    try:
        kernel = ask("ipykernel_calls")
    except PeerFailedError as error:
        kernel = str(error)
    started = programs.starts(IMPORTS)
    large, small = _large(), _small()
    passed = programs.files(large, small)
    theirs = _theirs(kernel)
    jail = asyncio.run(_in_the_jail(ahead=True))
    cold = asyncio.run(_in_the_jail(ahead=False))
    with _server() as (client, server):
        first, warm, image = _session_times(client)
        large_in, large_out, small_in, small_out = _file_times(client, large, small)
        memory = _idle_megabytes(client, server)
        each = _executions(client)
        at_once = _at_once(client)
    crowd = _crowd_of_kernels(kernel) | programs.at_once(IMPORTS, AT_ONCE)
    return Suite(
        [
            Row("create → first output, jail alone", jail, theirs("start") | started, FIRST_IN_THE_JAIL),
            Row("the same, nothing forked ahead", cold, theirs("start") | started),
            Row("create → first output, HTTP", first, theirs("start") | started, FIRST),
            Row("warm call, HTTP", warm, theirs("warm"), WARM),
            Row("image out, HTTP", image, theirs("image")),
            Row("100 MB file in", large_in, theirs("large in") | passed["large in"]),
            Row("100 MB file out", large_out, theirs("large out") | passed["large out"]),
            Row(f"{SMALL_FILES:,} small files in, one tar", small_in, theirs("small in") | passed["small in"]),
            Row(f"{SMALL_FILES:,} small files out, one tar", small_out, theirs("small out") | passed["small out"]),
            Row("own memory of an idle container", memory, theirs("memory"), IDLE_MEGABYTES),
            Row("POST /execute, per run, all cores", each, started),
            Row(f"{AT_ONCE} containers created at once", at_once, crowd),
        ],
        [
            "Sandbox: numpy, pandas and matplotlib are imported by the first code in every case. The pool keeps one",
            "container forked ahead, and rounds are 50 ms apart: what a caller waits for, not all the work there is.",
            "Files: a kernel takes and gives them as attachments of its messages, the programs through their pipes and",
            "each time in a new Python; both on the host's own disk, and no name is checked. At once: each peer with",
            "everything imported, and none ends before all are there.",
        ],
    )


def _theirs(kernel: dict[str, Any] | str) -> Callable[[str], dict[str, Reading | str]]:
    def of(what: str) -> dict[str, Reading | str]:
        if isinstance(kernel, str):
            return {"ipykernel": kernel}
        value = kernel[what]
        return {"ipykernel": Reading(value, value, "MB") if what == "memory" else Reading.of(value)}

    return of


def _crowd_of_kernels(kernel: dict[str, Any] | str) -> dict[str, Reading | str]:
    if isinstance(kernel, str):
        return {"ipykernel": kernel}
    gigabytes = AT_ONCE * kernel["memory"] / 1024
    return {"ipykernel": f"not tried: {AT_ONCE} kernels would hold {gigabytes:.0f} GB"}


async def _in_the_jail(*, ahead: bool) -> Reading:
    async with Pool(probe(), prefork=ahead) as pool:
        await pool.wait_ready()
        await (await pool.create()).end("warm")
        samples: list[float] = []
        for _ in range(ROUNDS):
            await asyncio.sleep(0.05)
            begun = time.perf_counter()
            container = await pool.create()
            reply = await container.execute(IMPORTS, timeout=30)
            samples.append(time.perf_counter() - begun)
            if reply.stdout != "1\n":
                raise RuntimeError(f"the code did not run: {reply}")
            await container.end("measured")
    return Reading.of(samples)


@contextlib.contextmanager
def _server() -> Iterator[tuple[httpx2.Client, int]]:
    with socket.socket() as chosen, tempfile.TemporaryDirectory() as state:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
        chosen.close()
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


def _session_times(client: httpx2.Client) -> tuple[Reading, Reading, Reading]:
    first: list[float] = []
    for _ in range(ROUNDS):
        time.sleep(0.05)
        begun = time.perf_counter()
        session = _create(client)
        seen = _run(client, session, IMPORTS)
        first.append(time.perf_counter() - begun)
        if seen["stdout"] != "1\n":
            raise RuntimeError(f"the code did not run: {seen}")
        client.delete(f"/sessions/{session}")
    session = _create(client)
    _run(client, session, IMPORTS)
    warm = [_timed(lambda: _run(client, session, "1 + 1")) for _ in range(CALLS)]
    _run(client, session, PLOT)
    image = [_timed(lambda: _run(client, session, PLOT)) for _ in range(IMAGES)]
    client.delete(f"/sessions/{session}")
    return Reading.of(first), Reading.of(warm), Reading.of(image)


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


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


def _file_times(client: httpx2.Client, large: bytes, small: bytes) -> tuple[Reading, Reading, Reading, Reading]:
    session = _create(client)
    file, archive = f"/sessions/{session}/files/large", f"/sessions/{session}/archive"
    up = [_timed(lambda: client.put(file, content=large).raise_for_status()) for _ in range(3)]
    down = [_timed(lambda: client.get(file).raise_for_status().read()) for _ in range(3)]
    client.delete(file)
    many_up = [_timed(lambda: client.put(archive, content=small).raise_for_status()) for _ in range(3)]
    many_down = [_timed(lambda: client.get(archive).raise_for_status().read()) for _ in range(3)]
    client.delete(f"/sessions/{session}")
    return Reading.of(up), Reading.of(down), Reading.of(many_up), Reading.of(many_down)


def _idle_megabytes(client: httpx2.Client, server: int) -> Reading:
    """What idle containers hold alone (private pages and page tables of all their processes), each."""
    before = set(descendants(server))
    sessions = [_create(client) for _ in range(IDLE)]
    time.sleep(1)
    theirs = set(descendants(server)) - before
    each = sum(map(programs.own_megabytes, theirs)) / IDLE
    for session in sessions:
        client.delete(f"/sessions/{session}")
    return Reading(each, each, "MB")


def _executions(client: httpx2.Client) -> Reading:
    """One-shot runs with a client for each core, per run; one that is turned away asks again."""

    def once(_: int) -> None:
        run = {"code": "print(1)"}
        while (answer := client.post("/execute", json=run)).status_code == httpx2.codes.TOO_MANY_REQUESTS:
            time.sleep(0.002)
        seen = answer.raise_for_status().json()
        if (seen["status"], seen["stdout"]) != ("success", "1\n"):
            raise RuntimeError(f"the code did not run: {seen}")

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        took = _timed(lambda: list(threads.map(once, range(EXECUTIONS))))
    return Reading(took / EXECUTIONS, took / EXECUTIONS)


def _at_once(client: httpx2.Client) -> Reading:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        sessions: list[str] = []
        took = _timed(lambda: sessions.extend(threads.map(lambda _: _create(client), range(AT_ONCE))))
        list(threads.map(lambda session: client.delete(f"/sessions/{session}"), sessions))
    return Reading(took, took)
