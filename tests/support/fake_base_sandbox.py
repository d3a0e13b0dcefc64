"""A sandbox server that speaks only the base protocol, `/health` and `/execute`: a Python process for every run.

It isolates nothing, so it runs only code of the tests.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NEEDS_A_SESSION = {
    "test_output_is_streamed_and_the_last_value_is_echoed",
    "test_output_arrives_while_the_code_runs",
    "test_variables_persist",
    "test_a_timeout_interrupts_the_code_and_keeps_variables",
    "test_a_run_can_be_interrupted",
    "test_out_of_memory_ends_the_sandbox_with_status_oom",
    "test_an_interpreter_that_exits_is_lost",
    "test_figures_are_png_images",
    "test_long_output_is_truncated",
    "test_five_megabytes_of_code",
    "test_files_are_written_listed_read_and_deleted",
    "test_a_rewritten_file_has_another_modification_time",
    "test_sandboxes_are_isolated",
    "test_five_sandboxes_at_once",
    "test_an_unknown_memory_limit_is_refused",
    "test_commands_have_exit_codes_and_separate_streams",
    "test_a_command_past_its_timeout_is_killed",
    "test_commands_and_code_share_files_only",
    "test_skills_can_be_read_and_not_changed",
}
"""Tests of `SandboxesConformance` for what the base protocol lacks: variables, echo, live output, /mnt/data, tiers."""


class FakeBaseSandbox:
    """The running server. `requests` are the bodies of `/execute`; `busy` is the number of 429s to answer first."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.busy = 0
        self.produces: dict[str, bytes] = {}
        """Files that every run produces, whatever its code does."""
        self.on_execute: Callable[[], None] | None = None
        """Called instead of every run, whose connection is then closed without a reply."""

    def execute(self, body: dict[str, Any]) -> dict[str, Any]:
        if any("nothing" in name for name in body.get("requirements", ())):
            return {"status": "error", "stdout": "", "stderr": "package installation failed: none", "exit_code": -1}
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory, "output")
            output.mkdir()
            for name, content in body.get("files", {}).items():
                path = Path(directory, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(content, validate=True))
            started = time.monotonic()
            try:
                done = subprocess.run(
                    [sys.executable, "-c", body["code"]],
                    cwd=directory,
                    env={**os.environ, "OUTPUT_DIR": str(output)},
                    capture_output=True,
                    timeout=body["timeout_seconds"],
                    check=False,
                )
                stdout, stderr, code = done.stdout, done.stderr, done.returncode
            except subprocess.TimeoutExpired as expired:
                stdout, stderr, code = expired.stdout or b"", b"timed out", -1
            produced = {
                str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()
            }
            produced |= self.produces
            return {
                "status": "success" if code == 0 else "error",
                "stdout": stdout.decode(),
                "stderr": stderr.decode(),
                "exit_code": code,
                "execution_time_ms": round((time.monotonic() - started) * 1000),
                "files_produced": {name: base64.b64encode(data).decode() for name, data in produced.items()},
            }


@contextmanager
def base_sandbox(address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[FakeBaseSandbox]:
    """A running server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sandbox.paths.append(self.path)
            health = {"status": "ok", "mode": "python", "capacity": 3, "current_load": 0, "uptime_seconds": 1}
            self._reply(200, health) if self.path == "/health" else self._reply(404, {"error": "no such route"})

        def do_POST(self) -> None:
            sandbox.paths.append(self.path)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/execute":
                self._reply(404, {"error": "no such route"})
            elif sandbox.busy:
                sandbox.busy -= 1
                self._reply(429, {"error": "at capacity (4/3 concurrent executions)"}, {"retry-after": "0.1"})
            elif sandbox.on_execute is not None:
                sandbox.on_execute()
            else:
                sandbox.requests.append(body)
                self._reply(200, sandbox.execute(body))

        def _reply(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # the client was killed
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
            pass

    with ThreadingHTTPServer(address, Handler) as server:
        sandbox = FakeBaseSandbox(f"http://{address[0]}:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield sandbox
        finally:
            server.shutdown()
            thread.join()
