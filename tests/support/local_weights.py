"""Weights installed on this machine, for tests with a real model. Tests download none."""

from __future__ import annotations

from pathlib import Path

import pytest

from antwort.models.embedded.weights import CATALOGUE, WeightsCache


def find_local_weights() -> Path:
    """The smallest installed weights; the test is skipped if there are none."""
    cache = WeightsCache()
    installed = [weights for weights in CATALOGUE.values() if cache.has(weights)]
    if not installed:
        pytest.skip(f"no weights in {cache.folder}: `antwort model pull` downloads some")
    return cache.path(min(installed, key=lambda weights: weights.size))
