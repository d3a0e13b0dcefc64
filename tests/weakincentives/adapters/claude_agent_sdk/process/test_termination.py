from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from weakincentives.adapters.claude_agent_sdk.process.termination import end_processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the proc filesystem")

SLEEP = "import time; print('begun', flush=True); time.sleep(600)"


def start(**environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    return process


def test_processes_are_found_by_their_environment():
    value = uuid.uuid4().hex
    mine, child, other = start(A=value), start(A=value, B="1"), start(A=f"{value}2")
    try:
        assert sorted(end_processes("A", value)) == sorted([mine.pid, child.pid])
        assert mine.wait(10) == child.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        assert end_processes("A", value) == []
    finally:
        for process in (mine, child, other):
            process.kill()
            process.communicate()
