"""`CliRun`: handles the events of a CLI run in the evaluation: limits, tools, audit events, and the result."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.claude_agent_sdk.channel import Asked
from weakincentives.adapters.claude_agent_sdk.conversation import (
    CallAnnounced,
    CallRequested,
    CliEvent,
    MessageArrived,
)
from weakincentives.adapters.claude_agent_sdk.messages import (
    MessageReader,
    Replied,
    RunResult,
    Streamed,
    ToolReturned,
    is_own_tool,
)
from weakincentives.adapters.claude_agent_sdk.policy import refusal
from weakincentives.adapters.claude_agent_sdk.tools import CallIds
from weakincentives.adapters.tool_calls import run_tool
from weakincentives.adapters.turn import LoopResult, ModelReply, NativeCall, ToolCall, ToolOutput
from weakincentives.budget import TokenUsage
from weakincentives.errors import IncompleteAnswerError, PromptEvaluationError, RefusalError
from weakincentives.prompt import ToolResult

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

_logger = logging.getLogger(__name__)


class CliRun:
    """The state of one evaluation whose loop the CLI runs. `offered` are the names of all tools."""

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        offered: Collection[str],
        directory: Path,
        stream: bool,
        is_resumed: bool,
    ) -> None:
        self._evaluation = evaluation
        self._offered = offered
        self._directory = directory
        self._stream = stream
        self._is_resumed = is_resumed
        self._reader = MessageReader()
        self._call_ids = CallIds()
        self._recorded: set[str] = set()
        self._usage = TokenUsage()
        self._turns = 0
        self._text: str | None = None
        self.result: RunResult | None = None

    @property
    def turns(self) -> int:
        return self._turns

    @property
    def text(self) -> str | None:
        """The text of the last reply."""
        return self._text

    def handle(self, asked: Asked[CliEvent]) -> None:
        """Handle an event. What this raises ends the evaluation."""
        match asked.event:
            case MessageArrived(message):
                for step in self._reader.read(message):
                    self._handle_step(step)
            case CallAnnounced() as announced:
                asked.answer.set_result(self._check_call(announced))
            case CallRequested() as requested:
                asked.answer.set_result(self._run_tool(requested, asked))

    def _handle_step(self, step: Replied | Streamed | ToolReturned | RunResult) -> None:
        match step:
            case Replied(reply):
                self._record_reply(reply)
            case Streamed(kind, item_id, text):
                if self._stream:
                    self._evaluation.audit.notify_progress(kind, item_id, text)
            case ToolReturned():
                self._record_result(step)
            case RunResult():
                self.result = step

    def _record_reply(self, reply: ModelReply) -> None:
        limits = self._evaluation.limits
        if limits.tracker is not None:
            limits.tracker.record(reply.usage)
        self._evaluation.audit.record_reply(reply, self._turns)
        self._turns += 1
        self._usage += reply.usage
        self._text = reply.text
        limits.check_tokens(reply.text)

    def _check_call(self, call: CallAnnounced) -> str | None:
        self._evaluation.limits.check_deadline(self._turns, self._text)
        reason = refusal(call.name, call.arguments, offered=self._offered, directory=self._directory)
        if reason is None and is_own_tool(call.name):
            self._call_ids.expect(call.name, call.arguments, call.call_id)
        return reason

    def _run_tool(self, requested: CallRequested, asked: Asked[CliEvent]) -> ToolOutput:
        call_id = self._call_ids.take(requested.name, requested.arguments) or f"call_{requested.name}"
        self._recorded.add(call_id)
        call = ToolCall(call_id, requested.name, json.dumps(requested.arguments, ensure_ascii=False))
        ran = run_tool(call, self._evaluation, is_cancelled=lambda: asked.is_cancelled)
        self._evaluation.rendered = ran.rendered or self._evaluation.rendered
        return ran.output

    def _record_result(self, returned: ToolReturned) -> None:
        """Record a call of a tool of the CLI, or one of the prompt's that the CLI or the SDK refused."""
        call = returned.call
        if call.call_id in self._recorded:
            return
        self._recorded.add(call.call_id)
        value = None if returned.is_error else returned.value
        result: ToolResult[Any] = ToolResult(returned.text, value, success=not returned.is_error)
        arguments = json.loads(call.arguments)
        if call.call_id in self._reader.own_calls:
            self._evaluation.audit.record_client_call(call, arguments, result, returned.text)
            return
        provider = self._evaluation.adapter.provider
        native = NativeCall(call.call_id, call.name, call.name.lower(), provider, arguments, result)
        self._evaluation.audit.record_provider_call(native, returned.text)

    def finish(self) -> LoopResult:
        """The result of the run, or the error that it ended with."""
        result = self.result
        if result is None:
            raise self._evaluation.error("the CLI of the Claude Agent SDK ended without a result")
        self._record_other_usage(result)
        if (error := self._error(result)) is not None:
            raise error
        answer = result.structured_output
        text = (self._text if result.text is None else result.text) or ""
        if answer is not None:
            text = json.dumps(answer, ensure_ascii=False)
        return LoopResult(text, self._usage, max(1, self._turns), ())

    def _record_other_usage(self, result: RunResult) -> None:
        """Count requests that no reply belongs to: compactions of the history, and replies that the CLI discarded."""
        if self._is_resumed:  # then the result has the usage of the earlier evaluations, too
            return
        counted, total = self._usage, result.usage
        other = TokenUsage(
            max(0, total.input_tokens - counted.input_tokens),
            max(0, total.output_tokens - counted.output_tokens),
            max(0, total.cached_tokens - counted.cached_tokens),
        )
        limits = self._evaluation.limits
        if other.total_tokens and limits.tracker is not None:
            limits.tracker.record(other)
        self._usage += other
        limits.check_tokens(self._text)

    def _error(self, result: RunResult) -> PromptEvaluationError | None:
        limits, details = self._evaluation.limits, "; ".join(result.errors) or result.text or result.subtype
        if result.subtype == "error_max_turns":
            return limits.turn_limit_error(self._turns, self._text)
        if result.stop_reason == "refusal":
            return self._response_error(RefusalError, f"the model refused to answer: {details}", result)
        if result.is_error and result.api_status is None and result.stop_reason == "max_tokens":
            message = "the answer is incomplete: the reply reached the limit of output tokens. Raise max_output_tokens"
            return self._response_error(IncompleteAnswerError, message, result)
        if result.is_error or result.subtype != "success":
            if limits.deadline is not None and limits.deadline.expired:
                return limits.deadline_error(self._turns, self._text)
            return self._evaluation.error(
                f"request to {self._evaluation.adapter.provider} failed: {details}", payload=result
            )
        return None

    def _response_error(
        self, kind: type[PromptEvaluationError], message: str, result: RunResult
    ) -> PromptEvaluationError:
        name = self._evaluation.prompt.name
        return kind(message, prompt_name=name, phase="response", provider_payload=result.text or self._text)
