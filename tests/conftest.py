"""Hypothesis settings and the event loop of all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# No deadline per example, because the tests also run on slow machines. In CI the examples are the same in every run.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
