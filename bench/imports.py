"""Benchmark: import time in a new interpreter, with peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from measurements import Measurement, Row, Suite, measure_seconds
from peer_process import NOT_INSTALLED, PYTHON

ROUNDS = 20
TARGET = 0.1
PEERS = {"pydantic-ai": "import pydantic_ai", "openai-agents": "import agents"}
OWN_PYTHON = Path(sys.executable)
# Bytecode is cached even if this machine disables it: the first round compiles and is not counted.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def suite() -> Suite:
    """Whole processes, with interpreter start. The programs alternate, so that noise affects all of them."""
    programs = {
        "baseline": (OWN_PYTHON, "pass"),
        "package": (OWN_PYTHON, "import weakincentives"),
        "adapters": (OWN_PYTHON, "import weakincentives.adapters"),
    }
    if PYTHON.exists():
        programs |= {peer: (PYTHON, code) for peer, code in PEERS.items()}
        programs["peers' baseline"] = (PYTHON, "pass")
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for rounds in range(ROUNDS + 1):
        for name, program in programs.items():
            took = measure_seconds(lambda program=program: run(*program))
            if rounds:
                samples[name].append(took)
    readings = {name: Measurement.from_samples(taken) for name, taken in samples.items()}
    peers: dict[str, Measurement | str] = {peer: readings.get(peer, NOT_INSTALLED) for peer in PEERS}
    return Suite(
        [
            Row(
                "python -c pass",
                readings["baseline"],
                {"peers' environment": readings.get("peers' baseline", NOT_INSTALLED)},
            ),
            Row("import weakincentives", readings["package"], peers, TARGET),
            Row("import weakincentives.adapters", readings["adapters"], peers, TARGET),
        ],
        [
            f"Imports: {ROUNDS} new processes each, bytecode compiled before. `python -c pass` is not subtracted.",
            "`weakincentives` loads its names on first use, `weakincentives.adapters` loads all that an agent needs;",
            "  the target was set for the former and is applied to both.",
        ],
    )


def run(python: Path, code: str) -> None:
    """Run one new interpreter."""
    subprocess.run([python, "-c", code], check=True, env=ENVIRONMENT)
