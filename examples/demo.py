"""What `make demo` does: a server and a model on this machine, `sales_report.py` in front of them, and an end to all.

`make demo MODEL=…` takes another model: one that `antwort model list` names, a .gguf file, or one that `antwort serve`
finds (a server of this machine, or OPENAI_API_KEY and OPENAI_BASE_URL).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from played.server import serving

from antwort.models.embedded.weights import CATALOGUE, DEFAULT_MODEL

REPORT = Path(__file__).parent / "sales_report.py"
ANTWORT = (sys.executable, "-m", "antwort")


def main() -> None:
    """Fetch, serve, ask, and stop."""
    model = os.environ.get("MODEL") or DEFAULT_MODEL
    settings: dict[str, Any] = {"log": {"level": "error"}}
    if model in CATALOGUE and subprocess.run([*ANTWORT, "model", "pull", model], check=False).returncode:
        raise SystemExit(1)  # it has said why
    if model in CATALOGUE or model.endswith(".gguf"):
        weights = str(Path(model).resolve()) if model.endswith(".gguf") else model
        settings["models"], model = {"embedded": {"kind": "embedded", "model": weights}}, "embedded"
    with tempfile.TemporaryDirectory(prefix="antwort-demo-") as place, serving(Path(place), settings) as url:
        stays = " Nothing leaves it." if "models" in settings else ""
        print(f"antwort serves {model} at {url}; its containers are jails of this machine.{stays}\n")
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": model}
        report = subprocess.run([sys.executable, REPORT], env=environment, check=False)
    if report.returncode:
        raise SystemExit(report.returncode)
    print(
        "\nThe server is stopped. The same file on OpenAI, with nothing changed:\n"
        f"  OPENAI_API_KEY=… OPENAI_MODEL=gpt-5.1 {_short(sys.executable)} {_short(str(REPORT))}"
    )


def _short(path: str) -> str:
    here = f"{Path.cwd()}{os.sep}"
    return path.removeprefix(here)


if __name__ == "__main__":
    main()
