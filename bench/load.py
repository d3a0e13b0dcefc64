"""HTTP and WebSocket load generator: many connections to one server, with little CPU use of its own.

It runs as a process of its own: a plan as JSON on its command line, one line of JSON as its result. Each connection
sends the next request as soon as a response is complete, until the time is over, and then waits for the last response.
With `hold` each sends one request and keeps its stream open until stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import cast

import uvloop

TIMEOUT_SECONDS = 120.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_FINAL_EVENT = b'{"type":"response.completed"'


@dataclass
class LoadPlan:
    """The request. Every response must contain all marks, in this order; the time of each mark is measured."""

    port: int
    key: str
    path: str
    body: str
    marks: list[str]
    connections: int = 1
    seconds: float = 1.0
    hold: bool = False
    websocket: bool = False

    def handshake(self) -> bytes:
        """The bytes that open a WebSocket."""
        lines = (
            f"GET {self.path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"authorization: Bearer {self.key}",
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        )
        return "\r\n".join((*lines, "", "")).encode()

    def message(self) -> bytes:
        """The request as a message of a WebSocket. Its mask is zero, which leaves the bytes as they are."""
        body = self.body.encode()
        return b"\x81\xfe" + len(body).to_bytes(2, "big") + bytes(4) + body

    def request(self) -> bytes:
        """The bytes of the request."""
        body = self.body.encode()
        lines = (
            f"POST {self.path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"authorization: Bearer {self.key}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body


@dataclass
class LoadResult:
    """The result. `mark_seconds` has, for each mark, the times from request to mark."""

    requests: int = 0
    responses: int = 0
    seconds: float = 0.0
    mark_seconds: list[list[float]] = field(default_factory=list[list[float]])
    failures: list[str] = field(default_factory=list[str])


class LoadConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: LoadGenerator) -> None:
        self._load = load
        self._received = bytearray()
        self._marks_seen = 0
        self._sent_at = 0.0
        self.finished = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # a TCP connection has no other kind

    def send_request(self) -> None:
        """Send the next request."""
        self._received.clear()
        self._marks_seen = 0
        self._sent_at = perf_counter()
        self._load.result.requests += 1
        self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._find_marks()
        if self._marks_seen == len(self._load.marks) and self._load.plan.hold:
            self.finish()
        elif self._is_complete():
            missing = self._load.marks[self._marks_seen :]
            if missing or self._has_failed:
                self.finish(bytes(self._received[:300]).decode(errors="replace"))
            elif perf_counter() < self._load.until:
                self._load.result.responses += 1
                self.send_request()
            else:
                self.finish()

    @property
    def _has_failed(self) -> bool:
        return not self._received.startswith(b"HTTP/1.1 200")

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(f"connection lost: {exc}")

    def _find_marks(self) -> None:
        marks = self._load.marks
        while self._marks_seen < len(marks) and marks[self._marks_seen] in self._received:
            self._load.result.mark_seconds[self._marks_seen].append(perf_counter() - self._sent_at)
            self._marks_seen += 1

    def _is_complete(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._received[:end])
        if (length := _LENGTH.search(head)) is not None:
            return len(self._received) >= end + 4 + int(length[1])
        return _CHUNKED.search(head) is not None and self._received.endswith(_LAST_CHUNK)

    def finish(self, failure: str = "") -> None:
        """Finish this connection, with a failure or without."""
        if self.finished.done():
            return
        self.finished.set_result(None)
        if failure:
            self._load.result.failures.append(failure)
        else:
            self._load.result.responses += 1


class WebSocketLoadConnection(LoadConnection):
    """One WebSocket, with one request at a time."""

    def __init__(self, load: LoadGenerator) -> None:
        super().__init__(load)
        self.opened = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(self._load.plan.handshake())

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            super().data_received(data)
            return
        self._received.extend(data)
        if self._received.endswith(b"\r\n\r\n"):
            self.opened.set_result(None)
            if not self._received.startswith(b"HTTP/1.1 101"):
                self.finish(bytes(self._received[:300]).decode(errors="replace"))

    def _is_complete(self) -> bool:
        """Whether the last event is complete: it has 126 to 65,535 bytes, so two bytes before it are its length."""
        start = self._received.find(_FINAL_EVENT)
        return start >= 0 and len(self._received) >= start + int.from_bytes(self._received[start - 2 : start], "big")

    @property
    def _has_failed(self) -> bool:
        return b'"type":"error"' in self._received


class LoadGenerator:
    """All connections."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.request = plan.message() if plan.websocket else plan.request()
        self.marks = [mark.encode() for mark in plan.marks]
        self.result = LoadResult(mark_seconds=[[] for _ in plan.marks])
        self.until = 0.0

    async def run(self) -> list[LoadConnection]:
        """Open all connections, then send all requests at once."""
        loop = asyncio.get_running_loop()
        kind = WebSocketLoadConnection if self.plan.websocket else LoadConnection
        opening = (
            loop.create_connection(lambda: kind(self), "127.0.0.1", self.plan.port)
            for _ in range(self.plan.connections)
        )
        connections = [connection for _, connection in await asyncio.gather(*opening)]
        await asyncio.gather(*(one.opened for one in connections if isinstance(one, WebSocketLoadConnection)))
        start_time = perf_counter()
        self.until = start_time + self.plan.seconds
        for connection in connections:
            connection.send_request()
        await asyncio.wait([connection.finished for connection in connections], timeout=TIMEOUT_SECONDS)
        self.result.seconds = perf_counter() - start_time
        for connection in connections:
            connection.finish(f"no response after {TIMEOUT_SECONDS:.0f} s")
        return connections


async def main() -> None:
    """Run the plan and print the result; with `hold`, keep the streams open."""
    load = LoadGenerator(LoadPlan(**json.loads(sys.argv[1])))
    connections = await load.run()
    print(json.dumps(asdict(load.result)), flush=True)
    if load.plan.hold:
        await asyncio.to_thread(sys.stdin.read)
    for connection in connections:
        connection.transport.close()


if __name__ == "__main__":
    uvloop.run(main())
