"""The server that a declaration names: by its URL, or by the label of a server of the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import UNSET

from antwort.api.errors import invalid, missing_parameter
from antwort.api.tools import McpTool
from antwort.mcp_settings import McpServerSettings, McpSettings
from antwort.net.fetch import FetchRefused, check_url
from antwort.tools.mcp.client import HttpTarget, StdioTarget, Target

_TOKEN_RE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE_RE: Final = re.compile(r"[\x20-\x7e\t]{0,8192}")
_MAX_HEADERS: Final = 32
_MAX_LISTED: Final = 20
_OWN_HEADERS: Final = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host"),
        *("keep-alive", "last-event-id", "mcp-protocol-version", "mcp-session-id", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    }
)
"""Headers that the transport sets."""


class McpServers:
    """The servers of the configuration, and those that requests may name by URL."""

    def __init__(
        self, settings: McpSettings, environment: Mapping[str, str], allows_loopback: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._allows_loopback = allows_loopback
        self._configured = {label: _target(server, environment) for label, server in settings.servers.items()}

    @property
    def labels(self) -> list[str]:
        return sorted(self._configured)

    @property
    def programs(self) -> dict[str, StdioTarget]:
        """The servers that are programs, by label."""
        return {label: one for label, one in self._configured.items() if isinstance(one, StdioTarget)}

    def settings_of(self, tool: McpTool) -> McpServerSettings | None:
        """The settings of a server of the configuration; None of one that the request names by its URL."""
        return self._settings.servers.get(tool.server_label) if tool.server_url is None else None

    def find(self, tool: McpTool, param: str) -> Target:
        """The server of a declaration; `ApiError` 400."""
        for name in ("connector_id", "tunnel_id"):
            if getattr(tool, name) not in (None, UNSET):
                message = f"'{name}' names a service of OpenAI, which this server cannot reach. Give a 'server_url'."
                raise invalid(message, param=f"{param}.{name}", code="unsupported_parameter")
        if tool.server_url is None:
            return self._find_configured(tool, param)
        if not self._settings.allow_urls:
            message = f"This server connects to MCP servers of its configuration only: {self._listed()}."
            raise invalid(message, param=f"{param}.server_url")
        try:
            check_url(tool.server_url)
        except FetchRefused as error:
            raise invalid(f"Invalid '{param}.server_url': {error}.", param=f"{param}.server_url") from error
        headers = _headers(tool, param)
        return HttpTarget(url=tool.server_url, headers=headers, allows_loopback=self._allows_loopback())

    def _find_configured(self, tool: McpTool, param: str) -> Target:
        found = self._configured.get(tool.server_label)
        if found is None:
            if not self._configured:
                raise missing_parameter(f"{param}.server_url")
            message = (
                f"No MCP server '{tool.server_label}' is configured, and the tool has no 'server_url'. Configured "
                f"servers: {self._listed()}."
            )
            raise invalid(message, param=f"{param}.server_label")
        for name in ("authorization", "headers"):
            if getattr(tool, name) not in (None, UNSET):
                message = f"The configuration has the credentials of the MCP server '{tool.server_label}'."
                raise invalid(message, param=f"{param}.{name}")
        return found

    def _listed(self) -> str:
        labels = self.labels
        more = ", …" if len(labels) > _MAX_LISTED else ""
        return (", ".join(map(repr, labels[:_MAX_LISTED])) or "none") + more


def _headers(tool: McpTool, param: str) -> tuple[tuple[str, str], ...]:
    """The HTTP headers of a declaration, with the token of `authorization`."""
    headers = {name.lower(): value for name, value in (tool.headers or {}).items()}
    place = f"{param}.headers"
    if len(tool.headers or ()) > _MAX_HEADERS:
        raise invalid(f"Invalid '{place}': at most {_MAX_HEADERS} headers.", param=place)
    for name, value in headers.items():
        if not _TOKEN_RE.fullmatch(name) or not _VALUE_RE.fullmatch(value):
            raise invalid(f"Invalid '{place}': not a valid HTTP header.", param=place)
        if name in _OWN_HEADERS:
            raise invalid(f"Invalid '{place}': '{name}' is set by the server.", param=place)
    token = tool.authorization
    if isinstance(token, str):
        place = f"{param}.authorization"
        if "authorization" in headers:
            message = "Give either 'authorization' or a header 'Authorization'."
            raise invalid(message, param=place, code="mutually_exclusive_parameters")
        if not token or not _VALUE_RE.fullmatch(token):
            raise invalid(f"Invalid '{place}': not a valid token.", param=place)
        headers["authorization"] = f"Bearer {token}"
    return tuple(sorted(headers.items()))


def _target(server: McpServerSettings, environment: Mapping[str, str]) -> Target:
    if server.command is not None:
        inherited = {name: environment[name] for name in server.environment_from}
        return StdioTarget(
            command=tuple(server.command),
            environment=tuple(sorted({**server.environment, **inherited}.items())),
            folders=tuple(server.folders),
            writable_folders=tuple(server.writable_folders),
            has_network=server.network,
            max_memory=server.max_memory,
            max_processes=server.max_processes,
        )
    headers = {name.lower(): environment[variable] for name, variable in server.headers_env.items()}
    if server.authorization_env is not None:
        headers["authorization"] = f"Bearer {environment[server.authorization_env]}"
    return HttpTarget(url=server.url or "", headers=tuple(sorted(headers.items())), is_trusted=True)
