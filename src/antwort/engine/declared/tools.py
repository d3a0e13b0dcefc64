"""Declared tools: those of the request, and those that items of the history bring. Pure.

`additional_tools` items and the outputs of tool searches bring tools that the model is offered from then on. A later
declaration of a tool replaces an earlier one. Functions with `defer_loading` are offered once a tool search of the
client has brought them; without such a search they are offered at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

from antwort.api import items
from antwort.api.errors import invalid
from antwort.api.ids import new_id
from antwort.api.items import Item, ToolSearchOutput
from antwort.api.requests import CreateResponse, brought_tools
from antwort.api.secrets import plain_tools, without_secrets
from antwort.api.tools import (
    MAX_TOOLS,
    CustomTool,
    FunctionTool,
    McpTool,
    NamespaceTool,
    ToolDeclaration,
    ToolSearchTool,
    member_paths,
    server_label,
    tool_name,
    tool_type,
)

_Key: TypeAlias = tuple[str | None, str, str]


@dataclass(frozen=True)
class DeclaredTool:
    """A tool that is no namespace, and the namespace that it is in."""

    tool: ToolDeclaration
    param: str
    """The path of its declaration in the request; of one in the stored history, the parameter that names that."""
    namespace: NamespaceTool | None = None
    is_found: bool = False
    """Whether a tool search brought it."""

    @property
    def key(self) -> _Key:
        """What identifies a tool: two declarations with the same key are of the same tool."""
        if (label := server_label(self.tool)) is not None:
            return None, tool_type(self.tool), label
        kind = "" if is_function(self.tool) else tool_type(self.tool)
        return self.namespace and self.namespace.name, kind, tool_name(self.tool)

    @property
    def is_given(self) -> bool:
        """Whether the request itself declares it."""
        return self.param.endswith("]")

    @property
    def is_deferred(self) -> bool:
        is_deferred = isinstance(self.tool, (FunctionTool, CustomTool, McpTool)) and self.tool.defer_loading is True
        return is_deferred and not self.is_found

    def replaced_by(self, later: DeclaredTool) -> DeclaredTool:
        """A later declaration of the same tool replaces this one.

        That of an MCP server stays if a tool search has found the server, or the stored history has it: those have no
        credentials, and may have no URL.
        """
        if isinstance(self.tool, McpTool) and self.is_given and (later.is_found or not later.is_given):
            return replace(self, is_found=self.is_found or later.is_found)
        return later


def is_function(tool: ToolDeclaration) -> bool:
    """Whether a tool is a function or a custom tool, which the client runs."""
    return isinstance(tool, (FunctionTool, CustomTool))


def declare(tools: Iterable[ToolDeclaration], param: str = "tools", *, are_found: bool = False) -> list[DeclaredTool]:
    """The tools of one list of declarations, at this path."""
    return [
        DeclaredTool(member, path, tool if isinstance(tool, NamespaceTool) else None, are_found)
        for tool, member, path in member_paths(tools, param)
    ]


def declared_tools(
    request: CreateResponse, before: Sequence[Item], given: Sequence[Item], start: int = 0
) -> list[DeclaredTool]:
    """All tools of a request, each once. The visible history is `before` and its own items from `start` on."""
    found = {tool.key: tool for tool in declare(request.tools or ())}
    brought = [replace(tool, param=request.history_param) for item in before for tool in _brought_by(item, "")]
    for index, item in enumerate(given[start:], start):
        brought += _brought_by(item, f"input[{index}].tools")
    for tool in brought:
        declared = found.get(tool.key)
        found[tool.key] = tool if declared is None else declared.replaced_by(tool)
    if len(found) > MAX_TOOLS:
        message = (
            f"The request and the items of its history declare {len(found)} tools; at most {MAX_TOOLS} are possible."
        )
        raise invalid(message, param="tools", code="array_above_max_length")
    searches = any(isinstance(one.tool, ToolSearchTool) and one.tool.is_client_side for one in found.values())
    return [tool for tool in found.values() if not (searches and tool.is_deferred)]


def _brought_by(item: Item, param: str) -> list[DeclaredTool]:
    return declare(brought_tools(item), param, are_found=isinstance(item.known, ToolSearchOutput))


def merged_tools(history: Iterable[Item]) -> Item | None:
    """One item that brings the tools of all these items; None if they bring none. It has no secrets."""
    found: dict[_Key, DeclaredTool] = {}
    for item in history:
        found |= {tool.key: tool for tool in _brought_by(item, "")}
    if not found:
        return None
    tools = [*_regrouped(found.values())]
    return items.read({"type": "additional_tools", "id": new_id("at_"), "role": "developer", "tools": tools})


def _regrouped(declared: Iterable[DeclaredTool]) -> Iterator[dict[str, Any]]:
    """The declarations of tools, with one namespace for all of its tools."""
    namespaces: dict[str, tuple[NamespaceTool, list[ToolDeclaration]]] = {}
    for one in declared:
        tool = one.tool
        if one.is_found and isinstance(tool, (FunctionTool, CustomTool)):
            tool = msgspec.structs.replace(tool, defer_loading=None)  # it stays loaded
        if one.namespace is None:
            yield from plain_tools([tool])
        else:
            namespaces.setdefault(one.namespace.name, (one.namespace, []))[1].append(tool)
    for namespace, tools in namespaces.values():
        yield {**msgspec.to_builtins(namespace), "tools": msgspec.to_builtins(tools)}


def has_secrets(given: Sequence[Item]) -> bool:
    """Whether tools that these items bring have secrets."""
    declared = [tool.tool for item in given for tool in _brought_by(item, "")]
    return without_secrets(declared) != declared
