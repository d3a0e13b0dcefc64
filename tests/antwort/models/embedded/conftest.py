"""Fixtures of the weights tests: a fake hub with a tiny weights file, and an empty cache."""

from __future__ import annotations

import pytest
from fake_weights_hub import running_hub

from antwort.models.embedded.weights import WeightsCache


@pytest.fixture
def hub():
    with running_hub() as hub:
        yield hub


@pytest.fixture
def cache(tmp_path):
    return WeightsCache(tmp_path / "models")
