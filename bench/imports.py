"""How long a fresh interpreter takes to import us, and our peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from peer_process import ABSENT, PYTHON
from readings import Reading, Row, Suite, seconds

ROUNDS = 20
TARGET = 0.1
PEERS = {"pydantic-ai": "import pydantic_ai", "openai-agents": "import agents"}
OURS = Path(sys.executable)
# Bytecode may be written, whatever this machine prefers: the first round compiles, and is not counted.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def suite() -> Suite:
    """Whole processes, interpreter start included. The programs take turns, so that noise hits all of them."""
    programs = {
        "nothing": (OURS, "pass"),
        "package": (OURS, "import weakincentives"),
        "adapters": (OURS, "import weakincentives.adapters"),
    }
    if PYTHON.exists():
        programs |= {peer: (PYTHON, code) for peer, code in PEERS.items()}
        programs["peers' nothing"] = (PYTHON, "pass")
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for rounds in range(ROUNDS + 1):
        for name, program in programs.items():
            took = seconds(lambda program=program: run(*program))
            if rounds:
                samples[name].append(took)
    readings = {name: Reading.of(taken) for name, taken in samples.items()}
    peers: dict[str, Reading | str] = {peer: readings.get(peer, ABSENT) for peer in PEERS}
    return Suite(
        [
            Row("python -c pass", readings["nothing"], {"their environment": readings.get("peers' nothing", ABSENT)}),
            Row("import weakincentives", readings["package"], peers, TARGET),
            Row("import weakincentives.adapters", readings["adapters"], peers, TARGET),
        ],
        [
            f"Imports: {ROUNDS} fresh processes each, bytecode compiled before. `python -c pass` is not subtracted.",
            "`weakincentives` loads its names on first use, `weakincentives.adapters` all that an agent needs;",
            "  the design's target is for the former, and the latter is held to it too.",
        ],
    )


def run(python: Path, code: str) -> None:
    """One fresh interpreter."""
    subprocess.run([python, "-c", code], check=True, env=ENVIRONMENT)
