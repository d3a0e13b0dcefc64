"""A model for an example: yours, if `OPENAI_MODEL` names one; else a script, behind an `antwort` of our own.

The example itself does not know the difference. It reads `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`, as any
program does that talks to OpenAI.
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

MODEL = "played"


@contextmanager
def model_at_hand(*answers: dict[str, Any]) -> Iterator[str]:
    """The model's name; the environment says where it is."""
    if "OPENAI_MODEL" in os.environ:
        yield os.environ["OPENAI_MODEL"]
        return
    print("OPENAI_MODEL is not set: starting antwort here, with a model that plays a script.\n")
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="antwort-example-") as place, _serving(Path(place), answers) as url:
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="none")
        try:
            yield MODEL
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(scene: str, turn: int, code: str) -> dict[str, Any]:
    """An answer: in this turn of this scene, the model runs some code."""
    return play(scene, turn, "code_interpreter", code=code)


def play(scene: str, turn: int, tool: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """An answer: in this turn of this scene, the model calls a tool."""
    return {"when": {"text": scene, "turn": turn}, "reply": [{"call": {"name": tool, "arguments": arguments}}]}


LAST_OUTPUT = {"reply": [{"text": "<<output>>"}]}
"""The answer to everything else: what the last tool said."""


@contextmanager
def _serving(place: Path, answers: tuple[dict[str, Any], ...]) -> Iterator[str]:
    (place / "script.yaml").write_text(json.dumps({"answers": answers}), encoding="utf-8")
    config = {"models": {MODEL: {"kind": "scripted", "script": "script.yaml"}}, "log": {"level": "error"}}
    (place / "antwort.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML too
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            first = server.stdout.readline().split()
            if len(first) < 2:  # noqa: PLR2004 - "antwort" and its address
                raise SystemExit("antwort did not start: `antwort doctor` says why")
            yield first[1]
        finally:
            server.terminate()
            server.communicate()
