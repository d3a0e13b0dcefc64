"""From a response of the API to a `ModelReply`: what was said, what was called, what was cited. Pure."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.adapters.openai.citations import Citation, ContainerFileCitation, read_citation
from weakincentives.adapters.openai.native_tools.capability import PROVIDER, Capability, LeftToUs, Ran, Scene
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.native_tools.registry import by_item
from weakincentives.adapters.openai.responses.declared_types import params_as, result_as
from weakincentives.adapters.openai.responses.tool_params import Offer
from weakincentives.adapters.openai.wire import (
    FINAL_PHASE,
    FUNCTION_CALL,
    MESSAGE,
    OUTPUT_SUFFIX,
    Malformed,
    Wire,
    as_object,
    call_id_of,
    objects_in,
    parts_of,
    text_in,
    usage_of,
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

_BETWEEN_MESSAGES = "\n\n"


@dataclass
class _Said:
    """What the messages of a response say."""

    texts: list[str] = field(default_factory=list[str])
    final: str | None = None
    refusal: str | None = None
    citations: list[Citation] = field(default_factory=list[Citation])

    @property
    def text(self) -> str | None:
        return _BETWEEN_MESSAGES.join(self.texts) if self.texts else None

    @property
    def answer(self) -> str | None:
        """The message that is the answer, where there are several: the one that says so, else the last."""
        if len(self.texts) <= 1:
            return None
        return self.texts[-1] if self.final is None else self.final

    def hear(self, item: Wire) -> None:
        offset = len(self.text or "") + (len(_BETWEEN_MESSAGES) if self.texts else 0)
        text = ""
        spoke = False
        for kind, words, notes in parts_of(item):
            if kind == "refusal":
                self.refusal = words
                continue
            spoke = True
            found = (read_citation(raw, offset + len(text)) for raw in notes)
            self.citations += (one for one in found if one is not None)
            text += words
        if spoke:
            self.texts.append(text)
            if item.get("phase") == FINAL_PHASE:
                self.final = text


def read_reply(response: Wire, offer: Offer, *, prompt_name: str) -> ModelReply:
    """Everything that a response brings. Raises `Malformed` where it is none of this API's."""
    items = objects_in(response.get("output"), "output")
    scene = Scene(_outputs(items), _files(items))
    said = _Said()
    calls: list[ToolCall] = []
    native_calls: list[NativeCall] = []
    for item in items:
        kind = text_in(item, "type")
        if kind == MESSAGE:
            said.hear(item)
        elif kind == FUNCTION_CALL:
            calls.append(_function_call(item))
        elif (capability := by_item().get(kind)) is not None:
            call = _native_call(item, capability, scene, offer)
            if isinstance(call, NativeCall):
                native_calls.append(call)
            elif call is not None:
                calls.append(call)
    error = _error(response, said, prompt_name, calling=bool(calls))
    return ModelReply(
        text=said.text,
        final_text=said.answer,
        calls=tuple(calls),
        native_calls=tuple(native_calls),
        usage=usage_of(response),
        items=tuple(items),
        citations=tuple(said.citations),
        error=error,
    )


def _function_call(item: Wire) -> ToolCall:
    name = text_in(item, "name")
    if not name:
        raise Malformed("a function_call has no name")
    return ToolCall(call_id_of(item), name, text_in(item, "arguments"))


def _native_call(item: Wire, capability: Capability, scene: Scene, offer: Offer) -> NativeCall | ClientRunCall | None:
    owner = offer.owner(capability, item)
    reading = capability.read(item, scene, owner and owner.declared.config)
    name = owner.declared.name if owner else capability.name
    tool = owner.declared.tool if owner else None
    match reading:
        case None:
            return None
        case Ran(params, result):
            params, result = _typed(tool, item, params, result)
            return NativeCall(call_id_of(item), name, capability.name, PROVIDER, params, result)
        case LeftToUs():
            if owner is None:  # nobody here has offered to run such a thing, whatever a server says
                reading = replace(reading, run=_refuse)
            return _left_to_us(reading, item, name, capability.name, tool)


def _left_to_us(
    reading: LeftToUs, item: Wire, name: str, capability: str, tool: Tool[Any, Any] | None
) -> ClientRunCall:
    """The call with its result in the tool's types for events, and in ours for the answer."""
    value: object = None

    def run(context: ToolContext) -> ToolResult[Any]:
        nonlocal value
        result = reading.run(context)
        value = result.value
        return _typed(tool, item, reading.params, result)[1]

    return ClientRunCall(
        call_id=call_id_of(item),
        name=name,
        capability=capability,
        provider=PROVIDER,
        params=_typed(tool, item, reading.params, ToolResult(""))[0],
        run=run,
        format_output=lambda output: reading.answer(replace(output, value=value)),
        rollback_on_failure=reading.undone_on_failure,
    )


def _refuse(context: ToolContext) -> ToolResult[Any]:
    _ = context
    return ToolResult.error("This tool was not offered, and is not run.")


def _typed(
    tool: Tool[Any, Any] | None, item: Wire, params: object, result: ToolResult[Any]
) -> tuple[object, ToolResult[Any]]:
    """In the types of the tool that this was declared with; they were tried on an example, but a call may differ."""
    if tool is None:
        return params, result
    try:
        return params_as(tool.params_type, params, item), result_as(tool.result_type, result, item)
    except SerdeError as error:
        _logger.warning("a call of %s does not fit its declared types, and is told in ours: %s", tool.name, error)
        return params, result


def _outputs(items: list[Wire]) -> dict[str, Wire]:
    return {
        call_id_of(item): item
        for item in items
        if text_in(item, "type").endswith(OUTPUT_SUFFIX) and item.get("call_id") is not None
    }


def _files(items: list[Wire]) -> dict[str, tuple[ContainerFile, ...]]:
    """Files that messages cite, for the last call before that ran in the file's container."""
    last: dict[str, str] = {}
    files: dict[str, list[ContainerFile]] = defaultdict(list)
    for item in items:
        if isinstance(container := item.get("container_id"), str):
            last[container] = call_id_of(item)
        if item.get("type") == MESSAGE:
            for raw in (raw for _, _, notes in parts_of(item) for raw in notes):
                cited = read_citation(raw)
                if isinstance(cited, ContainerFileCitation) and cited.container_id in last:
                    known = files[last[cited.container_id]]
                    file = ContainerFile(cited.container_id, cited.file_id, cited.filename)
                    known += [file] if file not in known else []
    return {call: tuple(found) for call, found in files.items()}


def _error(response: Wire, said: _Said, prompt_name: str, *, calling: bool) -> PromptEvaluationError | None:
    """The error that a response amounts to, though it came as an answer."""
    if response.get("status") == "incomplete":
        reason = text_in(as_object(response.get("incomplete_details") or {}, "incomplete_details"), "reason")
        if reason == "content_filter":
            kind, what = ContentFilteredError, "the provider's content filter stopped the answer. Change the prompt"
        elif reason == "max_output_tokens":
            kind, what = IncompleteAnswerError, "the answer was cut off at max_output_tokens. Raise it, or ask for less"
        else:
            kind, what = IncompleteAnswerError, f"the answer was cut off ({reason or 'no reason given'})"
        return kind(what, prompt_name=prompt_name, phase="response", provider_payload=response)
    if said.refusal is not None and not calling:
        what = f"the model refused: {said.refusal}"
        return RefusalError(what, prompt_name=prompt_name, phase="response", provider_payload=response)
    return None
