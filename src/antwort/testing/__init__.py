"""Conformance suites: tests that every store, model, sandbox backend and sandbox server must pass."""

from __future__ import annotations

__all__: list[str] = []
