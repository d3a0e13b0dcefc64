"""MCP (`mcp`): the provider calls the tools of a Model Context Protocol server.

A call may need approval, for which the provider asks the client. `McpConfig.approve` decides; without it every call is
denied, because the arguments that a model sends to a third party may contain anything in its context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import (
    PROVIDER,
    Capability,
    ClientMustRun,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
    failed_result,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, get_call_id, get_str
from weakincentives.adapters.turn import ToolOutput
from weakincentives.prompt import NativeDeclaration, ToolContext, ToolResult

_NO_APPROVE_FUNCTION = "McpConfig has no `approve` function"


@dataclass(frozen=True, slots=True)
class McpApproval:
    """A call that needs approval."""

    server_label: str = ""
    name: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class McpDecision:
    """Approval or denial of a call, with the reason."""

    approve: bool = False
    reason: str = ""

    def render(self) -> str:
        """The decision as text."""
        return f"{'Approved' if self.approve else 'Denied'}{f': {self.reason}' if self.reason else ''}."


@dataclass(frozen=True, kw_only=True)
class McpConfig:
    """An MCP server, and the tools that the model may call.

    The server is named by its URL, as a connector or tunnel of the provider, or by its label alone, if the operator of
    the API has configured a server of this label, as `providers.mcp.servers` of `antwort` does. Such a server has its
    credentials in that configuration; `authorization` and `headers` are not for it. OpenAI knows no such servers, and
    refuses a label alone.

    `require_approval` is `"always"`, `"never"`, or a filter in wire form; without it every call needs approval.
    `approve` returns whether a call is approved, or an `McpDecision` with a reason.
    """

    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    authorization: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    allowed_tools: tuple[str, ...] | None = None
    require_approval: str | Mapping[str, Any] | None = field(default=None, hash=False)
    approve: Callable[[McpApproval, ToolContext], bool | McpDecision] | None = None


_CONFIG_FIELDS = tuple(declared.name for declared in fields(McpConfig) if declared.name != "approve")
"""The fields of `McpConfig` that are sent, under the same names."""


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call of a tool of the server. `arguments` is JSON text as the model wrote it."""

    server_label: str = ""
    name: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class McpResult:
    """The output of the tool."""

    output: str = ""

    def render(self) -> str:
        """The output unchanged."""
        return self.output or "(no output)"


class Mcp(Capability):
    """`mcp` on the wire. A prompt may have several servers with different labels."""

    name = "mcp"
    items = frozenset({"mcp_call", "mcp_list_tools", "mcp_approval_request"})
    config_type = McpConfig
    fields = (*_CONFIG_FIELDS, "defer_loading")
    example = ProviderRan(McpCall("docs", "search", '{"q": "tea"}'), ToolResult("", McpResult("found")))

    def defaults(self) -> object:
        raise ToolConfigError("it needs a server: give McpConfig(server_label=…, server_url=…)")

    def declaration_fields(self, config: McpConfig) -> Wire:
        if not config.server_label:
            raise ToolConfigError("server_label is empty: give the label of the server")
        locations = [name for name in ("server_url", "connector_id", "tunnel_id") if getattr(config, name) is not None]
        if len(locations) > 1:
            given = " and ".join(locations)
            raise ToolConfigError(f"at most one of server_url, connector_id and tunnel_id may be given, not {given}")
        if not locations and (config.authorization is not None or config.headers):
            raise ToolConfigError("authorization and headers need a server_url, connector_id or tunnel_id")
        approval = config.require_approval
        if isinstance(approval, str) and approval not in ("always", "never"):
            raise ToolConfigError(f"require_approval must be 'always', 'never' or a filter, not {approval!r}")
        values: Wire = {name: getattr(config, name) for name in _CONFIG_FIELDS}
        values["headers"] = dict(config.headers) if config.headers else None
        values["allowed_tools"] = None if config.allowed_tools is None else list(config.allowed_tools)
        return without_none(**values)

    def check_declaration(self, given: Mapping[str, Any]) -> Wire | None:
        if not isinstance(given.get("server_label"), str) or not given["server_label"]:
            raise ToolConfigError("server_label must name the server")
        return super().check_declaration(given)

    def slot(self, wire: Wire) -> str:
        return f"{self.name}:{get_str(wire, 'server_label')}"

    def name_in_choice(self, choice: Mapping[str, Any]) -> str | None:
        return choice.get("server_label")

    def choice(self, wire: Wire) -> Wire:
        return {"type": self.name, "server_label": wire["server_label"]}

    def declaration(self, config: object, *, origin: str = "") -> NativeDeclaration:
        label = config.server_label if isinstance(config, McpConfig) else ""
        slot = f"{self.name}:{label}"
        return NativeDeclaration(self.name, label or self.name, PROVIDER, config, None, origin, slot)

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        _ = response
        label, name = get_str(item, "server_label"), get_str(item, "name")
        arguments = get_str(item, "arguments") or "{}"
        match item.get("type"):
            case "mcp_list_tools":
                failed = failed_result({**item, "status": None})
                return None if failed is None else ProviderRan(McpCall(label, "list_tools"), failed)
            case "mcp_approval_request":
                request = McpApproval(label, name, arguments)
                return ClientMustRun(
                    request, lambda context: _decide(request, config, context), lambda output: _answer(item, output)
                )
            case _:
                call = McpCall(label, name, arguments)
                return ProviderRan(call, failed_result(item) or ToolResult.ok(McpResult(_output(item))))


def _output(item: Wire) -> str:
    output = item.get("output")
    return output if isinstance(output, str) else ""


def _decide(request: McpApproval, config: object, context: ToolContext) -> ToolResult[McpDecision]:
    approve = config.approve if isinstance(config, McpConfig) else None
    if approve is None:
        return ToolResult.ok(McpDecision(approve=False, reason=_NO_APPROVE_FUNCTION))
    decision = approve(request, context)
    return ToolResult.ok(decision if isinstance(decision, McpDecision) else McpDecision(approve=bool(decision)))


def _answer(item: Wire, output: ToolOutput) -> Wire:
    decision = output.value if isinstance(output.value, McpDecision) else McpDecision(approve=False, reason=output.text)
    return {
        "type": "mcp_approval_response",
        "approval_request_id": get_call_id(item),
        "approve": decision.approve,
        **({"reason": decision.reason} if decision.reason else {}),
    }


CAPABILITY = Mcp()


class OpenAIMcpSection(NativeSection[McpConfig]):
    """Lets the model use the tools of an MCP server, which the provider calls."""

    capability = CAPABILITY

    def __init__(self, *, default_params: McpConfig, key: str = "") -> None:
        label = cast("str", getattr(default_params, "server_label", ""))
        key = key or f"openai_mcp_{label.lower()}"
        super().__init__(title=f"MCP server {label}", key=key, default_params=default_params)
