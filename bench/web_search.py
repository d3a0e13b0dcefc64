"""Benchmark: response with one web search, or with one opened page: our share of the call.

The search engine and the page are files of a plain HTTP server on loopback, and the model is scripted, so that nearly
all of the time is the server's own. A response without a call, and direct requests to that HTTP server, are measured
for comparison; what is left is our share: checked results, cache, item, events and storage; for a page also the guarded
fetch and the text extraction in a new sandbox.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import httpx2
from measurements import Measurement, Row, Suite, measure_seconds
from processes import ServerProcess, serving

CALLS = 60
WARM_UP = 5
SEARCH_TARGET, PAGE_TARGET = 0.02, 0.15
PAGE = (
    "<title>Tea {0}</title><main><h1>Tea {0}</h1>" + "<p>Oolong is a tea between green and black.</p>" * 200 + "</main>"
)


def suite() -> Suite:
    """All measurements in one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        web = folder / "web"
        web.mkdir()
        command = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", web]
        with serving(command, ready="/", log=folder / "web.log") as site:
            _write_pages(web, site.port)
            config = _write_config(folder, site.port)
            serve = [sys.executable, "-m", "antwort", "serve", "--config", config, "--port", "{port}"]
            with serving(serve, ready="/readyz", log=folder / "antwort.log") as antwort:
                return Suite(_rows(antwort, site), NOTES)


NOTES = [
    "Web search: a plain HTTP server on loopback in place of the engine and of the page; scripted model; all responses",
    "are stored. Our share: a response with the call, less one without it and less the direct request, in turns. Every",
    "page is another one, so that none comes from the cache; its text is extracted in a sandbox of its own.",
]


def _rows(antwort: ServerProcess, site: ServerProcess) -> list[Row]:
    samples: dict[str, list[float]] = defaultdict(list)
    url = f"http://127.0.0.1:{site.port}"
    with (
        httpx2.Client(base_url=f"http://127.0.0.1:{antwort.port}", timeout=60, trust_env=False) as client,
        httpx2.Client(base_url=url, trust_env=False) as web,
    ):
        for number in range(WARM_UP + CALLS):
            taken = _round(client, web, antwort, f"{url}/{number}.html")
            for name, seconds in taken.items() if number >= WARM_UP else ():
                samples[name].append(seconds)
    measured = {name: Measurement.from_samples(values) for name, values in samples.items()}
    return [
        Row("response with a web search", measured["search"]),
        Row("  without a call", measured["plain"]),
        Row("  search engine only", measured["engine"]),
        Row("  our share of the call", measured["share"], target=SEARCH_TARGET),
        Row("  CPU of the server's own process", measured["cpu"]),
        Row("response with an opened page, not cached", measured["page"]),
        Row("  page only", measured["fetch"]),
        Row("  our share of the call, with the sandbox", measured["page share"], target=PAGE_TARGET),
    ]


def _round(client: httpx2.Client, web: httpx2.Client, antwort: ServerProcess, page: str) -> dict[str, float]:
    """Each request once, in turns, so that a busy machine slows all of them."""
    taken = {
        "plain": measure_seconds(lambda: _respond(client, "hello")),
        "engine": measure_seconds(lambda: web.get("/search?q=tea&format=json").raise_for_status()),
        "fetch": measure_seconds(lambda: web.get(page).raise_for_status()),
    }
    before = antwort.own_cpu_seconds()
    taken["search"] = measure_seconds(lambda: _respond(client, "search"))
    taken["cpu"] = antwort.own_cpu_seconds() - before
    taken["page"] = measure_seconds(lambda: _respond(client, f"open {page}"))
    taken["share"] = taken["search"] - taken["plain"] - taken["engine"]
    taken["page share"] = taken["page"] - taken["plain"] - taken["fetch"]
    return taken


def _respond(client: httpx2.Client, text: str) -> None:
    response = client.post("/v1/responses", json={"input": text, "tools": [{"type": "web_search"}]}).raise_for_status()
    statuses = [item["status"] for item in response.json()["output"]]
    if set(statuses) != {"completed"} or len(statuses) != 1 + (text != "hello"):
        raise RuntimeError(f"the response is not as expected: {response.text}")


def _write_pages(web: Path, port: int) -> None:
    found = [
        {"url": f"http://127.0.0.1:{port}/{n}.html", "title": f"Tea {n}", "content": "Oolong. " * 30} for n in range(10)
    ]
    (web / "search").write_text(json.dumps({"query": "tea", "results": found}), encoding="utf-8")
    for number in range(CALLS + WARM_UP):
        (web / f"{number}.html").write_text(PAGE.format(number), encoding="utf-8")


def _write_config(folder: Path, port: int) -> Path:
    call = {"web_search": {"queries": ["tea"]}, "open_page": {"url": "<<find /(?<=open )\\S+/>>"}}
    answers = [
        {"when": {"text": word, "turn": 1}, "reply": [{"call": {"name": name, "arguments": call[name]}}]}
        for word, name in (("search", "web_search"), ("open", "open_page"))
    ]
    script = {"answers": [*answers, {"reply": [{"text": "Tea costs 12 euros [1]."}]}]}
    (folder / "script.yaml").write_text(json.dumps(script), encoding="utf-8")
    config = {
        "models": {"scripted": {"kind": "scripted", "script": str(folder / "script.yaml")}},
        "storage": {"url": f"sqlite:///{folder}/state/antwort.db", "blobs": f"{folder}/state/blobs"},
        "providers": {"web_search": {"engine": "searxng", "url": f"http://127.0.0.1:{port}"}},
        "fetch": {"allow_networks": ["127.0.0.1/32"], "ports": [port]},
    }
    path = folder / "antwort.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return path
