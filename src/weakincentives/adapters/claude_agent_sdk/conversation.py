"""`CliConversation`: one run of the CLI, in the event loop of the SDK.

It passes the SDK's messages, the calls that the CLI asks about (`PreToolUse` hook) and the calls of the prompt's tools
(in-process MCP server) to an `EventChannel`, in the order in which they happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from weakincentives.adapters.claude_agent_sdk.channel import EventChannel
from weakincentives.adapters.claude_agent_sdk.messages import SERVER
from weakincentives.adapters.claude_agent_sdk.tools import ToolDeclaration, shorten
from weakincentives.adapters.turn import ToolOutput

_INTERRUPT_TIMEOUT = 5.0
_ORDER_TIMEOUT = 60.0
_HOOK_TIMEOUT = 24 * 3600
"""In seconds. A hook waits while a tool of the prompt runs; the deadline of the evaluation limits it."""

_MAX_STDERR_LINES = 50

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A message of the SDK."""

    message: object


@dataclass(frozen=True, slots=True)
class CallAnnounced:
    """The CLI is about to run a call. The answer is the reason to refuse it, or None."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallRequested:
    """The CLI calls a tool of the prompt. The answer is a `ToolOutput`."""

    name: str
    arguments: dict[str, Any]


CliEvent: TypeAlias = MessageArrived | CallAnnounced | CallRequested


class CliConversation:
    """Sends one message to the CLI and reads its messages up to the result. `sdk` is the SDK's module."""

    def __init__(
        self,
        sdk: Any,  # noqa: ANN401 - an optional module
        options: dict[str, Any],
        tools: Sequence[ToolDeclaration],
        text: str,
        *,
        transport: Any = None,  # noqa: ANN401 - an object of the SDK
    ) -> None:
        self._sdk = sdk
        self._options = options
        self._tools = tools
        self._text = text
        self._transport = transport
        self._order = _MessageOrder()
        self.stderr: deque[str] = deque(maxlen=_MAX_STDERR_LINES)

    async def run(self, channel: EventChannel[CliEvent]) -> None:
        """Run the conversation. When it is cancelled, the CLI is interrupted, which ends its commands."""
        client = self._sdk.ClaudeSDKClient(self._sdk_options(channel), transport=self._transport)
        try:
            await client.connect()
            try:
                await client.query(self._text)
                await self._read(client, channel)
            except asyncio.CancelledError:
                with suppress(Exception):  # the CLI may have ended; it is disconnected in any case
                    async with asyncio.timeout(_INTERRUPT_TIMEOUT):
                        await client.interrupt()
                raise
        finally:
            await client.disconnect()

    async def _read(self, client: Any, channel: EventChannel[CliEvent]) -> None:  # noqa: ANN401 - an object of the SDK
        async for message in client.receive_messages():
            channel.tell(MessageArrived(message))
            await self._order.note(message)
            if type(message).__name__ == "ResultMessage":
                return

    def _sdk_options(self, channel: EventChannel[CliEvent]) -> Any:  # noqa: ANN401 - an object of the SDK
        async def announce(given: dict[str, Any], call_id: str | None, _: object) -> dict[str, Any]:
            await self._order.wait_for(call_id or "")
            event = CallAnnounced(call_id or "", given["tool_name"], given["tool_input"])
            return _decision(await channel.ask(event))

        matcher = self._sdk.HookMatcher(hooks=[announce], timeout=_HOOK_TIMEOUT, on_failure="block")
        servers = {}
        if self._tools:
            tools = [self._sdk_tool(tool, channel) for tool in self._tools]
            servers[SERVER] = self._sdk.create_sdk_mcp_server(SERVER, tools=tools)
        return self._sdk.ClaudeAgentOptions(
            **self._options, hooks={"PreToolUse": [matcher]}, mcp_servers=servers, stderr=self._log_stderr
        )

    def _sdk_tool(self, tool: ToolDeclaration, channel: EventChannel[CliEvent]) -> Any:  # noqa: ANN401 - an object of the SDK
        async def call(arguments: dict[str, Any]) -> dict[str, Any]:
            output: ToolOutput = await channel.ask(CallRequested(tool.name, arguments))
            return {"content": [{"type": "text", "text": shorten(output.text)}], "is_error": not output.success}

        return self._sdk.SdkMcpTool(
            name=tool.name, description=tool.description, input_schema=tool.schema, handler=call
        )

    def _log_stderr(self, line: str) -> None:
        self.stderr.append(line)
        _logger.debug("CLI: %s", line)


def _decision(reason: str | None) -> dict[str, Any]:
    """The output of a `PreToolUse` hook. Without a reason the CLI's own permission rules decide."""
    if reason is None:
        return {}
    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


class _MessageOrder:
    """Holds a call back until the reply that contains it has been read to its end.

    The SDK handles the CLI's requests beside its messages, so that a call can overtake its reply.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._streaming_id: str | None = None
        self._changed = asyncio.Condition()

    async def note(self, message: Any) -> None:  # noqa: ANN401 - an object of the SDK
        """Take note of a message that was passed on."""
        async with self._changed:
            match type(message).__name__:
                case "StreamEvent":
                    self._note_event(message.event)
                case "AssistantMessage":
                    self._seen.update(str(getattr(block, "id", "")) for block in message.content)
                    if message.message_id != self._streaming_id:
                        self._streaming_id = None  # the stream broke off, and the CLI asked again without streaming
                case _:
                    pass
            self._changed.notify_all()

    def _note_event(self, event: dict[str, Any]) -> None:
        if event.get("type") == "message_start":
            self._streaming_id = event.get("message", {}).get("id")
        elif event.get("type") == "message_stop":
            self._streaming_id = None

    async def wait_for(self, call_id: str) -> None:
        """Wait for the end of the reply with this call, within a timeout: the reply may break off."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ORDER_TIMEOUT), self._changed:
                await self._changed.wait_for(lambda: call_id in self._seen and self._streaming_id is None)
