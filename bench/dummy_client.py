"""Sets the responses of the dummy API. Standard library only, because the peers import it too."""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from urllib.parse import urlsplit

URL_VARIABLE = "BENCH_DUMMY_URL"


def base_url() -> str:
    """The base URL of the dummy API."""
    return os.environ[URL_VARIABLE]


def plan(turns: int, calls: int) -> None:
    """Set its next responses."""
    _post(_connection(), "/plan", json.dumps({"turns": turns, "calls": calls}).encode())


def bare_requests(count: int) -> None:
    """Send `count` requests without an adapter, for comparison."""
    connection = _connection()
    for _ in range(count):
        _post(connection, "/v1/responses", b"{}")


def _connection() -> HTTPConnection:
    return HTTPConnection(urlsplit(base_url()).netloc)


def _post(connection: HTTPConnection, path: str, body: bytes) -> None:
    connection.request("POST", path, body)
    connection.getresponse().read()
