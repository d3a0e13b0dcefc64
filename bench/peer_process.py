"""Asking the peers, which live in an environment of their own (`make bench` creates it)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("BENCH_PEERS_PYTHON", HERE.parent / ".venv-bench" / "bin" / "python")).absolute()
ABSENT = "not installed: run `make bench`"


class PeerFailedError(Exception):
    """A peer gave no numbers; the message fits into its cell."""


def ask(module: str) -> dict[str, Any]:
    """Run a module of `bench/peers` and read the JSON that it prints."""
    if not PYTHON.exists():
        raise PeerFailedError(ABSENT)
    command = [PYTHON, "-m", f"peers.{module}"]
    asked = subprocess.run(command, cwd=HERE, check=False, capture_output=True, text=True)
    if asked.returncode:
        complaint = asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"]
        raise PeerFailedError(complaint[-1])
    return json.loads(asked.stdout)
