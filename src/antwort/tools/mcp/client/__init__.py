"""Client of MCP servers, on the official SDK: sessions, listing, calls. Knows nothing of responses and items.

targets      servers, limits, and what a session returns
thread       `McpClient`: the thread that all sessions live in
pool         one session for each tenant, server and credentials
session      one session
transport    HTTP: checked addresses, bounded answers
stdio        a program in a jail
listing      checks of tools and their schemas
content      results as text

Only `targets` and `thread` may be imported outside of the thread: the others import the SDK.
"""

from __future__ import annotations

from antwort.tools.mcp.client.targets import (
    HttpTarget,
    ListedTool,
    McpFault,
    McpToolResult,
    SessionLimits,
    StdioTarget,
    Target,
    ToolListing,
)
from antwort.tools.mcp.client.thread import McpClient

__all__ = [
    "HttpTarget",
    "ListedTool",
    "McpClient",
    "McpFault",
    "McpToolResult",
    "SessionLimits",
    "StdioTarget",
    "Target",
    "ToolListing",
]
