"""In-process server for tests: real sockets on the test's event loop, where blockbuster detects blocking calls.

`tests/together` starts processes; here the test can inspect the services.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvicorn
import yaml
from blockbuster import blockbuster_ctx
from fake_echo_provider import EchoProvider
from fixtures_server import SCRIPT

from antwort.config import parse
from antwort.http.app import make_app, open_services
from antwort.http.services import Services
from antwort.tools import FunctionProvider


class InProcessServer(NamedTuple):
    """The services, and an HTTP client."""

    services: Services
    http: httpx2.AsyncClient


@asynccontextmanager
async def run_in_process_server(
    directory: Path, config: dict[str, Any] | None = None, extra_providers: Iterable[FunctionProvider] = ()
) -> AsyncIterator[InProcessServer]:
    """Run the server. From the first request on, a call that blocks the event loop fails the test."""
    (directory / "script.yaml").write_text(json.dumps(SCRIPT), encoding="utf-8")
    settings = {
        "models": {"scripted": {"kind": "scripted", "script": str(directory / "script.yaml")}},
        "storage": {"url": f"sqlite:///{directory}/antwort.db", "blobs": str(directory / "blobs")},
        "providers": {"code_interpreter": {"enabled": False}, "mcp": {"enabled": False}},  # both start something
        **(config or {}),
    }
    async with open_services(parse(yaml.safe_dump(settings), {}), {}, [EchoProvider(), *extra_providers]) as services:
        listener = socket.create_server(("127.0.0.1", 0))
        options: dict[str, Any] = {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(make_app(services), http="httptools", ws="none", **options))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
                with blockbuster_ctx("antwort"):
                    yield InProcessServer(services, http)
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def locked_database(directory: Path) -> AsyncIterator[None]:
    """Hold a write lock on the database of the store in this directory."""
    other = await asyncio.to_thread(
        sqlite3.connect, directory / "antwort.db", isolation_level=None, check_same_thread=False
    )
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        await asyncio.to_thread(other.close)


def multipart_body(*parts: tuple[str, bytes] | tuple[str, bytes, str], boundary: bytes = b"b") -> bytes:
    """A multipart body of fields (name, value) and files (name, content, filename)."""
    encoded: Sequence[bytes] = [
        b"--"
        + boundary
        + b'\r\nContent-Disposition: form-data; name="'
        + part[0].encode()
        + b'"'
        + (b'; filename="' + part[2].encode() + b'"' if len(part) == 3 else b"")
        + b"\r\n\r\n"
        + part[1]
        + b"\r\n"
        for part in parts
    ]
    return b"".join(encoded) + b"--" + boundary + b"--\r\n"
