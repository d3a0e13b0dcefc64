"""Containers: what the Containers API means. Records, lifecycle, files, and the sandboxes that run their code.

Follow one execution: `containers` (whose it is, whether it lives, whose turn it is) → `holdings` (its sandbox, a new
one where the old one died) → `sandboxes` (the way to it) → `files` (what is new in it), and back.
"""

from __future__ import annotations

from antwort.containers.containers import AUTO, Containers, ContainerSpec, Executed

__all__ = ["AUTO", "ContainerSpec", "Containers", "Executed"]
