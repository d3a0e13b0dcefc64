"""Conformance suites for implementations of the library's protocols."""

from __future__ import annotations

__all__: list[str] = []
