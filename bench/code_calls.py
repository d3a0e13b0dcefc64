"""Benchmark: response with one code interpreter call, real server and sandbox, dummy model, with LiteLLM as peer.

The model costs nearly no time: it calls the tool with one line of Python, and then answers with eight words. For
comparison, direct requests to the sandbox server run the same code, and the CPU time of the server's own process is
measured, which is the overhead of the server; the rest of the total is CPU contention.

The peer is LiteLLM's proxy, which can intercept the same tool. It supports E2B, a service, and OpenSandbox, which
needs Docker, so it gets OpenSandbox's protocol over `antwort sandbox` (`opensandbox.py`): both run the code in
the same sandbox.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import httpx2
from compared_servers import HERE, ComparedServers, Endpoint, LoadFailedError, compared_servers, litellm_version
from measurements import Measurement, Row, Suite, Unit, measure_seconds
from processes import ENVIRONMENT, ServerNotReadyError, ServerProcess, serving, stop
from upstream import CODE

ROUNDS, SANDBOX_CALLS = 5, 40
AT_ONCE = 50
PEER = "LiteLLM code"
READY_TARGET = 1.5


def suite() -> Suite:
    """All measurements in one run; antwort and LiteLLM alternate."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    failure = ""
    with compared_servers() as servers, contextlib.ExitStack() as opened:
        antwort = opened.enter_context(servers.start_antwort(code=True))["code"]
        sandbox = opened.enter_context(_sandbox_server(servers.folder))
        samples["ready", "antwort"].append(antwort.server.ready_after)
        with httpx2.Client(base_url=f"http://127.0.0.1:{sandbox.port}", timeout=60) as client:
            direct = Measurement.from_samples(
                [measure_seconds(lambda: _sandbox_call_in_new_session(client)) for _ in range(SANDBOX_CALLS)]
            )
            warm = _measure_warm_session(client)
        endpoints: dict[str, Endpoint] = {"antwort": antwort}
        try:
            endpoints[PEER] = opened.enter_context(_litellm_with_sandbox(servers, sandbox))[PEER]
        except ServerNotReadyError as error:
            failure = str(error)
        existing = _with_fixed_container(antwort)
        for number in range(ROUNDS + 1):
            for name, endpoint in [*endpoints.items(), ("existing", existing)]:
                try:
                    _round(samples, name, endpoint, counted=number > 0)
                except LoadFailedError as error:
                    if name != PEER:
                        raise
                    failure = str(error)
                    endpoints.pop(PEER, None)
                    break
    return Suite(_rows(samples, direct, warm, failure), [f"Code, beside LiteLLM {litellm_version()}:", *NOTES])


NOTES = [
    "  one line of Python, two requests to a dummy model; antwort stores every response.",
    "  LiteLLM uses antwort's sandbox server: E2B is a service and OpenSandbox needs Docker. LiteLLM deletes each,",
    "  antwort keeps containers for 20 minutes and evicts the least recently used above 32. LiteLLM gets chat",
    "  completions requests: with such a model its /responses returns the call to the client instead of running it.",
]


def _round(samples: dict[tuple[str, str], list[float]], name: str, endpoint: Endpoint, *, counted: bool) -> None:
    """One connection, then many."""
    for what, at_once in (("one", 1), ("many", AT_ONCE)):
        before, own = endpoint.server.cpu_seconds(), endpoint.server.own_cpu_seconds()
        outcome = endpoint.run_load("coder", at_once=at_once)
        if counted:
            samples[what, name].append(median(outcome["mark_seconds"][-1]))
            samples[f"{what} rate", name].append(outcome["responses"] / outcome["seconds"])
            samples[f"{what} cpu", name].append((endpoint.server.cpu_seconds() - before) / outcome["responses"])
            samples[f"{what} own", name].append((endpoint.server.own_cpu_seconds() - own) / outcome["responses"])


def _rows(
    samples: Mapping[tuple[str, str], list[float]], direct: Measurement, warm: Measurement, failure: str
) -> list[Row]:
    def litellm(what: str, unit: Unit = "s") -> dict[str, Measurement | str]:
        taken = samples.get((what, PEER))
        return {PEER: Measurement.from_samples(taken, unit) if taken else failure or "failed before"}

    def antwort(what: str, name: str = "antwort", unit: Unit = "s") -> Measurement:
        return Measurement.from_samples(samples[what, name], unit)

    return [
        Row("response with a code call, new container", antwort("one"), litellm("one")),
        Row("  sandbox server only", direct),
        Row("  CPU of the server's own process", antwort("one own"), litellm("one own")),
        Row("response with a code call, existing container", antwort("one", "existing")),
        Row("  sandbox server only", warm),
        Row("  CPU of the server's own process", antwort("one own", "existing")),
        Row(f"response with a code call, new container, {AT_ONCE} concurrent", antwort("many"), litellm("many")),
        Row(
            f"such responses per second, {AT_ONCE} concurrent",
            antwort("many rate", unit="/s"),
            litellm("many rate", "/s"),
        ),
        Row("CPU of one response, with its sandbox", antwort("one cpu")),
        Row("start to ready, with sandbox check", antwort("ready"), target=READY_TARGET),
    ]


# ── sandbox server only ───────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _sandbox_server(folder: Path) -> Iterator[ServerProcess]:
    """A sandbox server for the direct requests and for LiteLLM's calls."""
    with tempfile.TemporaryDirectory(dir=folder) as state:
        limits = dict.fromkeys(("SANDBOX_MAX_SESSIONS", "SANDBOX_MAX_SESSIONS_PER_TENANT"), "256")
        environment = {"SANDBOX_STATE": state, **limits}
        command = [sys.executable, "-m", "antwort", "sandbox", "--port", "{port}"]
        with serving(command, ready="/health", log=folder / "sandbox.log", environment=environment) as server:
            yield server


def _sandbox_call_in_new_session(client: httpx2.Client) -> None:
    """The requests of one response: create a session, run code, list files, delete the session."""
    name = client.post("/sessions", json={"memory": "1g"}).raise_for_status().json()["id"]
    _run(client, name)
    client.delete(f"/sessions/{name}")


def _run(client: httpx2.Client, name: str) -> None:
    client.post(f"/sessions/{name}/execute", json={"code": CODE}).raise_for_status()
    client.get(f"/sessions/{name}/files").raise_for_status()


def _measure_warm_session(client: httpx2.Client) -> Measurement:
    name = client.post("/sessions", json={"memory": "1g"}).raise_for_status().json()["id"]
    _run(client, name)
    reading = Measurement.from_samples([measure_seconds(lambda: _run(client, name)) for _ in range(SANDBOX_CALLS)])
    client.delete(f"/sessions/{name}")
    return reading


# ── the servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_fixed_container(endpoint: Endpoint) -> Endpoint:
    """The same endpoint, with the id of an existing container in the request."""
    headers = {"authorization": f"Bearer {endpoint.key}"}
    url = f"http://127.0.0.1:{endpoint.server.port}/v1/containers"
    made = httpx2.post(url, json={"name": "bench"}, headers=headers, timeout=60).raise_for_status().json()
    body = {**endpoint.body, "tools": [{"type": "code_interpreter", "container": made["id"]}]}
    return Endpoint(endpoint.server, endpoint.key, endpoint.path, body)


@contextlib.contextmanager
def _litellm_with_sandbox(servers: ComparedServers, sandbox: ServerProcess) -> Iterator[dict[str, Endpoint]]:
    command = [sys.executable, str(HERE / "opensandbox.py"), f"http://127.0.0.1:{sandbox.port}"]
    bridge = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert bridge.stdout is not None  # noqa: S101 - stdout is a pipe
    with bridge.stdout as lines:
        try:
            port = int(lines.readline())
            _wait(port)
            with servers.start_litellm(f"http://127.0.0.1:{port}") as endpoints:
                yield endpoints
        finally:
            stop(bridge)


def _wait(port: int) -> None:
    """Wait until the bridge answers; it listens earlier."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"http://127.0.0.1:{port}/sandboxes/x/endpoints/1").raise_for_status()
        except httpx2.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise ServerNotReadyError("the bridge to the sandbox server was not ready")
