"""A stage for the whole server: the real process on a free port, with a scripted model, and the real SDK in front."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml
from fixtures_sandbox_server import SandboxProcess
from openai import OpenAI

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
    """A server process. `stop` asks it to end, `kill` does not ask.

    `program` is what to run instead of `antwort serve`, `before` what to run it with, such as `unshare`.
    """

    def __init__(
        self,
        place: Path,
        config: dict | None = None,
        environment: dict[str, str] | None = None,
        *,
        script: dict | None = None,
        program: Path | None = None,
        before: Sequence[str] = (),
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "script.yaml").write_text(json.dumps(script or SCRIPT, ensure_ascii=False), encoding="utf-8")
        settings = {
            "models": {"scripted": {"kind": "scripted", "script": "script.yaml"}},
            "providers": {"code_interpreter": {"enabled": False}},  # most tests run no code
            **(config or {}),
            "server": {"port": 0, **(config or {}).get("server", {})},
        }
        serve = ["-m", "antwort", "serve", "--config", "antwort.yaml"] if program is None else [str(program)]
        self._command = [*before, sys.executable, *serve]
        (place / "antwort.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.place = place
        self.sandbox: SandboxProcess | None = None
        self.keys: dict[str, str] = {}
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANTWORT_")},
            "PYTHONPATH": str(ROOT / "src"),
            **(environment or {}),
        }
        self.start()

    def start(self) -> None:
        """Start it, and wait until it says that it is ready."""
        self._begin()
        try:
            self.screen = _read_screen(self.process)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        self.url = self.screen.split()[1].removesuffix("/v1")

    def start_and_kill(self, after: float) -> None:
        """Start it, and kill it so many seconds later, whatever it is about."""
        self._begin()
        time.sleep(after)
        self._end(signal.SIGKILL)

    def _begin(self) -> None:
        self.log = (self.place / "log").open("ab")
        self.process = subprocess.Popen(
            self._command,
            cwd=self.place,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def client(self, key: str = "none") -> Any:
        """The real SDK, in front of it. Untyped: its unions of all events and items would need a cast at every step."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def http(self, **options) -> httpx2.Client:
        """Plain HTTP, for what the SDK would not send."""
        return httpx2.Client(base_url=self.url, timeout=30, trust_env=False, **options)

    def lines(self) -> str:
        """What it has logged."""
        return (self.place / "log").read_text(encoding="utf-8")

    def memory(self) -> int:
        """Bytes that it has in memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.log.close()


def _read_screen(process: subprocess.Popen[str]) -> str:
    """All of the first screen; its last line tells of the metrics."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
            if line.startswith("metrics"):
                return
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    screen = ""
    while not screen.endswith("/readyz\n"):
        line = lines.get(timeout=30)
        assert line, f"the server did not start, and ended with {process.wait(5)}"
        screen += line
    return screen


@contextmanager
def serving(place: Path, config: dict | None = None, **options) -> Iterator[Server]:
    """A server for a while."""
    server = Server(place, config, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        else:
            server.log.close()


def make_key(place: Path, name: str, *options: str) -> str:
    """A key, made as a person makes it; the file is `keys.json`."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "antwort", "keys", "create", name, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    made = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
    return made.stdout.strip()


def eventually(condition: Callable[[], Any], seconds: float = 10.0, step: float = 0.05) -> Any:
    """What a condition gives once it gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(step)
    raise AssertionError("it never came true")


def stored(server: Server) -> dict[str, str]:
    """Ids and states of responses, as they are in the database."""
    with closing(sqlite3.connect(server.place / ".antwort" / "antwort.db")) as database:
        return dict(database.execute("SELECT id, status FROM responses").fetchall())
