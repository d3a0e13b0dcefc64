"""Audit events: dispatches the events of an evaluation to its session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.turn import ClientRunCall, ModelReply, NativeCall, ToolCall
from weakincentives.clock import Clock
from weakincentives.prompt import Prompt, RenderedPrompt, ToolResult
from weakincentives.runtime import ModelResponded, PromptExecuted, PromptRendered, Session, ToolInvoked

if TYPE_CHECKING:
    from weakincentives.adapters.core import PromptResponse


@dataclass(frozen=True)
class Audit:
    """Creates events with the fields that all events of an evaluation share, and dispatches them."""

    prompt: Prompt[Any]
    adapter: str
    session: Session
    clock: Clock

    def record_prompt_rendered(self, rendered: RenderedPrompt[Any]) -> None:
        """Dispatch `PromptRendered`."""
        self.session.dispatch(
            PromptRendered(
                prompt_ns=self.prompt.ns,
                prompt_key=self.prompt.key,
                prompt_name=self.prompt.name,
                adapter=self.adapter,
                text=rendered.text,
                tool_names=tuple(tool.name for tool in rendered.tools),
                native_tool_names=tuple(declared.name for declared in rendered.native_tools),
                descriptor=rendered.descriptor,
                session_id=self.session.session_id,
                created_at=self.clock.now(),
            )
        )

    def record_reply(self, reply: ModelReply, turn: int) -> None:
        """Dispatch `ModelResponded`."""
        self.session.dispatch(
            ModelResponded(
                prompt_name=self.prompt.name,
                adapter=self.adapter,
                turn=turn,
                text=reply.text,
                tool_calls=tuple(call.name for call in (*reply.native_calls, *reply.calls)),
                usage=reply.usage,
                session_id=self.session.session_id,
                created_at=self.clock.now(),
            )
        )

    def record_provider_call(self, call: NativeCall, text: str) -> None:
        """Dispatch `ToolInvoked` for a call that the provider ran."""
        self.session.dispatch(
            ToolInvoked(
                prompt_name=self.prompt.name,
                adapter=self.adapter,
                name=call.name,
                params=call.params,
                result=call.result,
                call_id=call.call_id,
                rendered_output=text,
                session_id=self.session.session_id,
                created_at=self.clock.now(),
                origin="provider",
                provider=call.provider,
                capability=call.capability,
            )
        )

    def record_client_call(self, call: ToolCall, params: object, result: ToolResult[Any], text: str) -> None:
        """Dispatch `ToolInvoked` for a call that the client ran or rejected."""
        native = call if isinstance(call, ClientRunCall) else None
        self.session.dispatch(
            ToolInvoked(
                prompt_name=self.prompt.name,
                adapter=self.adapter,
                name=call.name,
                params=params,
                result=result,
                call_id=call.call_id,
                rendered_output=text,
                session_id=self.session.session_id,
                created_at=self.clock.now(),
                provider=native and native.provider,
                capability=native and native.capability,
            )
        )

    def record_prompt_executed(self, response: PromptResponse[Any]) -> None:
        """Dispatch `PromptExecuted`."""
        self.session.dispatch(
            PromptExecuted(
                prompt_name=self.prompt.name,
                adapter=self.adapter,
                result=response,
                usage=response.usage,
                session_id=self.session.session_id,
                created_at=self.clock.now(),
            )
        )
