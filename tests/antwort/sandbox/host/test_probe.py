"""Isolation probe: reported states, required layers, memory of the cgroup."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from antwort.sandbox import probe
from antwort.sandbox.errors import WeakHost
from antwort.sandbox.host.probe import LAYER_DESCRIPTIONS, REQUIRED_LAYERS
from antwort.sandbox.limits import GIB


@pytest.fixture(scope="module")
def host():
    return probe()


def test_every_protection_is_described(host):
    assert [(name, meaning) for name, _, meaning in host.lines()] == list(LAYER_DESCRIPTIONS.items())


def test_without_cgroups_the_fallback_is_described(host):
    without = replace(host, cgroups=None, no_cgroups_reason="the reason")
    states = {name: state for name, state, _ in without.lines()}
    assert states["cgroups"].startswith("no: the reason. Resource limits and a watchdog are used instead")
    assert "not counted" in states["cgroups"]
    assert without.claim_cgroups() is without


@pytest.mark.parametrize("missing", sorted(REQUIRED_LAYERS))
def test_a_missing_layer_must_be_waived_by_name(host, missing):
    weak = replace(host, layers=REQUIRED_LAYERS - {missing}, root=False)
    with pytest.raises(WeakHost, match=f"--allow-weaker-isolation={missing}"):
        weak.require(frozenset())
    with pytest.raises(WeakHost):
        weak.require(REQUIRED_LAYERS - {missing})
    weak.require(frozenset({missing}))
    replace(host, layers=REQUIRED_LAYERS).require(frozenset())


@contextlib.contextmanager
def limited_cgroup(size: int) -> Iterator[Path]:
    """A child cgroup with this memory limit."""
    root = Path("/sys/fs/cgroup")
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [root / "memory" / path.strip("/") for _, names, path in lines if names == "memory"]
    paths += [root / path.strip("/") for number, _, path in lines if number == "0"]
    cgroup = paths[0] / f"test-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be created: {error}")
    try:
        name = next((n for n in ("memory.max", "memory.limit_in_bytes") if (cgroup / n).exists()), None)
        if name is None:
            pytest.skip("the memory controller is not available")
        (cgroup / name).write_text(str(size))
        yield cgroup
    finally:
        cgroup.rmdir()


def test_memory_is_the_limit_of_the_servers_cgroup():
    script = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    script += "from antwort.sandbox import probe; print(probe().memory_bytes)"
    with limited_cgroup(GIB) as cgroup:
        command = [sys.executable, "-c", script, str(cgroup / "cgroup.procs")]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert int(seen.stdout) == GIB
