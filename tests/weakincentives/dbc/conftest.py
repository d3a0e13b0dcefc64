"""Contracts are enabled for everything that these tests decorate."""

from __future__ import annotations

import pytest

from weakincentives.dbc.conditions import ENABLING_VARIABLE


@pytest.fixture(autouse=True)
def contracts_enabled(monkeypatch):
    monkeypatch.setenv(ENABLING_VARIABLE, "1")
