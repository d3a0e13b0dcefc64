"""MCP servers on loopback: a real one, made with the SDK, over both transports; and a hostile one in raw HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from fake_search_api import running
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ImageContent, ToolAnnotations

PAGE = 64 * 1024


class FakeMcpServer:
    """A server made with the SDK. `calls` are the calls so far, `headers` those of each request."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.lists = 0
        self.release = threading.Event()
        self.url = ""
        self.sse_url = ""
        self.server = MCPServer("crm", instructions="Customers.")
        self.server.tool(annotations=ToolAnnotations(read_only_hint=True))(self.customer)
        self.server.tool()(self.rename)
        self.server.tool()(self.fail)
        self.server.tool()(self.wait)
        self.server.tool()(self.picture)
        self.server.tool()(self.grow)

    def customer(self, number: int) -> str:
        """The name of the customer with this number."""
        self.calls.append(("customer", {"number": number}))
        return {7: "Ada Lovelace", 8: "Grace Hopper"}.get(number, "unknown")

    def rename(self, number: int, name: str) -> str:
        """Rename a customer."""
        self.calls.append(("rename", {"number": number, "name": name}))
        return f"{number} is called {name} now"

    def fail(self, reason: str) -> str:
        """Fail."""
        self.calls.append(("fail", {"reason": reason}))
        raise RuntimeError(reason)

    async def wait(self) -> str:
        """Wait until the test lets it go on."""
        self.calls.append(("wait", {}))
        await asyncio.to_thread(self.release.wait, 30)
        return "waited"

    def picture(self) -> list[Any]:
        """A picture."""
        return ["a pixel:", ImageContent(type="image", data="AAAA", mime_type="image/png")]

    async def grow(self, ctx: Context) -> str:
        """Add a tool, and say that the list has changed."""
        self.server.add_tool(lambda: "new", name="added", description="Added later.")
        await ctx.session.send_tool_list_changed()
        return "grown"

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Both transports, at `/mcp` and `/sse`, and one that requires a token, at `/private/mcp`."""
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            if scope["path"].startswith("/private"):
                if headers.get("authorization") != "Bearer hunter2":
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body"})
                    return
                scope = {**scope, "path": "/mcp", "raw_path": b"/mcp"}
        app = self._sse if scope.get("path", "").startswith(("/sse", "/messages")) else self._streamable
        await app(scope, receive, send)

    @contextmanager
    def running(self) -> Iterator[FakeMcpServer]:
        self._streamable = self.server.streamable_http_app(stateless_http=False)
        self._sse = self.server.sse_app()
        with serving(self.app) as url:
            self.url, self.sse_url, self.private_url = f"{url}/mcp", f"{url}/sse", f"{url}/private/mcp"
            yield self
            self.release.set()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Run an ASGI application in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, ws="none", interface="asgi3", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class HostileMcpServer:
    """A server that speaks the protocol up to a point. Its paths are its behaviours."""

    def __init__(self) -> None:
        self.methods: list[tuple[str, str]] = []
        self.tools: list[Any] = []
        self.sent = 0
        self.ended = threading.Event()
        self.elsewhere = ""
        self.sessions = 0
        outer = self

        class Handler(_Handler):
            site = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[HostileMcpServer]:
        with running(self._server):
            try:
                yield self
            finally:
                self.ended.set()


class _Handler(BaseHTTPRequestHandler):
    site: HostileMcpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        pass

    def do_GET(self) -> None:
        self.site.methods.append((self.path, "GET"))
        if self.path == "/restless":
            self._send(b"retry: 0\ndata:\n\n", kind="text/event-stream")
        else:
            self.send_error(405)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = body.get("method", "")
        self.site.methods.append((self.path, method))
        try:
            self._answer(method, body)
        except OSError:
            self.close_connection = True

    def _answer(self, method: str, body: dict[str, Any]) -> None:
        match self.path, method:
            case "/redirect", _:
                self.send_response(307)
                self.send_header("location", self.site.elsewhere)
                self.send_header("content-length", "0")
                self.end_headers()
            case "/silent", _:
                self.site.ended.wait(30)
            case "/html", _:
                self._send(b"<html>hello</html>", kind="text/html")
            case "/gzip", _:
                self._send(b"\x1f\x8b", headers={"content-encoding": "gzip"})
            case _, "server/discover":
                self._error(body, -32601, "Method not found")
            case _, "initialize":
                self.site.sessions += 1
                info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result = {**info, "serverInfo": {"name": "x", "version": "1"}}
                self._result(body, result, {"mcp-session-id": str(self.site.sessions)})
            case _, "tools/list":
                self._list(body)
            case _, "tools/call":
                self._call(body)
            case _:
                self._send(b"", status=202)

    def _list(self, body: dict[str, Any]) -> None:
        match self.path:
            case "/pages":  # pages without an end
                self._result(body, {"tools": [], "nextCursor": "more"})
            case "/large-list":
                self._large(b'{"jsonrpc":"2.0","id":1,"result":{"tools":[')
            case "/no-list":
                self._result(body, {"tools": "none"})
            case "/changing":  # while they are listed
                change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
                listed = {"jsonrpc": "2.0", "id": body["id"], "result": {"tools": self.site.tools}}
                events = "".join(f"event: message\ndata: {json.dumps(one)}\n\n" for one in (change, listed))
                self._send(events.encode(), kind="text/event-stream")
            case _:
                self._result(body, {"tools": self.site.tools})

    def _call(self, body: dict[str, Any]) -> None:
        answers: dict[str, Callable[[], object]] = {
            "large": lambda: self._large(b'{"jsonrpc":"2.0","id":1,"result":{"content":"'),
            "large_event": lambda: self._large(b"event: message\ndata: ", kind="text/event-stream"),
            "hang": lambda: self.site.ended.wait(30),
            "nested": lambda: self._send(b"[" * 50_000),
            "garbage": lambda: self._send(b"\xff\xfe not json"),
            "no_result": lambda: self._result(body, {"content": 3}),
            "refuse": lambda: self._error(body, -32602, "no\0 such\nthing " + "x" * 5000),
            "status": lambda: self._send(b"", status=503),
            "forget": lambda: self._forget(body),
            "close": lambda: setattr(self, "close_connection", True),
        }
        fine = {"content": [{"type": "text", "text": "fine"}]}
        answers.get(body["params"]["name"], lambda: self._result(body, fine))()

    def _forget(self, body: dict[str, Any]) -> None:
        """The first session is gone."""
        if self.headers["mcp-session-id"] == "1":
            self._send(b"", status=404)
        else:
            self._result(body, {"content": [{"type": "text", "text": "in a new session"}]})

    def _large(self, start: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(100 * 1024 * 1024))
        self.end_headers()
        self.wfile.write(start)
        for _ in range(100 * 1024 * 1024 // PAGE):
            self.wfile.write(b"x" * PAGE)
            self.site.sent += PAGE

    def _result(self, body: dict[str, Any], result: Any, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": result}).encode(), headers=headers)

    def _error(self, body: dict[str, Any], code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self._send(json.dumps({"jsonrpc": "2.0", "id": body["id"], "error": error}).encode())

    def _send(
        self,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
