"""Containers API: records, lifecycle, files, and the sandboxes that run the code of containers.

One execution passes through `containers` (owner, expiry, lock), `registry` (its sandbox; a
new one where the old one died), `sandboxes` (HTTP client), `files` (what the code wrote).
"""

from __future__ import annotations

from antwort.containers.containers import Containers, ContainerSpec
from antwort.engine.stores import AUTO_CONTAINER

__all__ = ["AUTO_CONTAINER", "ContainerSpec", "Containers"]
