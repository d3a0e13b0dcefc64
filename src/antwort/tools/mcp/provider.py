"""Provider of the hosted tool `mcp`: finds the server of a declaration, lists its tools, and reads approvals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final
from weakref import WeakValueDictionary

from msgspec import Struct, structs

from antwort.api.errors import ApiError, invalid
from antwort.api.tools import McpTool, ToolDeclaration
from antwort.config import Config, ConfigError
from antwort.engine.ports import ToolContext
from antwort.extras import install_command
from antwort.mcp_settings import McpSettings
from antwort.sealing import Sealer
from antwort.tools.mcp.approvals import Approvals
from antwort.tools.mcp.client import McpClient, McpFault, SessionLimits, Target, ToolListing
from antwort.tools.mcp.metrics import McpMetrics
from antwort.tools.mcp.policy import is_allowed
from antwort.tools.mcp.prepared import PreparedMcp
from antwort.tools.mcp.servers import McpServers
from antwort.tools.registry import ProviderDefaults

NAME: Final = "mcp"
MAX_OFFERED: Final = 256
"""Tools of one server that a model is offered."""
MAX_OFFERED_BYTES: Final = 4 * 1024 * 1024
"""Of the descriptions and schemas of all servers of a response: they are in its output, and in each prompt."""
_FAILED_DEPENDENCY: Final = 424


class _Offered:
    """The size of the tools that the servers of one response have offered."""

    def __init__(self) -> None:
        self.size = 0


class OpenedMcp(Struct, frozen=True):
    """The provider, or None where the tool is off; and a description for the startup banner."""

    provider: McpProvider | None
    description: str


class McpProvider(ProviderDefaults):
    """`FunctionProvider` of `mcp`."""

    name = NAME
    tools = (NAME,)

    def __init__(self, client: McpClient, servers: McpServers, approvals: Approvals) -> None:
        self._client = client
        self._servers = servers
        self._approvals = approvals
        self._metrics = McpMetrics()
        self._offered: WeakValueDictionary[tuple[str, str], _Offered] = WeakValueDictionary()
        """By tenant and id of the response, which holds it by its prepared tools."""

    def metrics(self) -> Sequence[Any]:
        return self._metrics.collectors

    async def aclose(self) -> None:
        await self._client.aclose()

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedMcp:
        assert isinstance(tool, McpTool)  # noqa: S101 - the only type in `tools`
        approved = self._approvals.approved(context, tool.server_label)
        offered = self._offered.setdefault((context.owner.tenant, context.response_id), _Offered())
        target: Target | None = None
        try:
            target = self._servers.find(tool, param)
            listing = await self._list(context.owner.tenant, target, tool, param)
            _add_size(offered, listing, param)
        except ApiError as error:
            if param.endswith("]"):
                raise
            # The stored history declares the server, without its credentials: it must stay usable.
            listing = ToolListing((), failure=error.message)
        settings = self._servers.settings_of(tool)
        description = tool.server_description or (settings and settings.description)
        return PreparedMcp(
            None if target is None else partial(self._client.call_tool, context.owner.tenant, target),
            tool,
            listing,
            self._approvals,
            approved,
            context,
            self._metrics,
            description=description,
            shared=offered,
        )

    async def _list(self, tenant: str, target: Target, tool: McpTool, param: str) -> ToolListing:
        """The tools that the request may use; `ApiError` 424 if the server does not list them."""
        try:
            listing = await self._client.list_tools(tenant, target)
        except McpFault as fault:
            self._metrics.record_failed_list()
            raise ApiError(
                _FAILED_DEPENDENCY,
                f"Error retrieving tool list from MCP server: '{tool.server_label}'. {_reason(fault)}",
                kind="external_connector_error",
                code=fault.kind,
                param=param,
            ) from fault
        settings = self._servers.settings_of(tool)
        allowed = None if settings is None else settings.allowed_tools
        tools = [one for one in listing.tools if is_allowed(one, tool) and (allowed is None or one.name in allowed)]
        if len(tools) > MAX_OFFERED:
            message = (
                f"MCP server '{tool.server_label}' has {len(tools)} tools; at most {MAX_OFFERED} are possible. Name "
                "those that the model needs in 'allowed_tools'."
            )
            raise invalid(message, param=f"{param}.allowed_tools", code="array_above_max_length")
        return structs.replace(listing, tools=tools)


def _add_size(offered: _Offered, listing: ToolListing, param: str) -> None:
    size = sum(tool.size for tool in listing.tools)
    if offered.size + size > MAX_OFFERED_BYTES:
        message = (
            f"The tools of the MCP servers have more than {MAX_OFFERED_BYTES} bytes of descriptions and schemas. Name "
            "those that the model needs in 'allowed_tools'."
        )
        raise invalid(message, param=f"{param}.allowed_tools", code="array_above_max_length")
    offered.size += size


def open_mcp(
    config: Config, environment: Mapping[str, str], sealer: Sealer, requires_key: Callable[[], bool]
) -> OpenedMcp:
    """Open the tool with the servers of the configuration. Nothing is connected to before it is used.

    A server that requires no key accepts loopback clients only: these reach loopback without it, too.
    """
    settings = config.providers.mcp
    if (reason := _why_off(settings, environment)) is not None:
        return OpenedMcp(None, reason)
    limits = SessionLimits(
        timeout=settings.timeout,
        connect_timeout=settings.connect_timeout,
        idle_timeout=settings.idle_timeout,
        max_bytes=settings.max_bytes,
        allow_networks=(*config.fetch.allow_networks, *settings.allow_networks),
    )
    servers = McpServers(settings, environment, lambda: not requires_key())
    provider = McpProvider(McpClient(limits), servers, Approvals(sealer))
    return OpenedMcp(provider, _description(config, servers))


def check_mcp(config: Config, environment: Mapping[str, str]) -> list[str]:
    """What the configuration says, and for each program whether it can be started in its jail. Starts none. Blocks."""
    if (reason := _why_off(config.providers.mcp, environment)) is not None:
        return [reason]
    from antwort.tools.mcp.client.jail import problem_of_jail  # noqa: PLC0415 - `antwort doctor` only

    servers = McpServers(config.providers.mcp, environment, lambda: False)
    problems = {label: problem_of_jail(target) for label, target in servers.programs.items()}
    return [
        _description(config, servers),
        *(
            f"{label}: {'its jail works' if one is None else f'cannot be started: {one}'}"
            for label, one in problems.items()
        ),
    ]


def _why_off(settings: McpSettings, environment: Mapping[str, str]) -> str | None:
    """Why the tool is off; `ConfigError` if the configuration needs what is not there."""
    if settings.enabled is False:
        return "off, as the configuration says"
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        if settings.enabled or settings.servers:
            raise ConfigError(f"providers.mcp: needs the extra `mcp`: {install_command('mcp')}")
        return f"off: needs the extra `mcp`: {install_command('mcp')}"
    for label, server in settings.servers.items():
        if missing := sorted(server.variables - environment.keys()):
            raise ConfigError(f"providers.mcp.servers.{label}: the environment variable {missing[0]} is not set")
    return None


def _description(config: Config, servers: McpServers) -> str:
    settings = config.providers.mcp
    named = [f"{label} (program in a jail)" if settings.servers[label].command else label for label in servers.labels]
    listed = f"configured: {', '.join(named)}" if named else "none configured"
    return f"{'servers by URL' if settings.allow_urls else 'no servers by URL'}; {listed}"


def _reason(fault: McpFault) -> str:
    if fault.kind == "http_error":
        return f"Http status code: {fault.code} ({fault.message})"
    return f"MCP error {fault.code}: {fault.message}"
