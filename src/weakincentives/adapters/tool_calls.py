"""Tool calls: parse arguments, call the handler, roll back after a failure; handle the output of provider-run calls."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weakincentives.adapters.turn import ClientRunCall, NativeCall, ToolCall, ToolOutput, ToolRunResult
from weakincentives.dbc import ensure
from weakincentives.errors import ParseError, PromptEvaluationError
from weakincentives.prompt import ProviderTool, RenderedPrompt, Tool, ToolResult
from weakincentives.prompt.disclosure import OPEN_SECTION
from weakincentives.resources import Snapshotable
from weakincentives.serde import parse_strict

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

BoundHandler: TypeAlias = Callable[[], ToolResult[Any]]

_logger = logging.getLogger(__name__)


@ensure(lambda call, result: result.output.call_id == call.call_id, "the output answers the call")
def run_tool(
    call: ToolCall, evaluation: Evaluation, *, is_cancelled: Callable[[], bool] = lambda: False
) -> ToolRunResult:
    """Run a call and dispatch its event. A failure is a failed result that the model reads, not an exception.

    If `is_cancelled` when its handler returns, the call failed: nothing reads its result, and its changes are undone.
    """
    params, result, text = _execute(call, evaluation, is_cancelled)
    evaluation.audit.record_client_call(call, params, result, text)
    output = ToolOutput(call.call_id, call.name, text, result.success, result.value)
    return ToolRunResult(output, _render_opened(call, result, evaluation))


def _execute(
    call: ToolCall, evaluation: Evaluation, is_cancelled: Callable[[], bool]
) -> tuple[object, ToolResult[Any], str]:
    if isinstance(call, ClientRunCall):
        run = partial(_run_client_call, call, evaluation)
        if not call.rollback_on_failure:
            return call.params, *_call_handler(call.name, run)
        return call.params, *_with_rollback(call.name, run, evaluation)
    tool = evaluation.rendered.find_tool(call.name)
    if tool is None:
        known = ", ".join(tool.name for tool in evaluation.rendered.tools) or "none"
        return call.arguments, *_failure(f"Unknown tool {call.name!r}. Tools: {known}.")
    try:
        params = _parse_params(tool, call.arguments)
    except ParseError as error:
        return call.arguments, *_failure(f"Invalid arguments for {call.name}: {error}. Correct them and try again.")
    assert tool.handler is not None  # noqa: S101 - `find_tool` finds no native tools, and other tools have one
    handle = partial(tool.handler, params, context=evaluation.tool_context())

    def handle_unless_cancelled() -> ToolResult[Any]:
        result = handle()
        return ToolResult.error(f"The call of {call.name} was cancelled.") if is_cancelled() else result

    return params, *_with_rollback(tool.name, handle_unless_cancelled, evaluation)


def _run_client_call(call: ClientRunCall, evaluation: Evaluation) -> ToolResult[Any]:
    result = call.run(evaluation.tool_context())
    handle = _output_handler(call.name, call.params, result, evaluation)
    return result if handle is None else handle()


@ensure(lambda call, result: result[0].call_id == call.call_id, "the handled call is the recorded call")
def handle_provider_call(call: NativeCall, evaluation: Evaluation) -> tuple[NativeCall, str]:
    """Apply the hook or handler of a `ProviderTool` to a call that the provider ran; returns the call and its text.

    Without either, the provider's result is kept. Rendering the result to text may call user code, which may fail.
    """
    handle = _output_handler(call.name, call.params, call.result, evaluation)
    if handle is None:
        result, text = _call_handler(call.name, lambda: call.result)
    else:
        result, text = _with_rollback(call.name, handle, evaluation)
    return dataclasses.replace(call, result=result), text


def _output_handler(name: str, params: object, result: ToolResult[Any], evaluation: Evaluation) -> BoundHandler | None:
    """The hook or handler that a `ProviderTool` applies to the result of a call; None if it has none."""
    declared = next((declaration for declaration in evaluation.rendered.native_tools if declaration.name == name), None)
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


def _with_rollback(tool: str, handle: BoundHandler, evaluation: Evaluation) -> tuple[ToolResult[Any], str]:
    """Call the handler; if it fails, restore session and resources to their state before the call."""
    session_before = evaluation.session.snapshot()
    resources_before = [(resource, resource.snapshot()) for resource in evaluation.resources.snapshotables()]
    succeeded = False
    try:
        result, text = _call_handler(tool, handle)
        succeeded = result.success
    finally:  # also on KeyboardInterrupt
        if not succeeded:
            evaluation.session.restore(session_before)
            _restore_resources(resources_before, tool, evaluation)
    return result, text


def _restore_resources(resources: list[tuple[Snapshotable, object]], tool: str, evaluation: Evaluation) -> None:
    """Restore every resource, then raise if any failed: the evaluation cannot go on with resources in unknown state."""
    failures: list[tuple[str, Exception]] = []
    for resource, before in resources:
        try:
            resource.restore(before)
        except Exception as error:  # user code; raised after all resources were tried
            _logger.exception("resource %r could not be restored", resource)
            failures.append((type(resource).__name__, error))
    if failures:
        details = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failures)
        raise PromptEvaluationError(
            f"tool {tool} failed, and its changes could not be rolled back in {details}. Check the state of these "
            f"resources before the next evaluation",
            prompt_name=evaluation.prompt.name,
            phase="tool",
        ) from failures[0][1]


def _call_handler(tool: str, handle: BoundHandler) -> tuple[ToolResult[Any], str]:
    """The result and its text. Both may raise: a value's `render()` is user code too."""
    try:
        result = handle()
        if isinstance(result, ToolResult):  # pyright: ignore[reportUnnecessaryIsInstance] - annotations are not enforced
            return result, result.render()
    except Exception as error:  # user code; the model gets the message, the log has the traceback
        _logger.warning("tool %s failed", tool, exc_info=True)
        return _failure(f"Tool {tool} failed: {type(error).__name__}: {error}")
    _logger.error("tool %s returned %r, not a ToolResult", tool, result)
    return _failure(f"Tool {tool} failed: its handler returned {type(result).__name__}, not a ToolResult.")


def _failure(message: str) -> tuple[ToolResult[Any], str]:
    return ToolResult.error(message), message


def _render_opened(call: ToolCall, result: ToolResult[Any], evaluation: Evaluation) -> RenderedPrompt[Any] | None:
    """After `open_section`: the prompt with the section's tools, but the old text, so that prompt caches stay valid."""
    if call.name != OPEN_SECTION or not result.success:
        return None
    rendered = evaluation.adapter.render(evaluation.prompt, session=evaluation.session)
    return dataclasses.replace(rendered, text=evaluation.rendered.text)
