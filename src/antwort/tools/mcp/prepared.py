"""The tools of one MCP server in one response: what the model is offered, and the calls that it makes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias, cast

from antwort.api.ids import new_id
from antwort.api.tools import McpTool
from antwort.engine.declared.names import mcp_function_name
from antwort.engine.ports import (
    CallRefused,
    FunctionSpec,
    HostedCall,
    OpeningItem,
    Progress,
    TextAnnotator,
    ToolContext,
    ToolDefaults,
    WholeCall,
    WholeTextAnnotator,
)
from antwort.tools.mcp.approvals import Approval, Approvals
from antwort.tools.mcp.call import ApprovalRequest, HostedMcpCall
from antwort.tools.mcp.client import ListedTool, McpToolResult, ToolListing
from antwort.tools.mcp.metrics import McpMetrics
from antwort.tools.mcp.policy import needs_approval

CallTool: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[McpToolResult]]

_LEFT_OUT: Final = "antwort:left_out"
"""The key of a list that says which tools were left out. `error` would mean that there is no list."""
_LIST: Final = "response.mcp_list_tools"


class PreparedMcp(ToolDefaults):
    """A `PreparedTool`. `listing` has the tools that the request may use; without one there is no `call`."""

    reads_files = False
    is_written_whole = True

    def __init__(
        self,
        call: CallTool | None,
        declared: McpTool,
        listing: ToolListing,
        approvals: Approvals,
        approved: Sequence[Approval],
        context: ToolContext,
        metrics: McpMetrics,
        *,
        description: str | None,
        shared: object = None,
    ) -> None:
        """`shared` is what the tools of the response have in common; it is held for as long as they are."""
        self._shared = shared
        self._call = call
        self._declared = declared
        self._listing = listing
        self._approvals = approvals
        self._metrics = metrics
        self._tenant = context.owner.tenant
        self._has_listed = any(
            item.type == "mcp_list_tools" and item.raw.get("server_label") == declared.server_label
            for item in context.made
        )
        label = declared.server_label
        self._tools = {mcp_function_name(label, tool.name, context.taken_names): tool for tool in listing.tools}
        functions = {tool.name: function for function, tool in self._tools.items()}
        self._approved = {new_id("call_"): (approval, functions.get(approval.name)) for approval in approved}
        self.specs = tuple(_spec(function, tool, label, description) for function, tool in self._tools.items())

    def opening_items(self) -> Sequence[OpeningItem]:
        if self._has_listed:
            return ()
        item = {"id": new_id("mcpl_"), "type": "mcp_list_tools", "server_label": self._declared.server_label}
        left_out = {} if self._listing.problem is None else {_LEFT_OUT: self._listing.problem}
        failure = self._listing.failure
        if failure is not None:
            left_out = {"error": failure}
        events = (Progress(f"{_LIST}.in_progress"), Progress(f"{_LIST}.{'completed' if failure is None else 'failed'}"))
        listed = [_listed(tool) for tool in self._listing.tools]
        return (OpeningItem({**item, "tools": []}, events, {**item, "tools": listed, **left_out}),)

    def opening_calls(self) -> Sequence[WholeCall]:
        return [
            WholeCall(
                function or mcp_function_name(self._declared.server_label, approval.name), call_id, approval.arguments
            )
            for call_id, (approval, function) in self._approved.items()
        ]

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        call, tool, fields = self._call, self._tools[name], _object(arguments)
        assert call is not None  # noqa: S101 - otherwise there are no tools
        label = self._declared.server_label
        approval, _ = self._approved.get(call_id, (None, None))
        if approval is None and needs_approval(tool, self._declared):
            return ApprovalRequest(self._approvals.new_request(self._tenant, label, tool.name, arguments))
        return HostedMcpCall(
            label,
            tool.name,
            lambda: call(tool.name, fields),
            self._metrics,
            approval_request_id=approval and approval.request_id,
        )

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator()

    def lease(self) -> AbstractContextManager[object]:
        """Holds nothing: a session stays open for a while after its last request."""
        return nullcontext()


def _spec(function: str, tool: ListedTool, label: str, description: str | None) -> FunctionSpec:
    server = f"[{label}: {description}]" if description else f"[{label}]"
    text = f"{server} {tool.description}" if tool.description else server
    return FunctionSpec(function, text, dict(tool.input_schema), choice_name=tool.name)


def _listed(tool: ListedTool) -> dict[str, Any]:
    return {
        "annotations": {"read_only": tool.is_read_only},
        "description": tool.description,
        "input_schema": tool.input_schema,
        "name": tool.name,
    }


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; `CallRefused` where they are no JSON object."""
    try:
        given: object = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError) as error:
        raise CallRefused(f"The arguments are not valid JSON ({error}). Nothing was called.") from error
    if not isinstance(given, Mapping):
        raise CallRefused("The arguments must be a JSON object. Nothing was called.")
    return dict(cast("Mapping[str, Any]", given))
