"""Checks of tools: what each tool is asked to do, and the behaviours that all of them have in common."""

from __future__ import annotations

from antwort.conformance.tools.behaviours import BEHAVIOURS, ToolChecks, applicable
from antwort.conformance.tools.cases import CASES, ToolCase

__all__ = ["BEHAVIOURS", "CASES", "ToolCase", "ToolChecks", "applicable"]
