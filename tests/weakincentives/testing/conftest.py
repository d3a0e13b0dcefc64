"""Fixtures of the conformance suites' own tests."""

from __future__ import annotations

from fixtures_filesystem import opener

__all__ = ["opener"]
