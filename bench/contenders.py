"""The servers that are measured beside each other, set up alike, and how each is asked.

Ours is `antwort serve` as it comes, with a key and a database on disk. Beside it is LiteLLM's proxy, also with a key,
set up as its makers advise for production. Both are one process, and both ask the same upstream's chat completions.
"""

from __future__ import annotations

import contextlib
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

from processes import ENVIRONMENT, NotReadyError, Server, end, serving

HERE = Path(__file__).parent
LITELLM = Path(os.environ.get("BENCH_LITELLM", HERE.parent / ".venv-litellm" / "bin" / "litellm")).absolute()
ABSENT = "not installed: run `make bench`"
MODELS = ("quick", "paced", "drip", "coder")
SECONDS = 1.0
QUESTION = "Say something."
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
FIRST_EVENT, FIRST_WORD = "data:", "seven"  # what comes first in any stream; what our upstream's models say first


class RefusedError(Exception):
    """A server did not answer everybody well; the message fits into a cell."""


@dataclass(frozen=True)
class Way:
    """One way to ask one server."""

    server: Server
    key: str
    path: str
    body: Mapping[str, Any]

    def ask(self, model: str, *, at_once: int, stream: bool = False) -> dict[str, Any]:
        """Ask for a while, and what came of it."""
        plan = self._plan(model, stream) | {"connections": at_once, "seconds": SECONDS}
        asked = subprocess.run(_load(plan), env=ENVIRONMENT, check=True, capture_output=True, text=True)
        return _checked(json.loads(asked.stdout))

    @contextlib.contextmanager
    def streams(self, count: int) -> Iterator[dict[str, Any]]:
        """Open so many, and hold them."""
        plan = self._plan("drip", stream=True) | {"connections": count, "hold": True}
        load = subprocess.Popen(_load(plan), env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert load.stdin is not None and load.stdout is not None  # noqa: S101, PT018 - both were asked for
        with load.stdin, load.stdout:
            try:
                yield _checked(json.loads(load.stdout.readline()))
                load.stdin.close()
                load.wait()
            finally:
                end(load)

    def _plan(self, model: str, stream: bool) -> dict[str, Any]:  # noqa: FBT001 - goes where callers named it
        marks = [FIRST_EVENT, FIRST_WORD] if stream else [FIRST_WORD]
        body = json.dumps({"model": model, "stream": stream, **self.body})
        return {"port": self.server.port, "key": self.key, "path": self.path, "body": body, "marks": marks}


def _load(plan: Mapping[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / "load.py"), json.dumps(plan)]


def _checked(outcome: dict[str, Any]) -> dict[str, Any]:
    """Nobody is quick by refusing."""
    if outcome["refusals"]:
        raise RefusedError(f"{len(outcome['refusals'])} of {outcome['asked']} failed: {outcome['refusals'][0]}")
    return outcome


@dataclass(frozen=True)
class Stage:
    """Where everything is that the servers need."""

    folder: Path
    upstream: str

    @contextlib.contextmanager
    def ours(self, *, code: bool = False) -> Iterator[dict[str, Way]]:
        """`antwort serve`, with everything new. With `code` it runs code, too, in the jail of this machine."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            folder = Path(place)
            keys = folder / "keys.json"
            make = [sys.executable, "-m", "antwort", "keys", "--file", str(keys), "create", "bench"]
            key = subprocess.run(make, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout.strip()
            config = folder / "antwort.yaml"
            settings = self._our_config(folder, keys) | {"providers": {"code_interpreter": {"enabled": code}}}
            config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
            command = [sys.executable, "-m", "antwort", "serve", "--config", config, "--port", "{port}"]
            with serving(command, ready="/readyz", log=folder / "antwort.log") as server:
                stateless = Way(server, key, "/v1/responses", {"input": QUESTION, "store": False})
                stored = Way(server, key, "/v1/responses", {"input": QUESTION, "store": True})
                coding = Way(server, key, "/v1/responses", {"input": QUESTION, "tools": [INTERPRETER]})
                yield {"stateless": stateless, "stored": stored, "code": coding}

    def _our_config(self, folder: Path, keys: Path) -> dict[str, Any]:
        models = {model: {"kind": "chat_completions", "base_url": self.upstream, "model": model} for model in MODELS}
        storage = {"url": f"sqlite:///{folder}/antwort.db", "blobs": f"{folder}/blobs"}
        return {"models": models, "storage": storage, "auth": {"keys_file": str(keys)}}

    @contextlib.contextmanager
    def litellm(self, sandboxes: str | None = None) -> Iterator[dict[str, Way]]:
        """LiteLLM's proxy. All of its ways speak to the upstream's chat completions, as ours does.

        `sandboxes` is where it has code run that it intercepts: something that speaks OpenSandbox's protocol.
        """
        if not LITELLM.exists():
            raise NotReadyError(ABSENT)
        key = f"sk-{secrets.token_hex(32)}"
        config = self.folder / "litellm.yaml"
        config.write_text(json.dumps(self._their_config(sandboxes)), encoding="utf-8")
        environment = {
            "AIOHTTP_CONNECTOR_LIMIT": "4096",  # as many connections to the upstream as there are streams
            "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "4096",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks for prices on the network first
            "LITELLM_LOG": "ERROR",
            "LITELLM_MASTER_KEY": key,
            "LITELLM_MODE": "PRODUCTION",
        }
        command = [LITELLM, "--config", config, "--host", "127.0.0.1", "--port", "{port}"]
        log = self.folder / "litellm.log"
        with serving(command, ready="/health/readiness", log=log, environment=environment) as server:
            messages = [{"role": "user", "content": QUESTION}]
            yield {
                "LiteLLM /responses": Way(server, key, "/v1/responses", {"input": QUESTION, "store": False}),
                "LiteLLM /chat": Way(server, key, "/v1/chat/completions", {"messages": messages}),
                "LiteLLM code": Way(
                    server, key, "/v1/chat/completions", {"messages": messages, "tools": [INTERPRETER]}
                ),
            }

    def _their_config(self, sandboxes: str | None) -> dict[str, Any]:
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


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A folder for everybody's files, and the upstream."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "upstream.py")]
        upstream = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
        assert upstream.stdout is not None  # noqa: S101 - it was asked for
        with upstream.stdout as lines:
            try:
                yield Stage(Path(folder), f"http://127.0.0.1:{int(lines.readline())}/v1")
            finally:
                end(upstream)


def litellm_version() -> str:
    """What is installed beside us."""
    if not LITELLM.exists():
        return "(absent)"
    question = "from importlib.metadata import version; print(version('litellm'))"
    asked = subprocess.run([LITELLM.with_name("python"), "-c", question], check=True, capture_output=True, text=True)
    return asked.stdout.strip()
