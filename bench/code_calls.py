"""What a response with one code call takes, and what of it is ours: the real server, the real jail, a dummy model.

The model costs nearly nothing: it calls the tool at once with one line of Python, and answers at once with eight words.
What the same code takes when the sandbox server is asked for it directly is measured beside it, and the processor time
of our own process, which is what we add to it; the rest of the total is the cores that all of them share.

Beside us is LiteLLM's proxy, which can intercept the same tool. It speaks to E2B, a service, and to OpenSandbox, which
needs Docker, so it is given OpenSandbox's protocol over our own sandbox server (`opensandbox.py`): both run the code in
the same jail, and what differs is the way there.
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
from contenders import HERE, RefusedError, Stage, Way, litellm_version, stage
from processes import ENVIRONMENT, NotReadyError, Server, end, serving
from readings import Reading, Row, Suite, Unit, seconds
from upstream import CODE

ROUNDS, DIRECT = 5, 40
AT_ONCE = 50
PEER = "LiteLLM code"
READY = 1.5


def suite() -> Suite:
    """Everything in one run, ours and theirs by turns."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    failure = ""
    with stage() as place, contextlib.ExitStack() as opened:
        ours = opened.enter_context(place.ours(code=True))["code"]
        sandbox = opened.enter_context(_sandbox(place.folder))
        samples["ready", "ours"].append(ours.server.ready_after)
        with httpx2.Client(base_url=f"http://127.0.0.1:{sandbox.port}", timeout=60) as client:
            direct = Reading.of([seconds(lambda: _directly(client)) for _ in range(DIRECT)])
            warm = _warm(client)
        ways: dict[str, Way] = {"ours": ours}
        try:
            ways[PEER] = opened.enter_context(_theirs(place, sandbox))[PEER]
        except NotReadyError as error:
            failure = str(error)
        kept = _kept(ours)
        for number in range(ROUNDS + 1):
            for name, way in [*ways.items(), ("kept", kept)]:
                try:
                    _round(samples, name, way, counted=number > 0)
                except RefusedError as error:
                    if name != PEER:
                        raise
                    failure = str(error)
                    ways.pop(PEER, None)
                    break
    return Suite(_rows(samples, direct, warm, failure), [f"Code, beside LiteLLM {litellm_version()}:", *NOTES])


NOTES = [
    "  one line of Python, a model that calls it at once, two requests to that model, everything stored by us.",
    "  LiteLLM's sandboxes are ours, too: E2B is a service and OpenSandbox needs Docker. It deletes each one, we",
    "  keep containers for twenty minutes and let the oldest go when there are more than 32. It is asked for chat",
    "  completions: over such a model its /responses hands the call back to the client instead of running it.",
]


def _round(samples: dict[tuple[str, str], list[float]], name: str, way: Way, *, counted: bool) -> None:
    """One after another, then many at once."""
    for what, at_once in (("one", 1), ("many", AT_ONCE)):
        before, own = way.server.cpu(), way.server.own_cpu()
        outcome = way.ask("coder", at_once=at_once)
        if counted:
            samples[what, name].append(median(outcome["heard"][-1]))
            samples[f"{what} rate", name].append(outcome["answered"] / outcome["seconds"])
            samples[f"{what} cpu", name].append((way.server.cpu() - before) / outcome["answered"])
            samples[f"{what} own", name].append((way.server.own_cpu() - own) / outcome["answered"])


def _rows(samples: Mapping[tuple[str, str], list[float]], direct: Reading, warm: Reading, failure: str) -> list[Row]:
    def theirs(what: str, unit: Unit = "s") -> dict[str, Reading | str]:
        taken = samples.get((what, PEER))
        return {PEER: Reading.of(taken, unit) if taken else failure or "it failed before"}

    def ours(what: str, name: str = "ours", unit: Unit = "s") -> Reading:
        return Reading.of(samples[what, name], unit)

    return [
        Row("response with a code call, new container", ours("one"), theirs("one")),
        Row("  the sandbox alone, asked directly", direct),
        Row("  CPU of the server's own process", ours("one own"), theirs("one own")),
        Row("response with a code call, kept container", ours("one", "kept")),
        Row("  the sandbox alone, asked directly", warm),
        Row("  CPU of the server's own process", ours("one own", "kept")),
        Row(f"the same, new containers, {AT_ONCE} at once", ours("many"), theirs("many")),
        Row(f"such responses, {AT_ONCE} at once", ours("many rate", unit="/s"), theirs("many rate", "/s")),
        Row("CPU of one, sandbox and all", ours("one cpu")),
        Row("start to ready, with the jail tried", ours("ready"), target=READY),
    ]


# ── the sandbox alone ────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _sandbox(folder: Path) -> Iterator[Server]:
    """A sandbox server of its own: to be asked directly, and for LiteLLM's calls."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        environment = {"SANDBOX_STATE": place, "SANDBOX_MAX_SESSIONS": "256", "SANDBOX_MAX_SESSIONS_PER_TENANT": "256"}
        command = [sys.executable, "-m", "antwort", "sandbox", "--port", "{port}"]
        with serving(command, ready="/health", log=folder / "sandbox.log", environment=environment) as server:
            yield server


def _directly(client: httpx2.Client) -> None:
    """What a response asks of it: a session, a run, a look at its files."""
    name = client.post("/sessions", json={"memory": "1g"}).raise_for_status().json()["id"]
    _run(client, name)
    client.delete(f"/sessions/{name}")


def _run(client: httpx2.Client, name: str) -> None:
    client.post(f"/sessions/{name}/execute", json={"code": CODE}).raise_for_status()
    client.get(f"/sessions/{name}/files").raise_for_status()


def _warm(client: httpx2.Client) -> Reading:
    name = client.post("/sessions", json={"memory": "1g"}).raise_for_status().json()["id"]
    _run(client, name)
    reading = Reading.of([seconds(lambda: _run(client, name)) for _ in range(DIRECT)])
    client.delete(f"/sessions/{name}")
    return reading


# ── the servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _kept(way: Way) -> Way:
    """The same server, asked for one container by its id."""
    headers = {"authorization": f"Bearer {way.key}"}
    url = f"http://127.0.0.1:{way.server.port}/v1/containers"
    made = httpx2.post(url, json={"name": "bench"}, headers=headers, timeout=60).raise_for_status().json()
    body = {**way.body, "tools": [{"type": "code_interpreter", "container": made["id"]}]}
    return Way(way.server, way.key, way.path, body)


@contextlib.contextmanager
def _theirs(place: Stage, sandbox: Server) -> Iterator[dict[str, Way]]:
    command = [sys.executable, str(HERE / "opensandbox.py"), f"http://127.0.0.1:{sandbox.port}"]
    bridge = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert bridge.stdout is not None  # noqa: S101 - it was asked for
    with bridge.stdout as lines:
        try:
            port = int(lines.readline())
            _wait(port)
            with place.litellm(f"http://127.0.0.1:{port}") as ways:
                yield ways
        finally:
            end(bridge)


def _wait(port: int) -> None:
    """It listens before it answers."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"http://127.0.0.1:{port}/sandboxes/x/endpoints/1").raise_for_status()
        except httpx2.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise NotReadyError("the bridge to the sandbox was not ready")
