"""What the host is said to give, and what is refused without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antwort.sandbox import probe
from antwort.sandbox.errors import WeakHost
from antwort.sandbox.host import MEANING, WALLS


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


@pytest.mark.parametrize("missing", WALLS)
def test_a_missing_wall_must_be_waived_by_its_name(host, missing):
    weak = replace(host, walls=WALLS - {missing}, root=False)
    with pytest.raises(WeakHost, match=f"--allow-weaker-isolation={missing}"):
        weak.require(frozenset())
    with pytest.raises(WeakHost):
        weak.require(WALLS - {missing})
    weak.require(frozenset({missing}))
    replace(host, walls=WALLS).require(frozenset())
