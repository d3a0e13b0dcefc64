"""Server-sent events (SSE) of a streamed response: reports deltas, and returns the complete response at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from weakincentives.adapters.openai.wire import COMPACTION, Wire, as_object, as_objects, decode_json, get_str
from weakincentives.errors import ProviderFault
from weakincentives.runtime.events import DeltaKind

OnDelta: TypeAlias = Callable[[DeltaKind, str, str], object]
"""Called with every piece: the kind of its item, the id of its item, and the text."""

_DELTA_KINDS: dict[str, DeltaKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.code_interpreter_call_code.delta": "code",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_ITEM_ADDED, _ITEM_DONE, _ERROR = "response.output_item.added", "response.output_item.done", "error"
_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_DATA = b"data:"


def read_stream(lines: Iterable[bytes], on_delta: OnDelta) -> Wire:
    """The response in the final event. Raises `ProviderFault` if there is none, or `MalformedResponse`.

    A compaction item is encrypted again for each event; the one of `response.output_item.done` is kept.
    """
    has_items = False
    compactions: dict[str, Wire] = {}
    try:
        for event in _events(lines):
            kind = get_str(event, "type")
            if kind in _FINAL_EVENTS:
                return _with_compactions(as_object(event.get("response"), "response"), compactions)
            has_items = has_items or kind == _ITEM_ADDED
            _report(event, kind, on_delta)
            if kind == _ITEM_DONE and (item := as_object(event.get("item"), "item")).get("type") == COMPACTION:
                compactions[get_str(item, "id")] = item
    except ProviderFault as fault:
        if has_items:
            fault.should_retry = False  # calls that have run must not run twice
        raise
    raise ProviderFault("the stream ended before the response was complete", should_retry=False if has_items else None)


def _with_compactions(response: Wire, compactions: dict[str, Wire]) -> Wire:
    if not compactions:
        return response
    output = as_objects(response.get("output"), "output")
    kept = [compactions.get(get_str(item, "id"), item) if item.get("type") == COMPACTION else item for item in output]
    return {**response, "output": kept}


def _report(event: Wire, kind: str, on_delta: OnDelta) -> None:
    if kind == _ERROR:
        raise _fault(event)
    if delta_kind := _DELTA_KINDS.get(kind):
        on_delta(delta_kind, get_str(event, "item_id"), get_str(event, "delta"))
    elif kind == _ITEM_DONE:
        item = as_object(event.get("item"), "item")
        for logs in _logs(item):
            on_delta("output", get_str(item, "id"), logs)


def _events(lines: Iterable[bytes]) -> Iterator[Wire]:
    """The data of each event. It includes the event's name; the API sends no comments or ids that matter."""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(_DATA):
            data.append(line.removeprefix(_DATA).strip())
        elif not line.strip() and data:
            yield as_object(decode_json(b"\n".join(data)), "an event")
            data.clear()


def _fault(event: Wire) -> ProviderFault:
    error = as_object(event.get("error") or event, "error")
    code, message = get_str(error, "code"), get_str(error, "message")
    return ProviderFault(f"{f'{code}: ' if code else ''}{message or 'no reason given'}", payload=error)


def _logs(item: Wire) -> Iterator[str]:
    """The printed output of code, if the request includes it."""
    for output in as_objects(item.get("outputs") or [], "outputs"):
        if get_str(output, "type") == "logs" and (logs := get_str(output, "logs")):
            yield logs
