"""Schemathesis run against the server process and its OpenAPI document: valid and invalid requests.

Schemathesis reads `/openapi.json` and generates boundary values, random bodies, and sequences of operations that use
returned ids. The generation is deterministic.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest
from fixtures_server import ROOT, create_key, run_server

pytestmark = pytest.mark.long

SUPPORT = ROOT / "tests" / "support"

# A schema cannot express rules between fields, such as mutually exclusive histories or an output without its call. So
# a valid request may be rejected; and a reference to a missing item is a 404 although the conversation exists.
EXCLUDED_CHECKS = "positive_data_acceptance,ensure_resource_availability"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The server and the completed schemathesis process, from one run."""
    directory = tmp_path_factory.mktemp("server")
    key = create_key(directory, "schemathesis")
    models = {"scripted": {"kind": "scripted", "script": "script.yaml"}, "default_for_unknown": True}
    interpreter = {"enabled": True, "execution_timeout": 5}
    config = {
        "auth": {"keys_file": "keys.json"},
        "models": models,
        "providers": {"code_interpreter": interpreter},
        "containers": {"max_containers": 10_000, "max_memory": 2**50},
        "skills": {"max_skills": 10_000, "max_versions": 10_000, "max_bytes": 2**40},
    }
    with run_server(directory, config, program=SUPPORT / "fake_echo_provider.py") as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
        options = ["--checks", "all", "--exclude-checks", EXCLUDED_CHECKS, "--generation-deterministic", "-n", "10"]
        headers = ["-H", f"Authorization: Bearer {key}", "--warnings", "off"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(SUPPORT),
            "SCHEMATHESIS_HOOKS": "schema_hooks",
            "SCHEMA_URL": server.url,
            "SCHEMA_KEY": key,
        }
        completed = subprocess.run(
            [*command, *options, *headers],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        yield server, completed


def test_schemathesis_finds_no_failure(run):
    _, completed = run

    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_every_operation_succeeded_at_least_once(run):
    """Otherwise the test above would prove little."""
    server, _ = run
    lines = [json.loads(line) for line in server.read_log().splitlines()]
    statuses = defaultdict(set)
    for line in lines:
        if line["event"] == "request":
            statuses[line["route"]].add(line["status"])
    routes = {route for route in statuses if route != "none"}

    assert len(routes) == 52
    assert {route for route in routes if 200 not in statuses[route]} == set()
    assert {status for route in routes for status in statuses[route] if status >= 500} == set()
    assert [line for line in lines if line["event"] == "unexpected_error"] == []
