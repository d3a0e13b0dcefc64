"""MCP: the provider calls the tools of a server that speaks the Model Context Protocol.

A call may need approval, which the provider asks us for. It is given by a function of the caller's and never by
default: what a model sends to a third party may be anything that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import (
    PROVIDER,
    Capability,
    ConfigError,
    LeftToUs,
    NativeSection,
    Ran,
    Reading,
    Scene,
    failure,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, call_id_of, text_in
from weakincentives.adapters.turn import ToolOutput
from weakincentives.prompt import NativeDeclaration, ToolContext, ToolResult

_NOBODY_ASKED = "nobody was asked: McpConfig has no `approve`"


@dataclass(frozen=True, slots=True)
class McpApproval:
    """A call that the model wants to make, and may not without leave."""

    server_label: str = ""
    name: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class McpDecision:
    """Whether it may, and why."""

    approve: bool = False
    reason: str = ""

    def render(self) -> str:
        """In words."""
        return f"{'Approved' if self.approve else 'Denied'}{f': {self.reason}' if self.reason else ''}."


@dataclass(frozen=True, kw_only=True)
class McpConfig:
    """A server, by its address or as a connector of the provider's, and what of it the model may use.

    `require_approval` is `"always"`, `"never"`, or the provider's own filter; left out, the provider asks before every
    call. `approve` answers; it returns whether the call may be made, or an `McpDecision` with a reason.
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


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call of one of the server's tools. `arguments` is JSON text, as the model wrote it."""

    server_label: str = ""
    name: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class McpResult:
    """What the server's tool answered."""

    output: str = ""

    def render(self) -> str:
        """As it came."""
        return self.output or "(no output)"


class Mcp(Capability):
    """`mcp` on the wire. A prompt may have several, each with a label of its own."""

    name = "mcp"
    items = frozenset({"mcp_call", "mcp_list_tools", "mcp_approval_request"})
    config_type = McpConfig
    fields = (
        "server_label",
        "server_url",
        "connector_id",
        "tunnel_id",
        "server_description",
        "authorization",
        "headers",
        "allowed_tools",
        "require_approval",
        "defer_loading",
    )
    example = Ran(McpCall("docs", "search", '{"q": "tea"}'), ToolResult("", McpResult("found")))

    def defaults(self) -> object:
        raise ConfigError("it needs a server: give McpConfig(server_label=…, server_url=…)")

    def write(self, config: McpConfig) -> Wire:
        if not config.server_label:
            raise ConfigError("server_label must name the server, and is empty")
        ways = [name for name in ("server_url", "connector_id", "tunnel_id") if getattr(config, name) is not None]
        if len(ways) != 1:
            given = " and ".join(ways) or "none"
            raise ConfigError(f"exactly one of server_url, connector_id and tunnel_id must be given, not {given}")
        wanted = config.require_approval
        if isinstance(wanted, str) and wanted not in ("always", "never"):
            raise ConfigError(f"require_approval must be 'always', 'never' or a filter, not {wanted!r}")
        return without_none(
            server_label=config.server_label,
            server_url=config.server_url,
            connector_id=config.connector_id,
            tunnel_id=config.tunnel_id,
            server_description=config.server_description,
            authorization=config.authorization,
            headers=dict(config.headers) if config.headers else None,
            allowed_tools=list(config.allowed_tools) if config.allowed_tools is not None else None,
            require_approval=config.require_approval,
        )

    def adopt(self, given: Mapping[str, Any]) -> Wire | None:
        if not isinstance(given.get("server_label"), str) or not given["server_label"]:
            raise ConfigError("server_label must name the server")
        return super().adopt(given)

    def slot(self, wire: Wire) -> str:
        return f"{self.name}:{wire['server_label']}"

    def slot_of(self, item: Wire) -> str:
        return f"{self.name}:{text_in(item, 'server_label')}"

    def chosen_by(self, choice: Mapping[str, Any]) -> str | None:
        return choice.get("server_label")

    def choice(self, wire: Wire) -> Wire:
        return {"type": self.name, "server_label": wire["server_label"]}

    def declaration(self, config: object, *, origin: str = "") -> NativeDeclaration:
        label = config.server_label if isinstance(config, McpConfig) else ""
        slot = f"{self.name}:{label}"
        return NativeDeclaration(self.name, label or self.name, PROVIDER, config, None, origin, slot)

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        _ = scene
        label, name = text_in(item, "server_label"), text_in(item, "name")
        arguments = text_in(item, "arguments") or "{}"
        match item.get("type"):
            case "mcp_list_tools":
                broken = failure({**item, "status": None})
                return None if broken is None else Ran(McpCall(label, "list_tools"), broken)
            case "mcp_approval_request":
                asked = McpApproval(label, name, arguments)
                return LeftToUs(
                    asked, lambda context: _decide(asked, config, context), lambda said: _answer(item, said)
                )
            case _:
                call = McpCall(label, name, arguments)
                return Ran(call, failure(item) or ToolResult.ok(McpResult(_output(item))))


def _output(item: Wire) -> str:
    output = item.get("output")
    return output if isinstance(output, str) else ""


def _decide(asked: McpApproval, config: object, context: ToolContext) -> ToolResult[McpDecision]:
    approve = config.approve if isinstance(config, McpConfig) else None
    if approve is None:
        return ToolResult.ok(McpDecision(approve=False, reason=_NOBODY_ASKED))
    decided = approve(asked, context)
    return ToolResult.ok(decided if isinstance(decided, McpDecision) else McpDecision(approve=bool(decided)))


def _answer(item: Wire, said: ToolOutput) -> Wire:
    decided = said.value if isinstance(said.value, McpDecision) else McpDecision(approve=False, reason=said.text)
    return {
        "type": "mcp_approval_response",
        "approval_request_id": call_id_of(item),
        "approve": decided.approve,
        **({"reason": decided.reason} if decided.reason else {}),
    }


CAPABILITY = Mcp()


class OpenAIMcpSection(NativeSection[McpConfig]):
    """Lets the model use the tools of an MCP server, which the provider calls."""

    capability = CAPABILITY

    def __init__(self, *, default_params: McpConfig, key: str = "") -> None:
        label = cast("str", getattr(default_params, "server_label", ""))
        super().__init__(
            title=f"MCP server {label}",
            key=key or f"openai_mcp_{label.lower()}",
            default_params=default_params,
            accepts_overrides=False,
        )
