"""An MCP server on standard input and output, with one tool."""

from __future__ import annotations

from mcp.server import MCPServer


def customer(number: int) -> str:
    """The name of the customer with this number."""
    return {7: "Ada Lovelace"}[number]


server = MCPServer("crm")
server.add_tool(customer)
server.run("stdio")
