"""Hosted tool `mcp`: lists and calls the tools of MCP servers, for any chat model.

provider     finds the server, lists its tools, opens the tool from the configuration
servers      the server of a declaration: by URL, or by a label of the configuration
policy       `allowed_tools` and `require_approval`
approvals    approval requests, and the answers to them
prepared     the tools of one server in one response
call         one call, from its arguments to its item
metrics      calls by their outcome
client       sessions with MCP servers, on the official SDK
"""

from __future__ import annotations

from antwort.tools.mcp.provider import McpProvider, OpenedMcp, check_mcp, open_mcp

__all__ = ["McpProvider", "OpenedMcp", "check_mcp", "open_mcp"]
