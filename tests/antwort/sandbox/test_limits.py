"""Tiers by name, refused where the host could never hold them."""

from __future__ import annotations

import pytest

from antwort.sandbox.errors import Refused
from antwort.sandbox.limits import GIB, TIERS, tier


@pytest.mark.parametrize("name, size", TIERS.items())
def test_a_tier_is_its_memory_and_half_of_it_as_disk(name, size):
    limits = tier(name, host_bytes=64 * GIB)
    assert (limits.memory_bytes, limits.disk_bytes) == (size, size // 2)


def test_a_tier_that_the_host_cannot_hold_is_refused():
    with pytest.raises(Refused, match="choose a smaller one"):
        tier("64g", host_bytes=16 * GIB)


@pytest.mark.parametrize("name", ["", "2g", "1G", "1g "])
def test_an_unknown_tier_names_those_there_are(name):
    with pytest.raises(Refused, match="1g, 4g, 16g, 64g"):
        tier(name, host_bytes=64 * GIB)
