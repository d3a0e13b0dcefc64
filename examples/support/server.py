"""The model of an example: `OPENAI_MODEL`, or a scripted model of a local `antwort`.

The example is the same in both cases: it reads `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`, as every program
with OpenAI's SDK.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL = "scripted"


@contextmanager
def model_or_script(*answers: dict[str, Any], providers: dict[str, Any] | None = None) -> Iterator[str]:
    """The name of the model; its base URL is in the environment. `providers` is that section of the configuration."""
    if "OPENAI_MODEL" in os.environ:
        yield os.environ["OPENAI_MODEL"]
        return
    print("OPENAI_MODEL is not set: starting a local antwort with a scripted model.\n")
    environment = dict(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="antwort-example-") as folder,
        _scripted_server(Path(folder), answers, providers or {}) as url,
    ):
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="none")
        try:
            yield MODEL
        finally:
            os.environ.clear()
            os.environ.update(environment)


def code_reply(text: str, turn: int, code: str) -> dict[str, Any]:
    """A scripted reply that runs code, in this turn of conversations with this text."""
    return tool_reply(text, turn, "code_interpreter", code=code)


def tool_reply(text: str, turn: int, tool: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """A scripted reply that calls a tool, in this turn of conversations with this text."""
    return {"when": {"text": text, "turn": turn}, "reply": [{"call": {"name": tool, "arguments": arguments}}]}


ECHO_LAST_OUTPUT = {"reply": [{"text": "<<output>>"}]}
"""The default reply: the output of the last tool."""


@contextmanager
def _scripted_server(folder: Path, answers: tuple[dict[str, Any], ...], providers: dict[str, Any]) -> Iterator[str]:
    (folder / "script.yaml").write_text(json.dumps({"answers": answers}), encoding="utf-8")
    model = {"kind": "scripted", "script": "script.yaml"}
    config = {"models": {MODEL: model}, "providers": providers, "log": {"level": "error"}}
    with antwort_server(folder, config) as url:
        yield url


@contextmanager
def antwort_server(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Start `antwort` with its files in `folder`; yields the base URL."""
    (folder / "antwort.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is valid YAML
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - stdout is a pipe
            first = server.stdout.readline().split()
            if len(first) < 2:  # noqa: PLR2004 - "antwort" and its address
                raise SystemExit("antwort did not start: run `antwort doctor` for the reason")
            yield first[1]
        finally:
            server.terminate()
            server.communicate()
