"""A stage for a real model: the weights that are on this machine, the quickest first. None are fetched for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from antwort.models.embedded.weights import CATALOGUE, Cache


def weights_here() -> Path:
    """Weights to test with; without any, the test is skipped, and says why."""
    cache = Cache()
    here = [weights for weights in CATALOGUE.values() if cache.has(weights)]
    if not here:
        pytest.skip(f"there are no weights in {cache.folder}: `antwort model pull` fetches some")
    return cache.path(min(here, key=lambda weights: weights.size))
