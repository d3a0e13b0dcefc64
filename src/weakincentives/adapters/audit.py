"""Audit events: dispatches the events of an evaluation to its session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.turn import ClientRunCall, ModelReply, NativeCall, ToolCall
from weakincentives.clock import Clock
from weakincentives.prompt import Prompt, RenderedPrompt, ToolResult
from weakincentives.runtime import ModelProgress, ModelResponded, PromptExecuted, PromptRendered, Session, ToolInvoked
from weakincentives.runtime.events import DeltaKind, Origin

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
                **self._shared_fields(),
                prompt_ns=self.prompt.ns,
                prompt_key=self.prompt.key,
                text=rendered.text,
                tool_names=tuple(tool.name for tool in rendered.tools),
                native_tool_names=tuple(declared.name for declared in rendered.native_tools),
                descriptor=rendered.descriptor,
            )
        )

    def record_reply(self, reply: ModelReply, turn: int) -> None:
        """Dispatch `ModelResponded`."""
        names = tuple(call.name for call in (*reply.native_calls, *reply.calls))
        self.session.dispatch(
            ModelResponded(
                **self._shared_fields(),
                turn=turn,
                text=reply.text,
                tool_calls=names,
                usage=reply.usage,
                request_id=reply.request_id,
            )
        )

    def notify_progress(self, kind: DeltaKind, item_id: str, text: str) -> None:
        """Notify subscribers of `ModelProgress`, which is not stored."""
        self.session.notify(ModelProgress(**self._shared_fields(), kind=kind, text=text, item_id=item_id))

    def record_provider_call(self, call: NativeCall, text: str) -> None:
        """Dispatch `ToolInvoked` for a call that the provider ran."""
        self._record_call(call, call.params, call.result, text, "provider")

    def record_client_call(self, call: ToolCall, params: object, result: ToolResult[Any], text: str) -> None:
        """Dispatch `ToolInvoked` for a call that the client ran or rejected."""
        self._record_call(call, params, result, text, "client")

    def record_prompt_executed(self, response: PromptResponse[Any]) -> None:
        """Dispatch `PromptExecuted`."""
        self.session.dispatch(PromptExecuted(**self._shared_fields(), result=response, usage=response.usage))

    def _record_call(
        self, call: ToolCall | NativeCall, params: object, result: ToolResult[Any], text: str, origin: Origin
    ) -> None:
        native = call if isinstance(call, NativeCall | ClientRunCall) else None
        self.session.dispatch(
            ToolInvoked(
                **self._shared_fields(),
                name=call.name,
                params=params,
                result=result,
                call_id=call.call_id,
                rendered_output=text,
                origin=origin,
                provider=native and native.provider,
                capability=native and native.capability,
            )
        )

    def _shared_fields(self) -> dict[str, Any]:
        return {
            "prompt_name": self.prompt.name,
            "adapter": self.adapter,
            "session_id": self.session.session_id,
            "created_at": self.clock.now(),
        }
