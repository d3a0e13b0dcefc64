"""Runs the peers in their own virtual environment, which `make bench` creates."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("BENCH_PEERS_PYTHON", HERE.parent / ".venv-bench" / "bin" / "python")).absolute()
NOT_INSTALLED = "not installed: run `make bench`"


class PeerFailedError(Exception):
    """A peer returned no samples; the message fits into a table cell."""


def run_peer(module: str) -> dict[str, Any]:
    """Run a module of `bench/peers` and parse the JSON that it prints."""
    if not PYTHON.exists():
        raise PeerFailedError(NOT_INSTALLED)
    command = [PYTHON, "-m", f"peers.{module}"]
    result = subprocess.run(command, cwd=HERE, check=False, capture_output=True, text=True)
    if result.returncode:
        errors = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        raise PeerFailedError(errors[-1])
    return json.loads(result.stdout)
