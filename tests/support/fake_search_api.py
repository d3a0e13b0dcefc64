"""A fake search engine on loopback: a real HTTP server with the JSON APIs of SearXNG, Brave, Tavily and Exa.

It finds the documents that contain a word of the query. A word of the query that is a key of `FAULTS` makes it fail in
that way. `requests` has what it received.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

KEY = "a-secret-key-of-the-engine"
FAULTS: dict[str, int] = {
    "outage": 503,
    "quota": 402,
    "throttled": 429,
    "forbidden": 403,
    "teapot": 418,
    "moved": 302,
}
"""Statuses by words of the query; further such words are `silent`, `cut`, and those of `ANSWERS`."""
ANSWERS = {
    "garbage": b"<html>not json</html>",
    "odd": b'{"results": {"a": 1}, "web": 7}',
    "huge": b'{"results": [' + b'{"url": "https://huge.example/"},' * 400_000 + b"]}",
}


class Found(NamedTuple):
    """A page of the fake web."""

    url: str
    title: str
    text: str


class Received(NamedTuple):
    """A request of a client."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


class FakeSearchApi:
    """The server: `url`, and `requests` so far."""

    def __init__(self, documents: Sequence[Found]) -> None:
        self.documents = list(documents)
        self.requests: list[Received] = []
        self.ended = threading.Event()
        outer = self

        class Handler(_Handler):
            api = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def find(self, query: str, domains: Sequence[str] = ()) -> list[Found]:
        """The documents with a word of the query. `site:` restricts the search, as in most engines."""
        domains = [*domains, *re.findall(r"site:(\S+?)\)?(?= |$)", query)]
        words = [word for word in re.findall(r"\w+", query.lower()) if word not in ("or", "site")]
        found = [one for one in self.documents if any(word in f"{one.title} {one.text}".lower() for word in words)]
        hosts = {one.url: urlsplit(one.url).hostname or "" for one in found}
        return [one for one in found if not domains or any(f".{hosts[one.url]}".endswith(f".{d}") for d in domains)]

    @property
    def queries(self) -> list[str]:
        """The texts that were searched for."""
        return [str(one.query.get("q") or one.body.get("query")) for one in self.requests]


class QuietHandler(BaseHTTPRequestHandler):
    """A client that closes its connection is no error."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has closed the connection
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            self.close_connection = True


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    api: FakeSearchApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        pass

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        received = Received(parts.path, query, {name.lower(): value for name, value in self.headers.items()}, body)
        self.api.requests.append(received)
        text = str(query.get("q") or body.get("query"))
        status = next((status for fault, status in FAULTS.items() if fault in text), 200)
        answer = next((answer for fault, answer in ANSWERS.items() if fault in text), None)
        if status != 200:
            self._send(status, f"a secret of the engine: {KEY}".encode(), location="http://127.0.0.1:1/")
        elif "silent" in text:
            self.api.ended.wait(60)
        elif "cut" in text:
            self.close_connection = True
            self._send(200, b'{"results": [', length=1000)
        else:
            self._send(200, answer or json.dumps(self._found(received, text)).encode())

    def _found(self, received: Received, text: str) -> dict[str, Any]:
        body = received.body
        if received.path == "/res/v1/web/search":
            found = self.api.find(text)[: int(received.query["count"])]
            results = [{"title": one.title, "url": one.url, "description": one.text} for one in found]
            return {"type": "search", "query": {"original": text}, "web": {"type": "search", "results": results}}
        if "x-api-key" in received.headers:
            found = self.api.find(text, body.get("includeDomains", ()))[: body["numResults"]]
            size = body["contents"]["text"]["maxCharacters"]
            return {"results": [{"id": one.url, **one._asdict(), "text": one.text[:size]} for one in found]}
        if received.path == "/search" and body:
            found = self.api.find(text, body.get("include_domains", ()))[: body["max_results"]]
            results = [{"title": one.title, "url": one.url, "content": one.text, "score": 0.9} for one in found]
            return {"query": text, "results": results, "response_time": 0.1}
        results = [
            {"title": one.title, "url": one.url, "content": one.text, "engine": "fake", "engines": ["fake"], "score": 1}
            for one in self.api.find(text)
        ]
        return {"query": text, "number_of_results": 0, "results": results, "answers": [], "unresponsive_engines": []}

    def _send(self, status: int, body: bytes, *, length: int | None = None, location: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body) if length is None else length))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_search_api(documents: Sequence[Found]) -> Iterator[FakeSearchApi]:
    """Run the server on a free port."""
    api = FakeSearchApi(documents)
    with running(api._server):
        try:
            yield api
        finally:
            api.ended.set()


@contextmanager
def running(server: ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[None]:
    """Run a server in a thread."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
