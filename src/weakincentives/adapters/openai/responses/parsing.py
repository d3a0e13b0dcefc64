"""Parses a response of the Responses API into a `ModelReply`: text, tool calls, native calls, citations. Pure."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.adapters.openai.citations import Citation, ContainerFileCitation, parse_citation
from weakincentives.adapters.openai.native_tools.capability import (
    PROVIDER,
    Capability,
    ClientMustRun,
    ProviderRan,
    ResponseContext,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.native_tools.registry import by_item
from weakincentives.adapters.openai.responses.declared_types import convert_params, convert_result
from weakincentives.adapters.openai.responses.tool_params import ToolParams
from weakincentives.adapters.openai.wire import (
    FINAL_PHASE,
    FUNCTION_CALL,
    MESSAGE,
    OUTPUT_SUFFIX,
    MalformedResponse,
    Wire,
    as_object,
    as_objects,
    get_call_id,
    get_str,
    message_parts,
    parse_usage,
)
from weakincentives.adapters.turn import ClientRunCall, ModelReply, NativeCall, ToolCall
from weakincentives.errors import (
    ContentFilteredError,
    IncompleteAnswerError,
    PromptEvaluationError,
    RefusalError,
    SerdeError,
)
from weakincentives.prompt import Tool, ToolContext, ToolResult

_logger = logging.getLogger(__name__)

_MESSAGE_SEPARATOR = "\n\n"


@dataclass
class _Messages:
    """The content of the message items of a response."""

    texts: list[str] = field(default_factory=list[str])
    final: str | None = None
    refusal: str | None = None
    citations: list[Citation] = field(default_factory=list[Citation])

    @property
    def text(self) -> str | None:
        return _MESSAGE_SEPARATOR.join(self.texts) if self.texts else None

    @property
    def answer(self) -> str | None:
        """Of several messages, the one with the phase `final_answer`, else the last one; None for a single message."""
        if len(self.texts) <= 1:
            return None
        return self.texts[-1] if self.final is None else self.final

    def add(self, item: Wire) -> None:
        offset = len(self.text or "") + (len(_MESSAGE_SEPARATOR) if self.texts else 0)
        text: str | None = None
        for kind, content, notes in message_parts(item):
            if kind == "refusal":
                self.refusal = content
                continue
            text = text or ""
            found = (parse_citation(raw, offset + len(text)) for raw in notes)
            self.citations += (one for one in found if one is not None)
            text += content
        if text is not None:
            self.texts.append(text)
            if item.get("phase") == FINAL_PHASE:
                self.final = text


def parse_response(response: Wire, params: ToolParams, *, prompt_name: str) -> ModelReply:
    """Parse a whole response. Raises `MalformedResponse`."""
    items = as_objects(response.get("output"), "output")
    context = ResponseContext(_outputs(items), _cited_files(items))
    messages = _Messages()
    calls: list[ToolCall] = []
    native_calls: list[NativeCall] = []
    for item in items:
        kind = get_str(item, "type")
        if kind == MESSAGE:
            messages.add(item)
        elif kind == FUNCTION_CALL:
            calls.append(_function_call(item))
        elif (capability := by_item().get(kind)) is not None:
            call = _native_call(item, capability, context, params)
            if isinstance(call, NativeCall):
                native_calls.append(call)
            elif call is not None:
                calls.append(call)
    return ModelReply(
        text=messages.text,
        final_text=messages.answer,
        calls=tuple(calls),
        native_calls=tuple(native_calls),
        usage=parse_usage(response),
        items=tuple(items),
        citations=tuple(messages.citations),
        error=_error(response, messages, prompt_name, has_calls=bool(calls)),
    )


def _function_call(item: Wire) -> ToolCall:
    name = get_str(item, "name")
    if not name:
        raise MalformedResponse("a function_call has no name")
    return ToolCall(get_call_id(item), name, get_str(item, "arguments"))


def _native_call(
    item: Wire, capability: Capability, context: ResponseContext, params: ToolParams
) -> NativeCall | ClientRunCall | None:
    owner = params.owner(capability, item)
    parsed = capability.parse_call(item, context, owner and owner.declaration.config)
    name = owner.declaration.name if owner else capability.name
    tool = owner.declaration.tool if owner else None
    match parsed:
        case None:
            return None
        case ProviderRan(call_params, result):
            call_params, result = _declared_types(tool, item, call_params, result)
            return NativeCall(get_call_id(item), name, capability.name, PROVIDER, call_params, result)
        case ClientMustRun():
            if owner is None:  # the prompt did not declare this tool, so nothing is executed for the server
                parsed = replace(parsed, run=_refuse)
            return _client_run_call(parsed, item, name, capability.name, tool)


def _client_run_call(
    parsed: ClientMustRun, item: Wire, name: str, capability: str, tool: Tool[Any, Any] | None
) -> ClientRunCall:
    """Events get the result in the tool's declared types; the answer is built from the capability's own types."""
    value: object = None

    def run(context: ToolContext) -> ToolResult[Any]:
        nonlocal value
        result = parsed.run(context)
        value = result.value
        return _declared_types(tool, item, parsed.params, result)[1]

    return ClientRunCall(
        call_id=get_call_id(item),
        name=name,
        capability=capability,
        provider=PROVIDER,
        params=_declared_types(tool, item, parsed.params, ToolResult(""))[0],
        run=run,
        format_output=lambda output: parsed.answer(replace(output, value=value)),
        rollback_on_failure=parsed.undone_on_failure,
    )


def _refuse(context: ToolContext) -> ToolResult[Any]:
    _ = context
    return ToolResult.error("This tool was not offered, and is not run.")


def _declared_types(
    tool: Tool[Any, Any] | None, item: Wire, params: object, result: ToolResult[Any]
) -> tuple[object, ToolResult[Any]]:
    """Convert to the types that the tool declares. They fit an example, but a call may differ."""
    if tool is None:
        return params, result
    try:
        return convert_params(tool.params_type, params, item), convert_result(tool.result_type, result, item)
    except SerdeError as error:
        _logger.warning("a call of %s does not fit its declared types; default types are used: %s", tool.name, error)
        return params, result


def _outputs(items: list[Wire]) -> dict[str, Wire]:
    return {
        get_call_id(item): item
        for item in items
        if get_str(item, "type").endswith(OUTPUT_SUFFIX) and item.get("call_id") is not None
    }


def _cited_files(items: list[Wire]) -> dict[str, tuple[ContainerFile, ...]]:
    """Files that messages cite, by the id of the last call before in the file's container."""
    last_call: dict[str, str] = {}
    files: dict[str, list[ContainerFile]] = defaultdict(list)
    for item in items:
        if isinstance(container_id := item.get("container_id"), str):
            last_call[container_id] = get_call_id(item)
        if item.get("type") == MESSAGE:
            for raw in (raw for _, _, notes in message_parts(item) for raw in notes):
                cited = parse_citation(raw)
                if isinstance(cited, ContainerFileCitation) and cited.container_id in last_call:
                    known = files[last_call[cited.container_id]]
                    file = ContainerFile(cited.container_id, cited.file_id, cited.filename)
                    known += [file] if file not in known else []
    return {call_id: tuple(found) for call_id, found in files.items()}


def _error(response: Wire, messages: _Messages, prompt_name: str, *, has_calls: bool) -> PromptEvaluationError | None:
    """The error of an incomplete response or a refusal."""
    if response.get("status") == "incomplete":
        reason = get_str(as_object(response.get("incomplete_details") or {}, "incomplete_details"), "reason")
        if reason == "content_filter":
            kind, what = ContentFilteredError, "the provider's content filter stopped the answer. Change the prompt"
        elif reason == "max_output_tokens":
            kind, what = IncompleteAnswerError, "the answer was cut off at max_output_tokens. Raise it, or ask for less"
        else:
            kind, what = IncompleteAnswerError, f"the answer was cut off ({reason or 'no reason given'})"
        return kind(what, prompt_name=prompt_name, phase="response", provider_payload=response)
    if messages.refusal is not None and not has_calls:
        what = f"the model refused: {messages.refusal}"
        return RefusalError(what, prompt_name=prompt_name, phase="response", provider_payload=response)
    return None
