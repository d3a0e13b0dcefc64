"""Telling the dummy what to play. Standard library only: the peers use this too."""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from urllib.parse import urlsplit

VARIABLE = "BENCH_DUMMY_URL"


def address() -> str:
    """Where the dummy is."""
    return os.environ[VARIABLE]


def plan(turns: int, calls: int) -> None:
    """What it plays next."""
    _post(_connection(), "/plan", json.dumps({"turns": turns, "calls": calls}).encode())


def bare_requests(count: int) -> None:
    """As many requests as `count` turns have, by a client that does nothing else."""
    connection = _connection()
    for _ in range(count):
        _post(connection, "/v1/responses", b"{}")


def _connection() -> HTTPConnection:
    return HTTPConnection(urlsplit(address()).netloc)


def _post(connection: HTTPConnection, path: str, body: bytes) -> None:
    connection.request("POST", path, body)
    connection.getresponse().read()
