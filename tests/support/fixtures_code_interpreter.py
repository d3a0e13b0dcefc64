"""Fixtures for the code interpreter: the real server with each sandbox backend, and a scripted model.

A user's text that begins with `# run` is Python, which the scripted model runs; other texts have scripts of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fixtures_sandbox_server import sandbox_server
from fixtures_server import Server, run_server

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]
BACKENDS = ["local", "sandbox_url", pytest.param("claims", marks=pytest.mark.kubernetes)]
"""`claims`: with `make test-kubernetes`."""
LOCAL_FIRST = ["local", pytest.param("sandbox_url", marks=pytest.mark.long), BACKENDS[2]]
"""For tests that take long: `sandbox_url` with `make test-long`."""

CHART = """\
import pandas as pd, matplotlib.pyplot as plt
table = pd.read_csv('/mnt/data/sales.csv')
table.groupby('city').sum().to_csv('/mnt/data/totals.csv')
table.plot(x='city', y='sold', kind='bar')
plt.savefig('/mnt/data/chart.png')
plt.show()
int(table.sold.sum())
"""


def call(code: str, **more: Any) -> dict[str, Any]:
    return {"call": {"name": "code_interpreter", "arguments": {"code": code, **more}}}


def _when(text: str, turn: int, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": list(reply)}


SCRIPT = {
    "fragment": 7,
    "answers": [
        _when("/^# run/", 1, call("<<text>>")),
        _when("/^# run/", 2, {"text": "<<output>>"}),
        _when("analyse", 1, {"reasoning": "I look at the file."}, call(CHART)),
        _when(
            "analyse",
            2,
            {"text": "Grüße 🎈! See [the chart](sandbox:/mnt/data/chart.png) and totals.csv."},
        ),
        _when("twice", 1, call("x = 20"), call("y = x + 1")),
        _when("twice", 2, call("x, y")),
        _when("twice", 3, {"text": "<<output>>"}),
        _when("both", 1, call("6 * 7"), {"call": {"name": "get_weather", "arguments": {"city": "Berlin"}}}),
        {"when": {"text": "both", "output": "21 degrees"}, "reply": [call("degrees = 21; degrees * 2")]},
        {"when": {"text": "both", "output": "42"}, "reply": [{"text": '{"degrees": 21}'}]},
        _when("broken", 1, {"call": {"name": "code_interpreter", "arguments": '{"code": "print(1)'}}),
        _when("broken", 2, call("'repaired'")),
        _when("broken", 3, {"text": "<<output>>"}),
        _when("nothing", 1, {"text": "I need no code."}),
        {"reply": [{"text": "You said: <<text>>"}]},
    ],
}


@contextmanager
def code_server(
    backend: str,
    directory: Path,
    settings: dict[str, Any] | None = None,
    script: dict[str, Any] | None = None,
    web_search: dict[str, Any] | None = None,
    mcp: dict[str, Any] | None = None,
    **config: Any,
) -> Iterator[Server]:
    """A server with this sandbox backend. `settings` are those of the code interpreter."""
    config["web_search"], config["mcp"] = web_search or {}, mcp or {"enabled": False}
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    environment = {"TMPDIR": str(scratch)}
    if backend == "local":
        with run_server(
            directory, _config(settings, config), environment=environment, script=script or SCRIPT
        ) as server:
            yield server
        return
    if backend == "claims":
        with _claiming_server(directory, settings, script or SCRIPT, config, environment) as server:
            yield server
        return
    (directory / "elsewhere").mkdir()
    with sandbox_server(directory / "elsewhere", environment) as sandbox:
        given = {"sandbox_url": sandbox.url, "sandbox_token_env": "SANDBOX_KEY", **(settings or {})}
        environment |= {"SANDBOX_KEY": sandbox.token}
        with run_server(directory, _config(given, config), environment=environment, script=script or SCRIPT) as server:
            server.sandbox = sandbox
            yield server


@contextmanager
def _claiming_server(
    directory: Path,
    settings: dict[str, Any] | None,
    script: dict[str, Any],
    config: dict[str, Any],
    environment: dict[str, str],
) -> Iterator[Server]:
    from fixtures_claims import claim_cluster  # noqa: PLC0415 - needs the extra `kubernetes`

    with claim_cluster(directory / "cluster") as cluster:
        given = {**cluster.settings("python"), **(settings or {})}
        with run_server(directory, _config(given, config), environment=environment, script=script) as server:
            server.cluster = cluster
            server.timeout = 120.0  # many pods at once start slowly
            yield server
        cluster.wait_until_empty()


def _config(settings: dict[str, Any] | None, config: dict[str, Any]) -> dict[str, Any]:
    web_search, mcp = config.pop("web_search"), config.pop("mcp")
    providers = {"code_interpreter": {"enabled": True, **(settings or {})}, "web_search": web_search, "mcp": mcp}
    return {"providers": providers, **config}


def calls_of(response: Any) -> list[Any]:
    """The items of the code interpreter calls."""
    return [item for item in response.output if item.type == "code_interpreter_call"]


def logs_of(item: Any) -> str:
    """The logs of a call."""
    return "".join(output.logs for output in item.outputs if output.type == "logs")


def run(client: Any, code: str, **more: Any) -> Any:
    """Let the model run this code."""
    request = {"model": "scripted", "input": f"# run\n{code}", "tools": [AUTO], "include": OUTPUTS, **more}
    return client.responses.create(**request)


def run_with_callback(client: Any, code: str, callback: Callable[[], object], **more: Any) -> Any:
    """Let the model run this code, and call `callback` while it runs; the final response of the stream."""
    include = [*OUTPUTS, "antwort:code_interpreter_call.live_output"]
    text = f"# run\nprint('begun', flush=True)\n{code}"
    request = {"model": "scripted", "input": text, "tools": [AUTO], "include": include, **more}
    last = None
    with client.responses.create(**request, stream=True) as stream:
        for last in stream:
            if last.type.startswith("antwort:"):
                callback()
    assert last is not None
    return last.response


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def sandbox_pid(server: Server) -> int:
    """The pid of the sandbox server; with claims, that of the newest pod."""
    if server.sandbox is not None:
        return server.sandbox.process.pid
    if server.cluster is not None:
        return server.cluster.newest_pod().process.pid
    (child,) = [pid for pid in descendants(server.process.pid) if _parent(pid) == server.process.pid]
    return child


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0  # it has ended meanwhile
    return int(stat.rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")


def metric(server: Server, name: str) -> float:
    """The sum of a metric's samples."""
    page = httpx2.get(f"{server.url}/metrics", trust_env=False).text
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.partition("{")[0].split()[:1] == [name]
    )
