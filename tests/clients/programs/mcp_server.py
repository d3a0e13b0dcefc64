"""An MCP server on standard input and output, with one tool."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("crm")


@server.tool()
def customer(number: int) -> str:
    """The name of the customer with this number."""
    return {7: "Ada Lovelace"}[number]


server.run("stdio")
