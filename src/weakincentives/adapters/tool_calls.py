"""Calls of tools: running ours (read arguments, call the handler, undo a failure), and handling what a provider ran."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from weakincentives.adapters.turn import ClientRunCall, NativeCall, ToolCall, ToolOutput, ToolRunResult
from weakincentives.dbc import ensure
from weakincentives.errors import ParseError, PromptEvaluationError
from weakincentives.prompt import ProviderTool, RenderedPrompt, Tool, ToolResult
from weakincentives.prompt.disclosure import OPEN_SECTION
from weakincentives.resources import Snapshotable
from weakincentives.serde import parse_strict

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

_logger = logging.getLogger(__name__)


@ensure(lambda call, result: result.output.call_id == call.call_id, "the output answers the call")
def run_tool(call: ToolCall, evaluation: Evaluation) -> ToolRunResult:
    """Whatever goes wrong is a failed result for the model to read; the audit event is dispatched either way."""
    params, result, text = _execute(call, evaluation)
    evaluation.audit.record_client_call(call, params, result, text)
    output = ToolOutput(call.call_id, call.name, text, result.success, result.value)
    return ToolRunResult(output, _rendered_after_open_section(call, result, evaluation))


def _execute(call: ToolCall, evaluation: Evaluation) -> tuple[object, ToolResult[Any], str]:
    if isinstance(call, ClientRunCall):
        guarded = _with_rollback if call.rollback_on_failure else _without_rollback
        return call.params, *guarded(call.name, partial(_run_client_call, call, evaluation), evaluation)
    tool = evaluation.rendered.find_tool(call.name)
    if tool is None:
        known = ", ".join(tool.name for tool in evaluation.rendered.tools) or "none"
        return call.arguments, *_failure(f"There is no tool {call.name!r}. Tools: {known}.")
    try:
        params = _parse_params(tool, call.arguments)
    except ParseError as error:
        return call.arguments, *_failure(f"Wrong arguments for {call.name}: {error}. Correct them and try again.")
    assert tool.handler is not None  # noqa: S101 - a Tool without one cannot be built
    handle = partial(tool.handler, params, context=evaluation.tool_context())
    return params, *_with_rollback(tool.name, handle, evaluation)


def _run_client_call(call: ClientRunCall, evaluation: Evaluation) -> ToolResult[Any]:
    result = call.run(evaluation.tool_context())
    handle = _output_handler(call.name, call.params, result, evaluation)
    return result if handle is None else handle()


@ensure(lambda call, result: result[0].call_id == call.call_id, "the handled call is the recorded call")
def handle_provider_call(call: NativeCall, evaluation: Evaluation) -> tuple[NativeCall, str]:
    """What the prompt makes of a call that the provider ran, and its text.

    That is its hook's result, or its handler's, or what came. Its types may render themselves, and fail at it.
    """
    handle = _output_handler(call.name, call.params, call.result, evaluation)
    if handle is None:
        result, text = _call_handler(call.name, lambda: call.result)
    else:
        result, text = _with_rollback(call.name, handle, evaluation)
    return dataclasses.replace(call, result=result), text


def _output_handler(
    name: str, params: object, result: ToolResult[Any], evaluation: Evaluation
) -> Callable[[], ToolResult[Any]] | None:
    """What a `ProviderTool` does with the outcome of a call of its own; None where it does nothing."""
    declared = next((one for one in evaluation.rendered.native_tools if one.name == name), None)
    if declared is None or not isinstance(declared.tool, ProviderTool):
        return None
    if result.value is None and not result.success:
        return None  # the call itself failed: there is no output to handle
    tool = cast("ProviderTool[Any, Any, Any]", declared.tool)
    context = evaluation.tool_context()
    if tool.handle_provider_output is not None:
        return partial(tool.handle_provider_output, result.value, context)
    return None if tool.handler is None else partial(tool.handler, cast("Any", params), context=context)


def _parse_params(tool: Tool[Any, Any], arguments: str) -> object:
    if tool.params_type is type(None):
        return None
    return parse_strict(arguments or "{}", tool.params_type)


def _without_rollback(
    tool: str, handle: Callable[[], ToolResult[Any]], evaluation: Evaluation
) -> tuple[ToolResult[Any], str]:
    """What was done stays done."""
    _ = evaluation
    return _call_handler(tool, handle)


def _with_rollback(
    tool: str, handle: Callable[[], ToolResult[Any]], evaluation: Evaluation
) -> tuple[ToolResult[Any], str]:
    """A failure leaves session and resources as if the tool had never been called."""
    session_before = evaluation.session.snapshot()
    resources_before = [(resource, resource.snapshot()) for resource in evaluation.resources.snapshotables()]
    succeeded = False
    try:
        result, text = _call_handler(tool, handle)
        succeeded = result.success
    finally:  # also when the program is being interrupted
        if not succeeded:
            evaluation.session.restore(session_before)
            _restore_resources(resources_before, tool, evaluation)
    return result, text


def _restore_resources(resources: list[tuple[Snapshotable, object]], tool: str, evaluation: Evaluation) -> None:
    """All of them, as far as that is possible; no model can act on a resource in a state that nobody knows."""
    stuck: list[tuple[str, Exception]] = []
    for resource, before in resources:
        try:
            resource.restore(before)
        except Exception as error:  # a stranger's code; raised again once all have had their turn
            _logger.exception("resource %r could not be restored", resource)
            stuck.append((type(resource).__name__, error))
    if stuck:
        told = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in stuck)
        raise PromptEvaluationError(
            f"tool {tool} failed, and what it had changed could not be undone in {told}. See what is left of it "
            f"before you go on",
            prompt_name=evaluation.prompt.name,
            phase="tool",
        ) from stuck[0][1]


def _call_handler(tool: str, handle: Callable[[], ToolResult[Any]]) -> tuple[ToolResult[Any], str]:
    """The result and its text: a value renders itself, so that too is the tool's own code."""
    try:
        result = handle()
        if isinstance(result, ToolResult):  # pyright: ignore[reportUnnecessaryIsInstance] - annotations are not enforced
            return result, result.render()
    except Exception as error:  # a stranger's code; the model is told, and the log has the traceback
        _logger.warning("tool %s failed", tool, exc_info=True)
        return _failure(f"Tool {tool} failed: {type(error).__name__}: {error}")
    _logger.error("tool %s returned %r, not a ToolResult", tool, result)
    return _failure(f"Tool {tool} failed: its handler returned {type(result).__name__}, no ToolResult.")


def _failure(message: str) -> tuple[ToolResult[Any], str]:
    return ToolResult.error(message), message


def _rendered_after_open_section(
    call: ToolCall, result: ToolResult[Any], evaluation: Evaluation
) -> RenderedPrompt[Any] | None:
    """After a section was opened: the prompt with its tools, but the text that was sent, which caches rely on."""
    if call.name != OPEN_SECTION or not result.success:
        return None
    rendered = evaluation.adapter.render(evaluation.prompt, session=evaluation.session)
    return dataclasses.replace(rendered, text=evaluation.rendered.text)
