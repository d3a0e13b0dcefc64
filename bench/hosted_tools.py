"""Benchmark: response with one call of each hosted tool: our share of the call, and its CPU time in the server.

A case is a tool with a call of it, and, where something outside of this project does a part of the work, a direct
request for that part. The model is scripted and all responses are stored, so that nearly all of the time is the
server's own. A response without the call and the external part are measured in the same rounds, and subtracted: what is
left is our share, with the sandbox where the tool has one.

To add a tool, write a function that returns its `ToolCase`, and add it to `CASES`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import shop_server
from measurements import Measurement, Row, Suite, measure_seconds
from processes import ServerProcess, serving

CALLS = 60
WARM_UP = 5
PAGE = (
    "<title>Tea {0}</title><main><h1>Tea {0}</h1>" + "<p>Oolong is a tea between green and black.</p>" * 200 + "</main>"
)


@dataclass(frozen=True)
class Environment:
    """What the cases share: a folder, the port of a plain HTTP server with the files of `web`, and an MCP server."""

    web: Path
    port: int
    shop_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class ToolCase:
    """A hosted tool, and a call of it. `NUMBER` in the arguments is another number in each round."""

    name: str
    declaration: dict[str, Any]
    function: str
    arguments: dict[str, Any]
    config: dict[str, Any]
    """Of the server, beside models and storage."""
    item_types: tuple[str, ...]
    """The types of the output items, after those of `opening_types`."""
    opening_types: tuple[str, ...] = ()
    """The types of the output items with which a response begins also without a call."""
    external: Callable[[httpx2.Client, int], object] | None = None
    """The part of the call that other software does, as a direct request."""
    external_name: str = ""
    target: float | None = None
    """Of our share, in seconds."""
    share_name: str = field(default="our share of the call")


# ── the cases ────────────────────────────────────────────────────────────────────────────────────────────────────────


def search(environment: Environment) -> ToolCase:
    """A search with a SearXNG-shaped server: checked results, cache, item, events and storage."""
    found = [{"url": f"{environment.url}/{n}.html", "title": f"Tea {n}", "content": "Oolong. " * 30} for n in range(10)]
    (environment.web / "search").write_text(json.dumps({"query": "tea", "results": found}), encoding="utf-8")
    return ToolCase(
        name="web_search, SearXNG",
        declaration={"type": "web_search"},
        function="web_search",
        arguments={"queries": ["tea"]},
        config=_searxng(environment),
        item_types=("web_search_call", "message"),
        external=lambda web, _: web.get("/search?q=tea&format=json").raise_for_status(),
        external_name="search engine only",
        target=0.02,
    )


def saved_pages(environment: Environment) -> ToolCase:
    """A search with the local engine: nothing is outside."""
    folder = environment.web.parent / "pages" / "tea.example"
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number}.md").write_text(f"# Tea {number}\n" + "Oolong is a tea. " * 100, encoding="utf-8")
    return ToolCase(
        name="web_search, 200 saved pages",
        declaration={"type": "web_search"},
        function="web_search",
        arguments={"queries": ["tea"]},
        config={"providers": {"web_search": {"engine": "local", "folder": str(folder.parent)}}},
        item_types=("web_search_call", "message"),
    )


def opened_page(environment: Environment) -> ToolCase:
    """A page that is not in the cache: guarded fetch, and text extraction in a new sandbox."""
    for number in range(CALLS + WARM_UP):
        (environment.web / f"{number}.html").write_text(PAGE.format(number), encoding="utf-8")
    return ToolCase(
        name="web_search, page that is not cached",
        declaration={"type": "web_search"},
        function="open_page",
        arguments={"url": f"{environment.url}/NUMBER.html"},
        config=_searxng(environment),
        item_types=("web_search_call", "message"),
        external=lambda web, number: web.get(f"/{number}.html").raise_for_status(),
        external_name="page only",
        target=0.15,
        share_name="our share of the call, with the sandbox",
    )


def patch(_: Environment) -> ToolCase:
    """A patch for the client: the diff is checked, and sent as its own item and events."""
    lines = "".join(f" line {number}\n" for number in range(100))
    diff = f"@@\n{lines}-old\n+new\n"
    return ToolCase(
        name="apply_patch, 100 lines, run by the client",
        declaration={"type": "apply_patch"},
        function="apply_patch",
        arguments={"type": "update_file", "path": "app.py", "diff": diff},
        config={},
        item_types=("apply_patch_call",),
    )


def code(_: Environment) -> ToolCase:
    """One line of Python in a new container; `code` compares that with the sandbox server alone, and with a peer."""
    return ToolCase(
        name="code_interpreter, new container",
        declaration={"type": "code_interpreter", "container": {"type": "auto"}},
        function="code_interpreter",
        arguments={"code": "print(6 * 7)"},
        config={},
        item_types=("code_interpreter_call", "message"),
        share_name="our share of the call, with the sandbox",
    )


def commands(_: Environment) -> ToolCase:
    """Two commands in a new container."""
    return ToolCase(
        name="shell, two commands, new container",
        declaration={"type": "shell", "environment": {"type": "container_auto"}},
        function="shell",
        arguments={"commands": ["seq 100 > numbers.txt", "awk '{ sum += $1 } END { print sum }' numbers.txt"]},
        config={},
        item_types=("shell_call", "shell_call_output", "message"),
        share_name="our share of the call, with the sandbox",
    )


def mcp(environment: Environment) -> ToolCase:
    """A call of a tool of an MCP server, in a session that is open, with a cached list of its tools."""
    url = f"http://127.0.0.1:{environment.shop_port}/mcp"
    arguments = {"amount": 250, "from_currency": "USD", "to_currency": "SEK"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "convert", "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream"}
    label = shop_server.LABEL
    return ToolCase(
        name="mcp, streamable HTTP",
        declaration={"type": "mcp", "server_label": label, "server_url": url, "require_approval": "never"},
        function=f"{label}__convert",
        arguments=arguments,
        config={},
        opening_types=("mcp_list_tools",),
        item_types=("mcp_call", "message"),
        external=lambda web, _: web.post(url, json=request, headers=headers).raise_for_status(),
        external_name="MCP server only",
    )


CASES: tuple[Callable[[Environment], ToolCase], ...] = (search, saved_pages, opened_page, code, commands, mcp, patch)
"""The order of the table."""


def _searxng(environment: Environment) -> dict[str, Any]:
    return {
        "providers": {"web_search": {"engine": "searxng", "url": environment.url}},
        "fetch": {"allow_networks": ["127.0.0.1/32"], "ports": [environment.port]},
    }


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def suite() -> Suite:
    """All cases, each with a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        web = Path(name) / "web"
        web.mkdir()
        command = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", web]
        shop_command = [sys.executable, shop_server.__file__, "{port}"]
        with (
            serving(command, ready="/", log=Path(name) / "web.log") as site,
            serving(shop_command, ready=shop_server.READY, log=Path(name) / "shop.log") as shop,
        ):
            environment = Environment(web, site.port, shop.port)
            rows = [row for number, case in enumerate(CASES) for row in _rows(case(environment), web.parent, number)]
    return Suite(rows, NOTES)


NOTES = [
    "Hosted tools: scripted model, all responses are stored; search engine and page are files of a plain HTTP server",
    "on loopback, the MCP server is one of the SDK. Our share: a response with the call, less one without it and less",
    "the external part, in turns.",
]


def _rows(case: ToolCase, folder: Path, number: int) -> list[Row]:
    state = folder / f"case-{number}"
    state.mkdir()
    config = _write_config(case, state)
    serve = [sys.executable, "-m", "antwort", "serve", "--config", config, "--port", "{port}"]
    web_url = f"http://127.0.0.1:{case.config['fetch']['ports'][0]}" if "fetch" in case.config else ""
    with (
        serving(serve, ready="/readyz", log=state / "antwort.log") as antwort,
        httpx2.Client(base_url=f"http://127.0.0.1:{antwort.port}", timeout=60, trust_env=False) as client,
        httpx2.Client(base_url=web_url, trust_env=False) as web,
    ):
        samples: dict[str, list[float]] = defaultdict(list)
        for at in range(WARM_UP + CALLS):
            taken = _round(case, client, web, antwort, at)
            for name, seconds in taken.items() if at >= WARM_UP else ():
                samples[name].append(seconds)
    measured = {name: Measurement.from_samples(values) for name, values in samples.items()}
    external = [Row(f"  {case.external_name}", measured["external"])] if case.external is not None else []
    share = _less(measured["with"], measured["plain"], measured["external"])
    return [
        Row(f"response with {case.name}", measured["with"]),
        Row("  without a call", measured["plain"]),
        *external,
        Row(f"  {case.share_name}", share, target=case.target),
        Row("  CPU of the call in the server's own process", _less(measured["with cpu"], measured["plain cpu"])),
    ]


def _less(whole: Measurement, *parts: Measurement) -> Measurement:
    """What is left of the median and of the best value. Differences of single rounds would mostly show the machine."""
    return Measurement(whole.p50 - sum(part.p50 for part in parts), whole.best - sum(part.best for part in parts))


def _round(
    case: ToolCase, client: httpx2.Client, web: httpx2.Client, antwort: ServerProcess, number: int
) -> dict[str, float]:
    """Each request once, in turns, so that a busy machine slows all of them."""
    external = case.external
    taken = {"external": 0.0 if external is None else measure_seconds(lambda: external(web, number))}
    for name, text, items in (("plain", "hello", ("message",)), ("with", f"call {number}", case.item_types)):
        before = antwort.own_cpu_seconds()
        taken[name] = measure_seconds(lambda text=text, items=items: _respond(case, client, text, items))
        taken[f"{name} cpu"] = antwort.own_cpu_seconds() - before
    return taken


def _respond(case: ToolCase, client: httpx2.Client, text: str, items: tuple[str, ...]) -> None:
    items = (*case.opening_types, *items)
    response = client.post("/v1/responses", json={"input": text, "tools": [case.declaration]}).raise_for_status()
    found = [(item["type"], item.get("status", "completed")) for item in response.json()["output"]]
    if found != [(kind, "completed") for kind in items]:
        raise RuntimeError(f"the response is not as expected: {response.text}")


def _write_config(case: ToolCase, state: Path) -> Path:
    arguments = json.loads(json.dumps(case.arguments).replace("NUMBER", "<<find /\\\\d+/>>"))
    call = {"call": {"name": case.function, "arguments": arguments}}
    script = {
        "answers": [
            {"when": {"text": "call", "turn": 1}, "reply": [call]},
            {"reply": [{"text": "Tea costs 12 euros [1]."}]},
        ]
    }
    (state / "script.yaml").write_text(json.dumps(script), encoding="utf-8")
    config = {
        "models": {"scripted": {"kind": "scripted", "script": str(state / "script.yaml")}},
        "storage": {"url": f"sqlite:///{state}/state/antwort.db", "blobs": f"{state}/state/blobs"},
        **case.config,
    }
    path = state / "antwort.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return path
