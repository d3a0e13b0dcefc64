"""Hosted tools: `registry` maps tool types to providers; `builtins` has one package for each provider."""

from __future__ import annotations

from antwort.tools.registry import FunctionProvider, ProviderCollision, ToolRegistry

__all__ = ["FunctionProvider", "ProviderCollision", "ToolRegistry"]
