"""A proxy on loopback that breaks one rule of the wire: it changes requests to the real server, or its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from fake_search_api import QuietHandler, running

DROPPED_HEADERS = {"content-encoding", "host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


class ProxiedRequest:
    """A request, which a fault may change before it is sent on."""

    def __init__(self, method: str, path: str, headers: dict[str, str], content: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.content = content
        is_json = "json" in headers.get("content-type", "")
        try:
            self.body: Any = json.loads(content) if is_json and content else {}
        except ValueError:
            self.body = {}


class ProxiedAnswer:
    """An answer, which a fault may change before it is sent back."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "")

    def change_json(self, change: Callable[[Any], Any]) -> None:
        """Change the JSON body. `change` works in place, or returns a new body."""
        if "json" in self.headers.get("content-type", ""):
            body = json.loads(self.content)
            changed = change(body)
            self.content = json.dumps(body if changed is None else changed).encode()

    def change_events(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]] | None]) -> None:
        """Change the events of a stream."""
        if not self.is_stream:
            return
        frames = [frame for frame in self.content.decode().split("\n\n") if frame.startswith("event:")]
        events = [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]
        changed = change(events)
        self.set_events(events if changed is None else changed)

    def set_events(self, events: list[dict[str, Any]]) -> None:
        frames = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.content = "".join(frames).encode()


class Fault:
    """What is wrong with the server. A `change_request` that returns an answer keeps the request from being sent on."""

    def __init__(
        self,
        change_request: Callable[[ProxiedRequest], object] = lambda request: None,
        change_answer: Callable[[ProxiedRequest, ProxiedAnswer], object] = lambda request, answer: None,
    ) -> None:
        self.change_request = change_request
        self.change_answer = change_answer


class WrongServer:
    """The proxy: `url`, and the current `fault`."""

    def __init__(self, upstream: str) -> None:
        self.fault = Fault()
        self.http = httpx2.Client(base_url=upstream, timeout=30, trust_env=False)
        outer = self

        class Handler(_Handler):
            proxy = outer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    proxy: WrongServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        pass

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def do_DELETE(self) -> None:
        self._forward()

    def _forward(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in DROPPED_HEADERS}
        request = ProxiedRequest(self.command, self.path, headers, content)
        before = json.dumps(request.body)
        direct = self.proxy.fault.change_request(request)
        answer = direct if isinstance(direct, ProxiedAnswer) else self._ask_upstream(request, before)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _ask_upstream(self, request: ProxiedRequest, before: str) -> ProxiedAnswer:
        if json.dumps(request.body) != before:
            request.content = json.dumps(request.body).encode()
        received = self.proxy.http.request(
            request.method, request.path, content=request.content, headers=request.headers
        )
        kept = {name: value for name, value in received.headers.items() if name not in DROPPED_HEADERS}
        answer = ProxiedAnswer(received.status_code, kept, received.content)
        self.proxy.fault.change_answer(request, answer)
        return answer


@contextmanager
def wrong_server(upstream: str) -> Iterator[WrongServer]:
    """Run the proxy on a free port."""
    proxy = WrongServer(upstream)
    with running(proxy.server):
        try:
            yield proxy
        finally:
            proxy.http.close()
