"""Strips tool credentials from declarations and items before they are stored or returned.

Credentials are the keys and headers of MCP servers, and the domain secrets of a container's network policy. Only the
tool they belong to receives them, while its response runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from antwort.api.tools import CLIENT_TOOL_TYPES, ToolDeclaration, UncheckedTool

Raw: TypeAlias = dict[str, Any]

REDACTED = "<redacted>"


def without_secrets(tools: Sequence[ToolDeclaration]) -> list[ToolDeclaration]:
    """Declarations without secrets. A declaration that has none is returned as the same object."""
    return [_strip_tool(tool) for tool in tools]


def plain_tools(tools: Sequence[ToolDeclaration]) -> list[Raw]:
    """Declarations as JSON, without secrets. One that was not understood is as it was given."""
    return [
        tool.declaration if isinstance(tool, UncheckedTool) else msgspec.to_builtins(tool)
        for tool in without_secrets(tools)
    ]


def item_without_secrets(item: Raw) -> Raw:
    """An item without secrets: some types contain tool declarations."""
    tools = item.get("tools")
    if item.get("type") not in ("additional_tools", "tool_search_output") or not isinstance(tools, list):
        return item
    return {**item, "tools": [_strip(cast("Raw", one)) if isinstance(one, dict) else one for one in tools]}  # pyright: ignore[reportUnknownVariableType] - any JSON


def _strip_tool(tool: ToolDeclaration) -> ToolDeclaration:
    if isinstance(tool, UncheckedTool):
        return UncheckedTool(_strip(tool.declaration))
    plain: Raw = msgspec.to_builtins(tool)
    stripped = _strip(plain)
    return tool if stripped == plain else msgspec.convert(stripped, type(tool))


def _strip(tool: Raw) -> Raw:
    """A declaration without secrets, also one of an unknown type that has such fields."""
    if tool.get("type") in CLIENT_TOOL_TYPES:
        return tool
    return _strip_network_policy(_strip_network_policy(_strip_mcp(tool), "container"), "environment")


def _strip_mcp(tool: Raw) -> Raw:
    stripped = dict(tool)
    if "authorization" in stripped:
        stripped["authorization"] = None
    if headers := stripped.get("headers"):
        is_known = stripped.get("type") == "mcp" or not isinstance(headers, dict)
        stripped["headers"] = None if is_known else dict.fromkeys(cast("Raw", headers), REDACTED)
    if isinstance(stripped.get("server_url"), str):
        stripped["server_url"] = _strip_userinfo(stripped["server_url"])
    return stripped


def _strip_network_policy(tool: Raw, field: str) -> Raw:
    inner = tool.get(field)
    policy = cast("Raw", inner).get("network_policy") if isinstance(inner, dict) else None
    if not isinstance(policy, dict) or not cast("Raw", policy).get("domain_secrets"):
        return tool
    return {**tool, field: {**cast("Raw", inner), "network_policy": {**policy, "domain_secrets": None}}}


def _strip_userinfo(url: str) -> str:
    """A URL without user name and password."""
    try:
        host = urlsplit(url).netloc
    except ValueError:
        host = url
    return url if "@" not in host else url.replace(host, host.rpartition("@")[2], 1)
