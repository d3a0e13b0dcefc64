"""Starts the compared servers with equal settings: `antwort serve` and LiteLLM's proxy.

`antwort serve` has default settings, an API key and a database on disk. LiteLLM's proxy has an API key and the settings
that its documentation recommends for production. Each is one process and uses the same upstream's chat completions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import ENVIRONMENT, ServerNotReadyError, ServerProcess, serving, stop

HERE = Path(__file__).parent
LITELLM = Path(os.environ.get("BENCH_LITELLM", HERE.parent / ".venv-litellm" / "bin" / "litellm")).absolute()
NOT_INSTALLED = "not installed: run `make bench`"
MODELS = ("quick", "paced", "drip", "coder")
LOAD_SECONDS = 1.0
INPUT = "Say something."
CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
FIRST_EVENT, FIRST_WORD = "data:", "seven"  # the first bytes of any stream; the first word of the upstream's models


class LoadFailedError(Exception):
    """Some responses failed; the message fits into a table cell."""


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of one server, with the request body."""

    server: ServerProcess
    key: str
    path: str
    body: Mapping[str, Any]
    websocket: bool = False

    def run_load(self, model: str, *, at_once: int, stream: bool = False) -> dict[str, Any]:
        """Run the load generator, and return its result."""
        plan = self._load_plan(model, stream) | {"connections": at_once, "seconds": LOAD_SECONDS}
        result = subprocess.run(_load_command(plan), env=ENVIRONMENT, check=True, capture_output=True, text=True)
        return _raise_on_failures(json.loads(result.stdout))

    @contextlib.contextmanager
    def open_streams(self, count: int) -> Iterator[dict[str, Any]]:
        """Open `count` streams and keep them open."""
        plan = self._load_plan("drip", stream=True) | {"connections": count, "hold": True}
        load = subprocess.Popen(_load_command(plan), env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert load.stdin is not None and load.stdout is not None  # noqa: S101, PT018 - both are pipes
        with load.stdin, load.stdout:
            try:
                yield _raise_on_failures(json.loads(load.stdout.readline()))
                load.stdin.close()
                load.wait()
            finally:
                stop(load)

    def _load_plan(self, model: str, stream: bool) -> dict[str, Any]:  # noqa: FBT001 - callers pass it by name
        first_event = "{" if self.websocket else FIRST_EVENT
        marks = [first_event, FIRST_WORD] if stream else [FIRST_WORD]
        kind = {"type": "response.create"} if self.websocket else {"stream": stream}
        body = json.dumps({"model": model, **kind, **self.body})
        address = {"port": self.server.port, "key": self.key, "path": self.path}
        return {**address, "body": body, "marks": marks, "websocket": self.websocket}


def _load_command(plan: Mapping[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / "load.py"), json.dumps(plan)]


def _raise_on_failures(outcome: dict[str, Any]) -> dict[str, Any]:
    """Failed responses are fast, so they must not count."""
    if outcome["failures"]:
        raise LoadFailedError(f"{len(outcome['failures'])} of {outcome['requests']} failed: {outcome['failures'][0]}")
    return outcome


@dataclass(frozen=True)
class ComparedServers:
    """The folder and the upstream of all servers."""

    folder: Path
    upstream: str

    @contextlib.contextmanager
    def start_antwort(self, *, code: bool = False) -> Iterator[dict[str, Endpoint]]:
        """Start `antwort serve` with a new SQLite database; with `code`, also with the sandbox of this machine."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as name,
            self.start_replica(Path(name), f"sqlite:///{name}/antwort.db", code=code) as endpoints,
        ):
            yield endpoints

    @contextlib.contextmanager
    def start_replica(
        self, folder: Path, store_url: str, name: str = "antwort", *, code: bool = False
    ) -> Iterator[dict[str, Endpoint]]:
        """Start `antwort serve` on a database. All replicas of a folder have its API key, sealing keys and blobs."""
        config = folder / f"{name}.yaml"
        settings = self._antwort_config(folder, store_url) | {"providers": {"code_interpreter": {"enabled": code}}}
        config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
        key = _api_key(folder)
        command = [sys.executable, "-m", "antwort", "serve", "--config", config, "--port", "{port}"]
        with serving(command, ready="/readyz", log=folder / f"{name}.log") as server:
            stateless = Endpoint(server, key, "/v1/responses", {"input": INPUT, "store": False})
            stored = Endpoint(server, key, "/v1/responses", {"input": INPUT, "store": True})
            with_code = Endpoint(server, key, "/v1/responses", {"input": INPUT, "tools": [CODE_INTERPRETER]})
            chat = Endpoint(server, key, "/v1/chat/completions", {"messages": [{"role": "user", "content": INPUT}]})
            question = {"max_tokens": 1000, "messages": [{"role": "user", "content": INPUT}]}
            messages = Endpoint(server, key, "/v1/messages", question)
            websocket = dataclasses.replace(stateless, websocket=True)
            wires = {
                "stateless": stateless,
                "stored": stored,
                "chat": chat,
                "messages": messages,
                "websocket": websocket,
            }
            yield {**wires, "code": with_code}

    def _antwort_config(self, folder: Path, store_url: str) -> dict[str, Any]:
        models = {model: {"kind": "chat_completions", "base_url": self.upstream, "model": model} for model in MODELS}
        storage = {"url": store_url, "blobs": f"{folder}/blobs"}
        return {"models": models, "storage": storage, "auth": {"keys_file": f"{folder}/keys.json"}}

    @contextlib.contextmanager
    def start_litellm(self, sandboxes: str | None = None) -> Iterator[dict[str, Endpoint]]:
        """Start LiteLLM's proxy. All of its endpoints use the upstream's chat completions, as antwort does.

        `sandboxes` is the URL of a server with OpenSandbox's protocol, which runs the code that LiteLLM intercepts.
        """
        if not LITELLM.exists():
            raise ServerNotReadyError(NOT_INSTALLED)
        key = f"sk-{secrets.token_hex(32)}"
        config = self.folder / "litellm.yaml"
        config.write_text(json.dumps(self._litellm_config(sandboxes)), encoding="utf-8")
        environment = {
            "AIOHTTP_CONNECTOR_LIMIT": "4096",  # as many connections to the upstream as there are streams
            "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "4096",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads prices at start
            "LITELLM_LOG": "ERROR",
            "LITELLM_MASTER_KEY": key,
            "LITELLM_MODE": "PRODUCTION",
        }
        command = [LITELLM, "--config", config, "--host", "127.0.0.1", "--port", "{port}"]
        log = self.folder / "litellm.log"
        with serving(command, ready="/health/readiness", log=log, environment=environment) as server:
            messages = [{"role": "user", "content": INPUT}]
            yield {
                "LiteLLM /responses": Endpoint(server, key, "/v1/responses", {"input": INPUT, "store": False}),
                "LiteLLM /chat": Endpoint(server, key, "/v1/chat/completions", {"messages": messages}),
                "LiteLLM code": Endpoint(
                    server, key, "/v1/chat/completions", {"messages": messages, "tools": [CODE_INTERPRETER]}
                ),
            }

    def _litellm_config(self, sandboxes: str | None) -> dict[str, Any]:
        tool = {"sandbox_provider": "opensandbox", "api_base": sandboxes, "api_key": "none"}
        interception = {
            "sandbox_tools": [{"sandbox_tool_name": "jail", "litellm_params": tool}],
            "litellm_settings": {
                "callbacks": ["code_interpreter_interception"],
                "code_interpreter_interception_params": {
                    "enabled": True,
                    "enabled_providers": ["openai"],
                    "sandbox_tool_name": "jail",
                },
            },
        }
        return {
            **(interception if sandboxes else {}),
            "model_list": [
                {
                    "model_name": model,
                    "litellm_params": {
                        "model": f"openai/{model}",
                        "api_base": self.upstream,
                        "api_key": "none",
                        "use_chat_completions_api": True,
                    },
                }
                for model in MODELS
            ],
        }


def _api_key(folder: Path) -> str:
    """The API key of a folder; created by the first call."""
    file = folder / "api-key"
    if not file.exists():
        make = [sys.executable, "-m", "antwort", "keys", "--file", str(folder / "keys.json"), "create", "bench"]
        file.write_text(subprocess.run(make, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout)
    return file.read_text().strip()


@contextlib.contextmanager
def compared_servers() -> Iterator[ComparedServers]:
    """A temporary folder, and the upstream."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "upstream.py")]
        upstream = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
        assert upstream.stdout is not None  # noqa: S101 - stdout is a pipe
        with upstream.stdout as lines:
            try:
                yield ComparedServers(Path(folder), f"http://127.0.0.1:{int(lines.readline())}/v1")
            finally:
                stop(upstream)


def litellm_version() -> str:
    """The installed version of LiteLLM."""
    if not LITELLM.exists():
        return "(absent)"
    code = "from importlib.metadata import version; print(version('litellm'))"
    result = subprocess.run([LITELLM.with_name("python"), "-c", code], check=True, capture_output=True, text=True)
    return result.stdout.strip()
