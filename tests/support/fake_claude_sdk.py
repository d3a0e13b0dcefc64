"""Fake of the Claude Agent SDK: a client whose CLI is a script. It stands in `sys.modules` as `claude_agent_sdk`.

`make test-claude` checks that its classes have the fields of the SDK's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from waiting import wait_until_async


@dataclass
class TextBlock:
    text: str


@dataclass
class ToolUseBlock:
    id: str
    name: str
    input: dict[str, Any]


@dataclass
class ToolResultBlock:
    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


@dataclass
class StreamEvent:
    event: dict[str, Any]
    parent_tool_use_id: str | None = None


@dataclass
class AssistantMessage:
    content: list[Any]
    model: str = "scripted"
    parent_tool_use_id: str | None = None
    error: str | None = None
    usage: dict[str, Any] | None = None
    message_id: str | None = None


@dataclass
class UserMessage:
    content: Any
    parent_tool_use_id: str | None = None
    tool_use_result: Any = None


@dataclass
class SystemMessage:
    subtype: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResultMessage:
    subtype: str = "success"
    is_error: bool = False
    result: str | None = None
    structured_output: Any = None
    stop_reason: str | None = None
    api_error_status: int | None = None
    errors: list[str] | None = None
    session_id: str = "session"
    model_usage: dict[str, Any] | None = None


MESSAGES = (
    *(TextBlock, ToolUseBlock, ToolResultBlock, StreamEvent, AssistantMessage),
    *(UserMessage, SystemMessage, ResultMessage),
)


@dataclass
class HookMatcher:
    hooks: list[Any]
    timeout: float | None = None
    on_failure: str | None = None


@dataclass
class SdkMcpTool:
    name: str
    description: str
    input_schema: dict[str, Any]
    handler: Any


class ClaudeAgentOptions:
    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


@dataclass(frozen=True)
class Use:
    """A call of a tool. `cancelled`: the CLI gives up the call when its handler has set `is_handler_running`."""

    name: str
    arguments: dict[str, Any]
    cancelled: bool = False


@dataclass
class Hang:
    """The reply never comes."""


@dataclass
class FakeSdk:
    """The script and what the client did. A reply is a list of texts and calls, a message, an exception, or `Hang`."""

    replies: Sequence[Any]
    builtin: Any = None
    log: list[str] = field(default_factory=list)
    options: list[Any] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    results: list[tuple[str, Any, bool]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=lambda: {"input_tokens": 10, "output_tokens": 2})
    model_usage: dict[str, Any] | None = None
    is_handler_running: bool = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeSdk:
        module: Any = ModuleType("claude_agent_sdk")
        module.ClaudeSDKClient = lambda options, transport=None: FakeClient(self, options)
        module.ClaudeAgentOptions = ClaudeAgentOptions
        module.HookMatcher = HookMatcher
        module.SdkMcpTool = SdkMcpTool
        module.create_sdk_mcp_server = lambda name, tools: {tool.name: tool for tool in tools}
        monkeypatch.setitem(sys.modules, "claude_agent_sdk", module)
        return self


class FakeClient:
    def __init__(self, sdk: FakeSdk, options: Any) -> None:
        self._sdk = sdk
        self._options = options
        self._ids = itertools.count()
        sdk.options.append(options)

    async def connect(self) -> None:
        self._sdk.log.append("connect")

    async def query(self, prompt: str) -> None:
        self._sdk.prompts.append(prompt)

    async def interrupt(self) -> None:
        self._sdk.log.append("interrupt")

    async def disconnect(self) -> None:
        self._sdk.log.append("disconnect")

    async def receive_messages(self) -> AsyncIterator[Any]:
        yield SystemMessage("init")
        text: str | None = None
        for reply in self._sdk.replies:
            match reply:
                case Exception():
                    raise reply
                case Hang():
                    await asyncio.Event().wait()
                case list():
                    async for message in self._reply(reply):
                        yield message
                    text = next((part for part in reply if isinstance(part, str)), text)
                case _:
                    yield reply
                    if isinstance(reply, ResultMessage):
                        return
        yield ResultMessage(result=text, model_usage=self._sdk.model_usage)

    async def _reply(self, parts: list[Any]) -> AsyncIterator[Any]:
        message_id = f"msg_{next(self._ids)}"
        yield StreamEvent({"type": "message_start", "message": {"id": message_id, "usage": {"input_tokens": 10}}})
        calls: list[tuple[str, Use]] = []
        for index, part in enumerate(parts):
            if isinstance(part, str):
                delta = {"type": "text_delta", "text": part}
                yield StreamEvent({"type": "content_block_delta", "index": index, "delta": delta})
                yield AssistantMessage([TextBlock(part)], message_id=message_id)
            else:
                call_id = f"toolu_{next(self._ids)}"
                calls.append((call_id, part))
                yield AssistantMessage([ToolUseBlock(call_id, part.name, part.arguments)], message_id=message_id)
        # As with the CLI, the first call is announced while the reply is still streamed.
        tasks = [asyncio.ensure_future(self._call(call_id, use)) for call_id, use in calls]
        await asyncio.sleep(0)
        yield StreamEvent({"type": "message_delta", "usage": self._sdk.usage})
        yield StreamEvent({"type": "message_stop"})
        for task in tasks:
            for message in await task:
                yield message

    async def _call(self, call_id: str, use: Use) -> list[Any]:
        """The messages that follow a call."""
        (matcher,) = self._options.hooks["PreToolUse"]
        given = {"tool_name": use.name, "tool_input": use.arguments}
        decision = (await matcher.hooks[0](given, call_id, None)).get("hookSpecificOutput", {})
        value = None
        if decision.get("permissionDecision") == "deny":
            content, is_error = decision["permissionDecisionReason"], True
        elif use.name.startswith("mcp__wink__"):
            tool = self._options.mcp_servers["wink"][use.name.removeprefix("mcp__wink__")]
            output = await self._run(tool.handler(use.arguments), cancelled=use.cancelled)
            content, is_error = output["content"], output["is_error"]
        elif use.name == "StructuredOutput":
            result = ResultMessage(result=json.dumps(use.arguments), structured_output=use.arguments)
            return [UserMessage([ToolResultBlock(call_id, "ok")]), result]
        else:
            content, is_error, value = self._sdk.builtin(use.name, use.arguments)
        self._sdk.results.append((use.name, content, is_error))
        return [UserMessage([ToolResultBlock(call_id, content, is_error)], tool_use_result=value)]

    async def _run(self, call: Any, *, cancelled: bool) -> dict[str, Any]:
        task = asyncio.ensure_future(call)
        if not cancelled:
            return await task
        await wait_until_async(lambda: self._sdk.is_handler_running)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return {"content": [{"type": "text", "text": "cancelled"}], "is_error": True}
