"""Remote MCP servers."""
from __future__ import annotations
