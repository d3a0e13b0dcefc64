"""A WebSocket client for tests that sends what the SDK would not: raw messages, and headers of web pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fixtures_server import Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

FINAL_TYPES = ("response.completed", "response.incomplete", "response.failed")
TIMEOUT = 30.0


class RawWebSocket:
    """An open connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: object) -> None:
        """Send a message: text and bytes as they are, everything else as JSON."""
        self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def receive(self) -> dict[str, Any]:
        return json.loads(self.connection.recv(TIMEOUT))

    def create(self, text: object = "hello", **fields: Any) -> None:
        """Send a `response.create` with `store: false`."""
        body = {"type": "response.create", "model": "scripted", "input": text, "store": False, **fields}
        self.send({name: value for name, value in body.items() if value is not None})

    def events(self) -> list[dict[str, Any]]:
        """The messages up to the end of a response, or to an error of a request."""
        received = [self.receive()]
        while not is_end(received[-1]):
            received.append(self.receive())
        return received

    def respond(self, text: object = "hello", **fields: Any) -> dict[str, Any]:
        """Create a response; the last message."""
        self.create(text, **fields)
        return self.events()[-1]

    def closed(self) -> tuple[int, str]:
        """Receive until the server closes the connection; the code and the reason."""
        try:
            while True:
                self.connection.recv(TIMEOUT)
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")


def is_end(message: dict[str, Any]) -> bool:
    """Whether it is the last message of a request. An `error` event with a number is followed by `response.failed`."""
    return message["type"] in FINAL_TYPES or (message["type"] == "error" and "sequence_number" not in message)


def text_of(message: dict[str, Any]) -> str:
    """The text of a response that has completed."""
    assert message["type"] == "response.completed", message
    parts = [part for item in message["response"]["output"] for part in item.get("content") or ()]
    return "".join(part.get("text", "") for part in parts)


@contextmanager
def open_websocket(server: Server, key: str = "none", path: str = "/v1/responses", **options) -> Iterator[RawWebSocket]:
    """A connection with this API key. `options` are those of `websockets`."""
    url = server.url.replace("http://", "ws://") + path
    headers = {"Authorization": f"Bearer {key}", **options.pop("headers", {})}
    options = {"proxy": None, "open_timeout": TIMEOUT, "close_timeout": TIMEOUT, "max_size": None, **options}
    with connect(url, additional_headers=headers, **options) as connection:
        yield RawWebSocket(connection)


def error_of(message: dict[str, Any]) -> tuple[int, str | None, str | None]:
    """Status, code and parameter of an `error` message."""
    assert message["type"] == "error", message
    return message["status"], message["error"]["code"], message["error"]["param"]
