"""Fake Kubernetes API for SandboxClaims: what a real API server does rarely, at the wish of a test.

It keeps claims in memory, and sends what the test queues to the newest watch. A real API server: `fixtures_kubernetes`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

GROUP = "extensions.agents.x-k8s.io"
_REASONS = {200: "OK", 201: "Created", 401: "Unauthorized", 404: "Not Found", 409: "Conflict", 410: "Gone"}


class ApiRequest(NamedTuple):
    """A request, with its authorization."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class FakeKubernetesApi:
    """`claims` are those that exist, by name. `watches` counts the watches; `events` holds the lines for the newest.

    An event of None ends the watch. `faults` are answered first: a status, or None to close the connection without a
    reply, after the request was executed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.versions = ["v1beta1", "v1alpha1"]
        self.requests: list[ApiRequest] = []
        self.peers: list[str] = []
        """The names in the client certificates of the requests."""
        self.claims: dict[str, dict[str, Any]] = {}
        self.watches = 0
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.faults: dict[str, list[int | None]] = {}
        """By method; `WATCH` for a watch."""
        self.tokens: set[str] | None = None
        """The accepted tokens, if any is required."""
        self.created: asyncio.Event = asyncio.Event()
        self._uids = 0

    def event(self, kind: str, claim: dict[str, Any]) -> None:
        """Queue an event."""
        self.events.put_nowait(json.dumps({"type": kind, "object": claim}).encode())

    def status(self, ready: str, reason: str, *, message: str = "", **status: Any) -> dict[str, Any]:
        """Change the status of the only claim, and return it."""
        (claim,) = self.claims.values()
        condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}
        claim["status"] = {"conditions": [condition], **status}
        return claim

    def ready(self, ip: str | None = "127.0.0.1") -> dict[str, Any]:
        """Make the only claim ready, and return it."""
        sandbox = {"name": "adopted"} | ({} if ip is None else {"podIPs": [ip]})
        return self.status("True", "DependenciesReady", sandbox=sandbox)

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.requests)

    def kubeconfig(self, user: dict[str, Any] | None = None, ca_file: str | None = None) -> dict[str, Any]:
        """A kubeconfig for this server."""
        cluster = {"server": self.url} | ({} if ca_file is None else {"certificate-authority": ca_file})
        return {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
            "current-context": "x",
        }

    # ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().split():
            method, target, _ = line
            headers: dict[str, str] = {}
            while field := (await reader.readline()).decode().strip():
                name, _, value = field.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            url = urlsplit(target)
            query = parse_qs(url.query)
            request = ApiRequest(method, url.path, query, headers, json.loads(body) if body else None)
            self.requests.append(request)
            self.peers += _names_of(writer.get_extra_info("peercert"))
            token = headers.get("authorization", "").removeprefix("Bearer ")
            is_watch = "watch" in query
            faults = self.faults.get("WATCH" if is_watch else method, [])
            fault: int | None = faults.pop(0) if faults else 200
            if self.tokens is not None and token not in self.tokens:
                fault = 401
            if fault is not None and fault != 200:
                _reply(writer, fault, {"message": "a fault of the test"})
            elif is_watch:
                await self._watch(writer)
                return
            else:
                status, answer = self._answer(request)
                if fault is None:
                    return
                _reply(writer, status, answer)

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        self.watches += 1
        events = self.events = asyncio.Queue()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        await writer.drain()
        while (line := await events.get()) is not None:
            writer.write(line + b"\n")
            await writer.drain()

    def _answer(self, request: ApiRequest) -> tuple[int, Any]:
        if request.path == f"/apis/{GROUP}" and self.versions:
            return 200, {"versions": [{"version": version} for version in self.versions]}
        name = request.path.rpartition("/sandboxclaims")[2].strip("/")
        if "/sandboxclaims" not in request.path or not any(f"/{one}/" in request.path for one in self.versions):
            return 404, {"message": "not served"}
        if name and name not in self.claims:
            return 404, {"message": "not found", "details": {"name": name, "kind": "sandboxclaims"}}
        match request.method:
            case "POST":
                return self._create(request.body)
            case "DELETE":
                return self._delete(name, request.body)
            case _:
                return 200, self.claims[name] if name else {"items": list(self.claims.values())}

    def _delete(self, name: str, options: dict[str, Any]) -> tuple[int, Any]:
        uid = options.get("preconditions", {}).get("uid")
        if uid not in (None, self.claims[name]["metadata"]["uid"]):
            return 409, {"message": "another UID"}
        return 200, self.claims.pop(name)

    def _create(self, claim: dict[str, Any]) -> tuple[int, Any]:
        name = claim["metadata"]["name"]
        if name in self.claims:
            return 409, {"message": "it exists"}
        self._uids += 1
        claim["metadata"] |= {"uid": f"uid-{self._uids}", "resourceVersion": "7"}
        self.claims[name] = claim
        self.created.set()
        return 201, claim


def _names_of(certificate: dict[str, Any] | None) -> list[str]:
    subject = (certificate or {}).get("subject", ())
    return [value for part in subject for key, value in part if key == "commonName"]


def _reply(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


@asynccontextmanager
async def fake_kubernetes_api(tls: ssl.SSLContext | None = None) -> AsyncGenerator[FakeKubernetesApi]:
    """A running API."""
    connections: set[asyncio.Task[None]] = set()
    api = FakeKubernetesApi("")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        with suppress(asyncio.CancelledError):
            await api.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
