"""Clients of other projects as subprocesses: their environments, and the server that they run against.

`make test-clients` installs them and runs these tests without a network: see scripts/offline.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures_server import ROOT, Server

PROGRAMS = ROOT / "tests" / "clients" / "programs"
ENVIRONMENT = ROOT / os.environ.get("CLIENTS_VENV", ".venv-clients")
NODE_MODULES = ENVIRONMENT / "node" / "node_modules"
TIMEOUT = 120

DEVELOPMENT_PYTHON = Path(sys.executable)
CLIENTS_PYTHON = ENVIRONMENT / "bin" / "python"
NODE = ENVIRONMENT / "bin" / "node"


def client_environment(directory: Path, server: Server) -> dict[str, str]:
    """The variables of a client: address and key of the server, and a home directory of its own."""
    search_path = [str(ENVIRONMENT / "bin"), str(NODE_MODULES / ".bin"), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(search_path),
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "none",
    }


def run_client(command: list[str | Path], directory: Path, environment: dict[str, str]) -> str:
    """Run a client to its end, and return its standard output. It has a process group, which ends with it."""
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as client:
        try:
            output, errors = client.communicate(timeout=TIMEOUT)
        finally:
            _end_group(client.pid)
    assert client.returncode == 0, f"{errors}\n{output}"
    return output


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def requests(server: Server) -> list[dict[str, Any]]:
    """The log lines of all requests."""
    return [line for line in log_lines(server) if line["event"] == "request"]


def log_lines(server: Server) -> list[dict[str, Any]]:
    """The log of the server."""
    return [json.loads(line) for line in server.read_log().splitlines()]
