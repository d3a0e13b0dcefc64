"""Server process for tests: `antwort serve` on a free port with a scripted model, and clients for it."""

from __future__ import annotations

import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import yaml
from fixtures_sandbox_server import SandboxProcess
from openai import OpenAI

if TYPE_CHECKING:  # it needs the extra `kubernetes`, which other installations of the tests lack
    from fixtures_claims import ClaimCluster

ROOT = Path(__file__).parents[2]

SCRIPT = {
    "fragment": 5,
    "answers": [
        {
            "when": {"text": "weather", "turn": 1, "tool": "get_weather"},
            "reply": [
                {"reasoning": "The user wants the weather."},
                {"call": {"name": "get_weather", "arguments": {"city": "Berlin"}}},
                {"call": {"name": "get_weather", "arguments": {"city": "Paris"}}},
            ],
        },
        {"when": {"output": "degrees"}, "reply": [{"text": '{"degrees": 21}'}]},
        {"when": {"text": "forever"}, "reply": [{"text": "begun "}, {"delay": 600}, {"text": "ended"}]},
        {
            "when": {"text": "slowly"},
            "reply": [step for word in range(8) for step in ({"text": f"word{word} "}, {"delay": 0.25})],
        },
        {"when": {"text": "flood"}, "reply": [{"text": "<<text>>"}] * 60, "fragment": 16384},
        {"when": {"text": "refuse"}, "reply": [{"refusal": "I will not."}]},
        {
            "when": {"text": "busy"},
            "reply": [{"fault": {"code": "rate_limit_exceeded", "status": 429, "retry_after": 7}}],
        },
        {
            "when": {"text": "break"},
            "reply": [{"text": "half an "}, {"fault": {"code": "server_error", "status": 502}}],
        },
        {"when": {"text": "cut"}, "reply": [{"text": "too long"}], "finish": "length"},
        {
            "when": {"text": "shout", "tool": "shout"},
            "reply": [{"call": {"name": "shout", "arguments": {"input": "A"}}}],
        },
        {"reply": [{"text": "You said: <<text>>"}], "usage": {"input_tokens": 12, "output_tokens": 7}},
    ],
}


class Server:
    """A server process. `stop` sends SIGTERM, `kill` SIGKILL.

    `program` runs instead of `antwort serve`; `command_prefix` is a wrapper command such as `unshare`; `python` is the
    interpreter of another installation, which `environment` must then keep from importing the source.
    """

    def __init__(
        self,
        directory: Path,
        config: dict | None = None,
        environment: dict[str, str] | None = None,
        *,
        script: dict | None = None,
        program: Path | None = None,
        command_prefix: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "script.yaml").write_text(json.dumps(script or SCRIPT, ensure_ascii=False), encoding="utf-8")
        settings = {
            "models": {"scripted": {"kind": "scripted", "script": "script.yaml"}},
            **(config or {}),
            "providers": {
                "mcp": {"enabled": False},  # most tests use no MCP server
                **(config or {}).get("providers", {"code_interpreter": {"enabled": False}}),  # …and do not run code
            },
            "server": {"port": 0, **(config or {}).get("server", {})},
        }
        serve = ["-m", "antwort", "serve", "--config", "antwort.yaml"] if program is None else [str(program)]
        self._command = [*command_prefix, python, *serve]
        (directory / "antwort.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.directory = directory
        self.sandbox: SandboxProcess | None = None
        self.cluster: ClaimCluster | None = None
        self.timeout = 30.0
        """Of the clients, for one response."""
        self._clients: list[OpenAI] = []
        self.keys: dict[str, str] = {}
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")},
            "PYTHONPATH": str(ROOT / "src"),
            **(environment or {}),
        }
        self.start()

    def start(self) -> None:
        """Start the process, and wait for its startup banner."""
        self._spawn()
        try:
            self.banner = _read_banner(self.process)
        except BaseException:
            self._signal_and_wait(signal.SIGKILL)
            raise
        self.url = self.banner.split()[1].removesuffix("/v1")

    def start_and_kill(self, after: float) -> None:
        """Start the process, and kill it after a delay in seconds."""
        self._spawn()
        time.sleep(after)
        self._signal_and_wait(signal.SIGKILL)

    def _spawn(self) -> None:
        self.log_file = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            self._command,
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self.log_file,
            text=True,
        )

    def client(self, key: str = "none") -> Any:
        """An OpenAI SDK client. Untyped: the SDK's unions of events and items would need a cast at every step."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=self.timeout)
        self._clients = [client, *(one for one in self._clients if not one.is_closed())]
        return client

    def close_clients(self) -> None:
        """Close the clients that are open: the garbage collector would report their sockets in some later test."""
        for client in self._clients:
            client.close()

    def http(self, **options) -> httpx2.Client:
        """An HTTP client, for requests that the SDK would not send."""
        return httpx2.Client(base_url=self.url, timeout=self.timeout, trust_env=False, **options)

    def read_log(self) -> str:
        """The log so far."""
        return (self.directory / "log").read_text(encoding="utf-8")

    def memory_bytes(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024

    def stop(self) -> int:
        return self._signal_and_wait(signal.SIGTERM)

    def kill(self) -> int:
        return self._signal_and_wait(signal.SIGKILL)

    def _signal_and_wait(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.log_file.close()


def _read_banner(process: subprocess.Popen[str]) -> str:
    """Read the startup banner; its last line starts with `metrics`."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
            if line.startswith("metrics"):
                return
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    banner = ""
    while not banner.endswith("/readyz\n"):
        line = lines.get(timeout=30)
        assert line, f"the server did not start; exit status {process.wait(5)}"
        banner += line
    return banner


@contextmanager
def run_server(directory: Path, config: dict | None = None, **options) -> Iterator[Server]:
    """Context manager: a running server."""
    server = Server(directory, config, **options)
    try:
        yield server
    finally:
        server.close_clients()
        if server.process.poll() is None:
            server.stop()
        else:
            server.log_file.close()


def create_key(directory: Path, name: str, *options: str, file: str | None = "keys.json") -> str:
    """Create an API key with the CLI, in this file; None is the default file."""
    directory.mkdir(parents=True, exist_ok=True)
    keys = ["keys"] if file is None else ["keys", "--file", file]
    command = [sys.executable, "-m", "antwort", *keys, "create", name, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    created = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return created.stdout.strip()


def stored_statuses(server: Server) -> dict[str, str]:
    """Ids and statuses of responses, from the database."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db")) as database:
        return dict(database.execute("SELECT id, status FROM responses").fetchall())
