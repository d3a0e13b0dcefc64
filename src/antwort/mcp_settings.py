"""Configuration of the hosted tool `mcp`, the section `providers.mcp`, and what is invalid in it. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct, field

_LABEL_RE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_URL_RE: Final = re.compile(r"https?://[^\s/?#@]+(?:[/?][^\s#]*)?")
_OF_A_URL: Final = ("authorization_env", "headers_env")
_OF_A_COMMAND: Final = (
    *("folders", "writable_folders", "network", "environment", "environment_from"),
    *("max_memory", "max_processes"),
)


class McpServerSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that requests name by its label: at a URL, or a program that runs in a jail."""

    url: str | None = None
    command: Annotated[list[str], Meta(min_length=1)] | None = None
    """The program and its arguments."""
    description: str | None = None
    """A description of the server for the model, unless the request has a `server_description`."""
    allowed_tools: list[str] | None = None
    """The tools that requests may use. Default: all."""
    authorization_env: str | None = None
    """The environment variable that holds the bearer token of the server."""
    headers_env: dict[str, str] = field(default_factory=dict[str, str])
    """HTTP headers, each with the environment variable that holds its value."""
    max_memory: Annotated[int, Meta(ge=16 * 1024 * 1024)] | None = None
    """Bytes of memory of the program: of each of its processes, and of all of them where there are cgroups."""
    max_processes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """Processes and threads of the program."""
    folders: list[str] = field(default_factory=list[str])
    """Folders that the program can read."""
    writable_folders: list[str] = field(default_factory=list[str])
    network: bool = False
    """Whether the program has the network of the host."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """The environment of the program. Nothing is inherited."""
    environment_from: list[str] = field(default_factory=list[str])
    """Variables of the server's environment that the program gets."""

    @property
    def variables(self) -> set[str]:
        """The environment variables that hold its secrets."""
        own = {self.authorization_env} if self.authorization_env is not None else set[str]()
        return {*own, *self.headers_env.values(), *self.environment_from}


class McpSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """Configuration of MCP servers: those that it names, and limits of all."""

    enabled: bool | None = None
    """Default: on if the extra `mcp` is installed."""
    allow_urls: bool = True
    """Whether a request may name a server by its URL."""
    allow_networks: list[str] = field(default_factory=list[str])
    """Networks beside the public internet that URLs of requests may be in, and those of `fetch.allow_networks`."""
    timeout: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    """Seconds for one call."""
    connect_timeout: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """Seconds for connecting, and for listing the tools."""
    idle_timeout: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    """Seconds after which an unused session is closed."""
    max_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    """Maximum bytes of a message of a server."""
    servers: dict[str, McpServerSettings] = field(default_factory=dict[str, McpServerSettings])


def problem_of_server(label: str, server: McpServerSettings) -> tuple[tuple[str, ...], str] | None:
    """What is invalid in the settings of a server: the key below its label, and the reason."""
    if not _LABEL_RE.fullmatch(label):
        return (), "a label has up to 64 letters, digits, `_` and `-`, and begins with a letter"
    if (server.url is None) == (server.command is None):
        return (), "needs either a `url` or a `command`"
    if server.url is not None and not _URL_RE.fullmatch(server.url):
        return ("url",), "must be a URL like `https://mcp.example/mcp`, without a password"
    needed, names = ("command", _OF_A_COMMAND) if server.url is not None else ("url", _OF_A_URL)
    for name in names:
        if getattr(server, name):
            return (name,), f"is for a server with a `{needed}`"
    for name in ("folders", "writable_folders"):
        if not all(Path(folder).is_absolute() for folder in getattr(server, name)):
            return (name,), "must be absolute paths"
    return None
