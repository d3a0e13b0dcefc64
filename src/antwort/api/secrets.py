"""Secrets that a request brings along for its tools: told to nobody, and written down nowhere. Pure.

They are the keys and headers of MCP servers, and the secrets of the domains that a container may reach. Only
the tool that they are for gets to see them, while its response is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from antwort.api.tools import ToolDeclaration

Raw: TypeAlias = dict[str, Any]

REDACTED = "<redacted>"


def without_secrets(tools: Sequence[ToolDeclaration]) -> list[ToolDeclaration]:
    """Declarations as they are shown and kept. One that had no secrets is the same object."""
    return [_strip_tool(tool) for tool in tools]


def item_without_secrets(item: Raw) -> Raw:
    """An item as it is shown and kept: one that adds tools may bring secrets, too."""
    tools = item.get("tools")
    if item.get("type") != "additional_tools" or not isinstance(tools, list):
        return item
    return {**item, "tools": [_strip(cast("Raw", one)) if isinstance(one, dict) else one for one in tools]}  # pyright: ignore[reportUnknownVariableType] - any JSON


def _strip_tool(tool: ToolDeclaration) -> ToolDeclaration:
    plain: Raw = msgspec.to_builtins(tool)
    cut = _strip(plain)
    return tool if cut == plain else msgspec.convert(cut, type(tool))


def _strip(tool: Raw) -> Raw:
    match tool.get("type"):
        case "mcp":
            return _strip_mcp(tool)
        case "code_interpreter":
            return _strip_network_policy(tool, "container")
        case "shell":
            return _strip_network_policy(tool, "environment")
        case _:
            return tool


def _strip_mcp(tool: Raw) -> Raw:
    cut = dict(tool)
    if "authorization" in cut:
        cut["authorization"] = None
    if cut.get("headers"):  # their names may be seen
        given = cut["headers"]
        cut["headers"] = dict.fromkeys(cast("Raw", given), REDACTED) if isinstance(given, dict) else None
    if isinstance(cut.get("server_url"), str):
        cut["server_url"] = _strip_userinfo(cut["server_url"])
    return cut


def _strip_network_policy(tool: Raw, field: str) -> Raw:
    inner = tool.get(field)
    policy = cast("Raw", inner).get("network_policy") if isinstance(inner, dict) else None
    if not isinstance(policy, dict) or not cast("Raw", policy).get("domain_secrets"):
        return tool
    return {**tool, field: {**cast("Raw", inner), "network_policy": {**policy, "domain_secrets": None}}}


def _strip_userinfo(url: str) -> str:
    """An address without what stands before its `@`."""
    try:
        host = urlsplit(url).netloc
    except ValueError:
        host = url
    return url if "@" not in host else url.replace(host, host.rpartition("@")[2], 1)
