"""What the host is said to give, and what is refused without it."""

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
from antwort.sandbox.host.probe import MEANING, WALLS
from antwort.sandbox.limits import GIB


@pytest.fixture(scope="module")
def host():
    return probe()


def test_every_protection_has_a_line_that_says_what_it_is_for(host):
    assert [(name, meaning) for name, _, meaning in host.lines()] == list(MEANING.items())


def test_without_control_groups_it_says_what_takes_over_and_what_is_not_counted(host):
    without = replace(host, groups=None, why_no_groups="the reason")
    states = {name: state for name, state, _ in without.lines()}
    assert states["cgroups"].startswith("no: the reason. Resource limits and a watchdog instead")
    assert "not counted" in states["cgroups"]
    assert without.claimed() is without


@pytest.mark.parametrize("missing", sorted(WALLS))
def test_a_missing_wall_must_be_waived_by_its_name(host, missing):
    weak = replace(host, walls=WALLS - {missing}, root=False)
    with pytest.raises(WeakHost, match=f"--allow-weaker-isolation={missing}"):
        weak.require(frozenset())
    with pytest.raises(WeakHost):
        weak.require(WALLS - {missing})
    weak.require(frozenset({missing}))
    replace(host, walls=WALLS).require(frozenset())


@contextlib.contextmanager
def limited_group(size: int) -> Iterator[Path]:
    """A control group with this much memory, below our own."""
    root = Path("/sys/fs/cgroup")
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [root / "memory" / path.strip("/") for _, names, path in lines if names == "memory"]
    paths += [root / path.strip("/") for number, _, path in lines if number == "0"]
    group = paths[0] / f"test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        name = next((n for n in ("memory.max", "memory.limit_in_bytes") if (group / n).exists()), None)
        if name is None:
            pytest.skip("control groups made here do not count memory")
        (group / name).write_text(str(size))
        yield group
    finally:
        group.rmdir()


def test_memory_is_what_our_own_control_group_may_have():
    script = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    script += "from antwort.sandbox import probe; print(probe().memory_bytes)"
    with limited_group(GIB) as group:
        command = [sys.executable, "-c", script, str(group / "cgroup.procs")]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert int(seen.stdout) == GIB
