"""An answer that comes in pieces: told as it comes, and read, once it is whole, like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

from weakincentives.adapters.openai.wire import Wire, as_object, decode, objects_in, text_in
from weakincentives.errors import ProviderFault

Kind: TypeAlias = Literal["reasoning", "text", "code", "arguments", "output"]
Tell: TypeAlias = Callable[[Kind, str, str], object]
"""Is told of every piece: what it is part of, the id of its item, and the piece."""

_PIECES: dict[str, Kind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.code_interpreter_call_code.delta": "code",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_ITEM_BEGUN, _ITEM_DONE, _ERROR = "response.output_item.added", "response.output_item.done", "error"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_DATA = b"data:"


def read_stream(lines: Iterable[bytes], tell: Tell) -> Wire:
    """The response that the events end with. Raises `ProviderFault` where they do not end, or `Malformed`."""
    begun = False
    try:
        for event in _events(lines):
            kind = text_in(event, "type")
            if kind in _ENDS:
                return as_object(event.get("response"), "response")
            begun = begun or kind == _ITEM_BEGUN
            _tell_of(event, kind, tell)
    except ProviderFault as fault:
        if begun:
            fault.should_retry = False  # what has begun to run is not run twice
        raise
    raise ProviderFault("the answer broke off", should_retry=False if begun else None)


def _tell_of(event: Wire, kind: str, tell: Tell) -> None:
    if kind == _ERROR:
        raise _fault(event)
    if piece := _PIECES.get(kind):
        tell(piece, text_in(event, "item_id"), text_in(event, "delta"))
    elif kind == _ITEM_DONE:
        item = as_object(event.get("item"), "item")
        for printed in _printed(item):
            tell("output", text_in(item, "id"), printed)


def _events(lines: Iterable[bytes]) -> Iterator[Wire]:
    """Each event's data. Its name is in there too, and the API sends neither comments nor ids that matter."""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(_DATA):
            data.append(line.removeprefix(_DATA).strip())
        elif not line.strip() and data:
            yield as_object(decode(b"\n".join(data)), "an event")
            data.clear()


def _fault(event: Wire) -> ProviderFault:
    told = as_object(event.get("error") or event, "error")
    code, said = text_in(told, "code"), text_in(told, "message")
    message = f"{f'{code}: ' if code else ''}{said or 'no reason given'}"
    return ProviderFault(message, payload=told)


def _printed(item: Wire) -> Iterator[str]:
    """What code printed, where the answer was asked to hold it."""
    for shown in objects_in(item.get("outputs") or [], "outputs"):
        if text_in(shown, "type") == "logs" and (logs := text_in(shown, "logs")):
            yield logs
