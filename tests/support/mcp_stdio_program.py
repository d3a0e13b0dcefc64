"""An MCP server on standard input and output, whose tools say what a program in the jail can do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("files")


@server.tool()
def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text(encoding="utf-8")


@server.tool()
def write(path: str, text: str) -> str:
    """Write a file."""
    return str(Path(path).write_text(text, encoding="utf-8"))


@server.tool()
def environment() -> str:
    """The environment, and who the program is."""
    return " ".join([*sorted(f"{name}={value}" for name, value in os.environ.items()), f"uid={os.getuid()}"])


@server.tool()
def connect(port: int) -> str:
    """Connect to this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


@server.tool()
def flood(size: int) -> str:
    """Answer with so many bytes."""
    return "x" * size


@server.tool()
def crash() -> str:
    """End without an answer."""
    os._exit(3)


if __name__ == "__main__":
    print("a line of a log", file=sys.stdout, flush=True)  # noqa: T201 - servers do that
    server.run("stdio")
