"""Tools that are run here. `registry` knows them all; each has a room of its own in `builtins`."""

from __future__ import annotations

from antwort.tools.registry import FunctionProvider, ProviderCollision, Registry

__all__ = ["FunctionProvider", "ProviderCollision", "Registry"]
