"""Memory tiers by name, refused where the host has less memory."""

from __future__ import annotations

import pytest

from antwort.sandbox.errors import Refused
from antwort.sandbox.limits import GIB, TIERS, tier


@pytest.mark.parametrize("name, size", TIERS.items())
def test_a_tier_has_its_memory_and_half_of_it_as_disk(name, size):
    limits = tier(name, host_bytes=64 * GIB)
    assert (limits.memory_bytes, limits.disk_bytes) == (size, size // 2)


def test_a_tier_larger_than_the_host_is_refused():
    with pytest.raises(Refused, match="choose a smaller one"):
        tier("64g", host_bytes=16 * GIB)


@pytest.mark.parametrize("name", ["", "2g", "1G", "1g "])
def test_an_unknown_tier_lists_the_valid_ones(name):
    with pytest.raises(Refused, match="1g, 4g, 16g, 64g"):
        tier(name, host_bytes=64 * GIB)
