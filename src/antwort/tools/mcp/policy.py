"""Which tools of a server a request may use, and which of them need an approval. Pure."""

from __future__ import annotations

from antwort.api.tools import McpApprovalFilter, McpTool, McpToolFilter
from antwort.tools.mcp.client import ListedTool


def is_allowed(tool: ListedTool, declared: McpTool) -> bool:
    """Whether `allowed_tools` contains the tool. Without it, and with an empty filter, all tools are allowed."""
    match declared.allowed_tools:
        case None:
            return True
        case McpToolFilter() as allowed:
            return _matches(tool, allowed)
        case names:
            return tool.name in names


def needs_approval(tool: ListedTool, declared: McpTool) -> bool:
    """Whether a call of the tool needs an approval.

    With filters, a tool that `never` matches needs none, unless `always` matches it, too. All others need one: also
    those that no filter matches, because that is what a request without `require_approval` means.
    """
    match declared.require_approval:
        case "never":
            return False
        case McpApprovalFilter(always=always, never=never):
            is_exempt = never is not None and _has_criteria(never) and _matches(tool, never)
            is_named = always is not None and _has_criteria(always) and _matches(tool, always)
            return is_named or not is_exempt
        case _:
            return True


def _matches(tool: ListedTool, given: McpToolFilter) -> bool:
    """Whether a tool fulfils all criteria."""
    if given.tool_names is not None and tool.name not in given.tool_names:
        return False
    return given.read_only is None or given.read_only == tool.is_read_only


def _has_criteria(given: McpToolFilter) -> bool:
    return given.tool_names is not None or given.read_only is not None
