"""The real process, asked everything that its own OpenAPI document allows, and some that it does not.

Schemathesis reads `/openapi.json` and does the rest: values at every boundary and beyond,
random bodies, and walks from one operation to the next with the ids that came back. It is
told to try the same every time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest
from fixtures_server import ROOT, create_key, run_server

STAGES = ROOT / "tests" / "stages"

# A schema cannot say what fits together: two histories at once, a call's output without the call. So a request that
# it allows may be refused; and a reference to an item that is not there is a 404 also where the conversation is.
UNSAYABLE = "positive_data_acceptance,ensure_resource_availability"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The server's log and what schemathesis says, from one run."""
    place = tmp_path_factory.mktemp("server")
    key = create_key(place, "schemathesis")
    models = {"scripted": {"kind": "scripted", "script": "script.yaml"}, "default_for_unknown": True}
    interpreter = {"enabled": True, "execution_timeout": 5}
    config = {
        "auth": {"keys_file": "keys.json"},
        "models": models,
        "providers": {"code_interpreter": interpreter},
        "containers": {"max_containers": 10_000, "max_memory": 2**50},
    }
    with run_server(place, config, program=STAGES / "fake_echo_provider.py") as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
        options = ["--checks", "all", "--exclude-checks", UNSAYABLE, "--generation-deterministic", "-n", "10"]
        headers = ["-H", f"Authorization: Bearer {key}", "--warnings", "off"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(STAGES),
            "SCHEMATHESIS_HOOKS": "schema_hooks",
            "SCHEMA_URL": server.url,
            "SCHEMA_KEY": key,
        }
        tried = subprocess.run(
            [*command, *options, *headers],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        yield server, tried


def test_schemathesis_finds_nothing(run):
    _, tried = run

    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_it_got_behind_every_door(run):
    """Every operation was done, not only refused; else the test above would prove little."""
    server, _ = run
    lines = [json.loads(line) for line in server.read_log().splitlines()]
    statuses = defaultdict(set)
    for line in lines:
        if line["event"] == "request":
            statuses[line["route"]].add(line["status"])
    routes = {route for route in statuses if route != "none"}

    assert len(routes) == 37
    assert {route for route in routes if 200 not in statuses[route]} == set()
    assert {status for route in routes for status in statuses[route] if status >= 500} == set()
    assert [line for line in lines if line["event"] == "unexpected_error"] == []
