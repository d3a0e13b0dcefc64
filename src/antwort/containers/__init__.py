"""Containers: what the Containers API means. Records, lifecycle, files, and the sandboxes that run their code."""

from __future__ import annotations

__all__: list[str] = []
