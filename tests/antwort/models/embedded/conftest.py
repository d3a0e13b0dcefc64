"""What the tests of weights share: a source of tiny ones, and a folder to keep them in."""

from __future__ import annotations

import pytest
from fake_weights_hub import sourcing

from antwort.models.embedded.weights import Cache


@pytest.fixture
def source():
    with sourcing() as source:
        yield source


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "models")
