"""An MCP server on standard input and output, whose tools say what a program in the jail can do."""

from __future__ import annotations

import os
import signal
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
def grow(size: int) -> str:
    """Use so many bytes of memory."""
    return str(len(b"x" * size))


@server.tool()
def fork() -> str:
    """Start processes without end; how many there were."""
    count = 0
    try:
        while count < 5000:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except OSError as error:
        return f"{count}: {error.strerror}"
    return "without end"


@server.tool()
def fill() -> str:
    """Write files without end; how many bytes fitted."""
    written = 0
    try:
        for number in range(64):
            with Path(f"/tmp/{number}").open("wb") as file:  # noqa: S108 - the jail's own
                written += file.write(bytes(1 << 26))
    except OSError as error:
        return f"{written >> 20}: {error.strerror}"
    return "without end"


@server.tool()
def crash() -> str:
    """End without an answer."""
    os._exit(3)


if __name__ == "__main__":
    print("a line of a log", file=sys.stdout, flush=True)  # noqa: T201 - servers do that
    server.run("stdio")
