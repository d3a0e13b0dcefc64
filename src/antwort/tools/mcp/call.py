"""Calls of MCP tools: one that runs, and one that asks the client for its approval first."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from antwort.api.ids import new_id
from antwort.engine.ports import CallDefaults, Progress, ToolDone
from antwort.engine.truncate import truncate_chars
from antwort.tools.mcp.client import McpFault, McpToolResult
from antwort.tools.mcp.metrics import McpMetrics

Run: TypeAlias = Callable[[], Awaitable[McpToolResult]]

_CALL: Final = "response.mcp_call"
_ARGUMENTS: Final = "response.mcp_call_arguments"


class HostedMcpCall(CallDefaults):
    """A call in progress."""

    def __init__(
        self, label: str, name: str, run: Run, metrics: McpMetrics, *, approval_request_id: str | None = None
    ) -> None:
        self._run = run
        self._metrics = metrics
        self._approval_request_id = approval_request_id
        self._arguments = ""
        self._item: dict[str, Any] = {
            "id": new_id("mcp_"),
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": approval_request_id,
            "arguments": "",
            "error": None,
            "name": name,
            "output": None,
            "server_label": label,
        }

    @property
    def item(self) -> dict[str, Any]:
        return {**self._item}

    def started_events(self) -> Sequence[Progress]:
        return (Progress(f"{_CALL}.in_progress"),)

    def write(self, delta: str) -> Sequence[Progress]:
        """All arguments at once. An approved call reports twice that it is in progress, as OpenAI's do."""
        self._arguments += delta
        again = () if self._approval_request_id is None else (Progress(f"{_CALL}.in_progress"),)
        return (Progress(f"{_ARGUMENTS}.delta", {"delta": delta}), *again)

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        yield Progress(f"{_ARGUMENTS}.done", {"arguments": self._arguments})
        started = time.monotonic()
        try:
            result = await self._run()
        except McpFault as fault:
            self._metrics.record(fault.kind, time.monotonic() - started)
            yield Progress(f"{_CALL}.failed")
            error = {"type": fault.kind, "code": fault.code, "message": fault.message}
            yield self._failed(error, f"The call failed: {fault.message} ({fault.code})")
            return
        if result.error_content is not None:
            self._metrics.record("mcp_tool_execution_error", time.monotonic() - started)
            yield Progress(f"{_CALL}.failed")
            error = {"type": "mcp_tool_execution_error", "content": result.error_content}
            yield self._failed(error, f"The tool failed: {result.text}")
            return
        self._metrics.record("completed", time.monotonic() - started)
        yield Progress(f"{_CALL}.completed")
        item = {**self._item, "status": "completed", "arguments": self._arguments, "output": result.text}
        yield ToolDone(item, truncate_chars(result.text) or "(no output)")

    def failed(self, reason: str) -> ToolDone:
        """The server, not the MCP server, ended the call."""
        return self._failed({"type": "mcp_protocol_error", "code": _INTERNAL_ERROR, "message": reason}, reason)

    def _failed(self, error: dict[str, Any], text: str) -> ToolDone:
        return ToolDone({**self._item, "status": "failed", "arguments": self._arguments, "error": error}, text)


_INTERNAL_ERROR: Final = -32603


class ApprovalRequest(CallDefaults):
    """A call that is not run: its item asks the client for its approval, and the response ends."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item

    def started_events(self) -> Sequence[Progress]:
        return ()

    def write(self, delta: str) -> Sequence[Progress]:
        del delta
        return ()

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        yield ToolDone(self.item, "", awaits_client=True)

    def failed(self, reason: str) -> ToolDone:
        return ToolDone(self.item, reason)
