"""Fixtures of these tests: a fake web site."""

from __future__ import annotations

import pytest
from fake_web_site import fake_web_site


@pytest.fixture(scope="module")
def site():
    with fake_web_site() as running:
        yield running
