"""The program of `make demo`: starts a server with a model of this machine, runs `sales_report.py`, stops the server.

`make demo MODEL=…` uses another model: a name of `antwort model list`, a .gguf file, or a model that `antwort serve`
discovers (a model server on this machine, or OPENAI_API_KEY and OPENAI_BASE_URL).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.server import antwort_server

from antwort.models.embedded.weights import CATALOGUE, DEFAULT_MODEL

REPORT = Path(__file__).parent / "sales_report.py"
ANTWORT = (sys.executable, "-m", "antwort")


def main() -> None:
    """Download the weights, start the server, run the report, and stop."""
    model = os.environ.get("MODEL") or DEFAULT_MODEL
    settings: dict[str, Any] = {"log": {"level": "error"}}
    if model in CATALOGUE and subprocess.run([*ANTWORT, "model", "pull", model], check=False).returncode:
        raise SystemExit(1)  # the command has printed the reason
    if model in CATALOGUE or model.endswith(".gguf"):
        weights = str(Path(model).resolve()) if model.endswith(".gguf") else model
        settings["models"], model = {"embedded": {"kind": "embedded", "model": weights}}, "embedded"
    with tempfile.TemporaryDirectory(prefix="antwort-demo-") as folder, antwort_server(Path(folder), settings) as url:
        locality = " No data leaves it." if "models" in settings else ""
        print(f"antwort serves {model} at {url}; its containers run in the sandbox of this machine.{locality}\n")
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": model}
        report = subprocess.run([sys.executable, REPORT], env=environment, check=False)
    if report.returncode:
        raise SystemExit(report.returncode)
    print(
        "\nThe server has stopped. The same program with OpenAI:\n"
        f"  OPENAI_API_KEY=… OPENAI_MODEL=gpt-5.1 {_short(sys.executable)} {_short(str(REPORT))}"
    )


def _short(path: str) -> str:
    prefix = f"{Path.cwd()}{os.sep}"
    return path.removeprefix(prefix)


if __name__ == "__main__":
    main()
