"""The server process: graceful shutdown, idle connections above the limit, and 503 when all are active."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

IDLE = 1_100
"""More connections than the server keeps."""

ONE_CONNECTION = """
import asyncio
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from antwort.sandbox.server.address import Address
from antwort.sandbox.server.loop import serve
from antwort.sandbox.server.settings import SandboxSettings

async def wait(request):
    print("waiting", flush=True)
    await asyncio.sleep(60)

async def answer(request):
    return Response("ok")

with Address.open(SandboxSettings(port=0)) as address:
    print(address, flush=True)
    serve(Starlette(routes=[Route("/wait", wait), Route("/other", answer), Route("/health", answer)]), address, 1)
"""
"""A server that allows one active connection. It prints its address, and a line when `/wait` is active."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_sigint_exit_with_0(serve, number):
    with serve("user", modules="json") as running:
        running.client.session()
        running.process.send_signal(number)
        assert running.process.wait(20) == 0
        assert "Traceback" not in Path(running.state, "log").read_text(encoding="utf-8")


def test_idle_connections_do_not_keep_out_new_ones(serve):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * IDLE:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * IDLE), hard))
    try:
        with serve("user", modules="json") as running, contextlib.ExitStack() as idle:
            host, _, port = running.client.url.removeprefix("http://").partition(":")
            for _ in range(IDLE):
                idle.enter_context(socket.create_connection((host, int(port)), 10))
            assert running.client.call("GET", "/health").status == 200
            assert running.client.execute("print(1)")["stdout"] == "1\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_above_the_connection_limit_the_response_is_503_with_json_and_retry_after():
    with subprocess.Popen([sys.executable, "-c", ONE_CONNECTION], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            host, _, port = server.stdout.readline().strip().removeprefix("http://").partition(":")
            assert _get(host, int(port), "/other")[0] == 200
            with socket.create_connection((host, int(port)), 10) as active:
                active.sendall(b"GET /wait HTTP/1.1\r\nhost: sandbox\r\n\r\n")
                assert server.stdout.readline() == "waiting\n"
                status, headers, body = _get(host, int(port), "/other")
                assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", "application/json")
                assert json.loads(body) == {"error": "too many concurrent requests"}
                assert _get(host, int(port), "/health")[0] == 200
        finally:
            server.kill()


def _get(host, port, path):
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
