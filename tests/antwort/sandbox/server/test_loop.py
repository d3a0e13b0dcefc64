"""The server process: graceful shutdown, and more idle connections than the limit."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
from pathlib import Path

import pytest

IDLE = 1_100
"""More connections than the server keeps."""


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
