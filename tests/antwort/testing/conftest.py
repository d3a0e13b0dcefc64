"""Fixtures of the tests of the conformance suites."""

from __future__ import annotations

from fixtures_sandbox_attacks import package_index, serve, server

__all__ = ["package_index", "serve", "server"]
