"""MCP servers to connect to, limits of their sessions, and what a session returns: tools, results, faults. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from msgspec import Struct

FaultKind: TypeAlias = Literal["http_error", "mcp_protocol_error"]

UNREACHABLE = 502
TIMED_OUT = 504
INTERNAL_ERROR = -32603


@dataclass(frozen=True, kw_only=True)
class HttpTarget:
    """A server over streamable HTTP or SSE. Two targets are the same server if URL and headers are the same."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    is_trusted: bool = False
    """Whether the configuration names the server: then it may have any address."""
    allows_loopback: bool = False
    """Whether this machine may be connected to, although its addresses are not public."""


@dataclass(frozen=True, kw_only=True)
class StdioTarget:
    """A program that speaks MCP on standard input and output, run in a jail."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folders: tuple[str, ...] = ()
    """Folders of the host that the program can read, at the same path."""
    writable_folders: tuple[str, ...] = ()
    has_network: bool = False
    max_memory: int | None = None
    """Bytes. Default: that of a container."""
    max_processes: int | None = None


Target: TypeAlias = HttpTarget | StdioTarget


@dataclass(frozen=True, kw_only=True)
class SessionLimits:
    """Limits of each session."""

    timeout: float = 60.0
    """Seconds for one call."""
    connect_timeout: float = 15.0
    """Seconds for connecting, and for listing the tools."""
    idle_timeout: float = 300.0
    """Seconds after which an unused session is closed."""
    max_bytes: int = 4 * 1024 * 1024
    """Of one message."""
    allow_networks: tuple[str, ...] = ()
    """Networks beside the public internet that targets of requests may be in."""


class ListedTool(Struct, frozen=True):
    """A tool of a server, checked: its schema is a valid JSON schema of an object."""

    name: str
    description: str | None
    input_schema: Mapping[str, Any]
    is_read_only: bool = False
    """What the server says. It is a hint: a server may lie."""
    size: int = 0
    """Bytes of the description and of the schema."""


class ToolListing(Struct, frozen=True):
    """The tools of a server."""

    tools: Sequence[ListedTool]
    problem: str | None = None
    """Which tools were left out, and why."""
    failure: str | None = None
    """Why there is no list."""


class McpToolResult(Struct, frozen=True):
    """The result of a call: its text. `error_content` is set if the tool reports that it failed."""

    text: str
    error_content: list[dict[str, Any]] | None = None


class McpFault(Exception):
    """The server could not be reached, or broke the protocol. The message contains no secret."""

    def __init__(self, kind: FaultKind, code: int, message: str, *, is_unknown_session: bool = False) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.code = code
        self.message = message
        self.is_unknown_session = is_unknown_session
        """Whether the server does not know the session any more, so that it did not read the request."""


def unreachable(message: str) -> McpFault:
    """The server could not be connected to."""
    return McpFault("http_error", UNREACHABLE, message)


def timed_out(message: str) -> McpFault:
    """The server did not answer in time."""
    return McpFault("http_error", TIMED_OUT, message)


def protocol_error(code: int, message: str) -> McpFault:
    """The server answered with an error, or with something that is not MCP."""
    return McpFault("mcp_protocol_error", code, message)
