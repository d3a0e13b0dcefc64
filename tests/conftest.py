"""Settings of all tests: contracts, hypothesis, event loop."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from session_end import SESSION

# Contracts (weakincentives.dbc) are enabled when they are decorated, so this comes before the package is imported.
os.environ.setdefault("WEAKINCENTIVES_DBC", "1")

# No deadline per example, because the tests also run on slow machines. In CI the examples are the same in every run.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


def pytest_sessionfinish() -> None:
    SESSION.close()


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
