"""Applies `include`: removes optional fields from items, responses and events before they are sent.

Items are stored complete, because models read them and a later request may include more. Optional fields are removed
here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from antwort.api import events as wire
from antwort.api.events import AnyEvent, to_sse
from antwort.api.items import Raw, kind_of, with_status
from antwort.api.obfuscation import obfuscate
from antwort.api.requests import Include
from antwort.api.responses import Response
from antwort.net.sse import decode_frame, encode_frame

ItemFilter: TypeAlias = Callable[[Raw], Raw]

_EVENTS_WITH_ITEMS = frozenset(kind for kind in wire.EVENTS if issubclass(kind, wire.ItemEvent | wire.ResponseEvent))
"""Events that contain items. Most events do not, so the check is a set lookup."""
_EVENT_TYPES_WITH_ITEMS = frozenset(str(kind.__struct_config__.tag) for kind in _EVENTS_WITH_ITEMS)


class ResponseView(NamedTuple):
    """The `include` values and obfuscation of one request, applied to items, responses and events."""

    include: Collection[str] = frozenset()
    obfuscation: bool = False
    """Whether deltas are padded, so that their sizes do not reveal their content."""

    def item(self, item: Raw) -> Raw:
        """An item without the optional fields that are not included."""
        for value, remove in _OPTIONAL_FIELDS.get(kind_of(item), ()):
            if value not in self.include:
                item = remove(item)
        return item

    def listed_item(self, item: Raw) -> Raw:
        """The same, of a stored item, which may have no `status`: a model wrote it, or an older version stored it."""
        return self.item(with_status(item))

    def response(self, response: Response) -> Response:
        """A response with filtered items."""
        output = [self.item(item) for item in response.output]
        same = all(filtered is item for filtered, item in zip(output, response.output, strict=True))
        return response if same else msgspec.structs.replace(response, output=output)

    def event(self, event: AnyEvent) -> bytes:
        """An event as an SSE frame."""
        if type(event) in _EVENTS_WITH_ITEMS:
            return to_sse(self._filtered(event))
        return self._obfuscated(to_sse(event))

    def _filtered(self, event: AnyEvent) -> AnyEvent:
        match event:
            case wire.ItemEvent():
                return msgspec.structs.replace(event, item=self.item(event.item))
            case wire.ResponseEvent():
                return msgspec.structs.replace(event, response=self.response(event.response))
            case _:
                return event

    def frame(self, stored: bytes) -> bytes:
        """A stored SSE frame, filtered for this request."""
        kind, data = decode_frame(stored)
        if kind not in _EVENT_TYPES_WITH_ITEMS:
            return self._obfuscated(stored)
        event: Raw = msgspec.json.decode(data)
        if "item" in event:
            event["item"] = self.item(event["item"])
        else:
            event["response"]["output"] = [self.item(item) for item in event["response"]["output"]]
        return encode_frame(kind, msgspec.json.encode(event))

    def _obfuscated(self, sent: bytes) -> bytes:
        return obfuscate(sent) if self.obfuscation else sent


def _set_null(field: str) -> ItemFilter:
    return lambda item: {**item, field: None} if item.get(field) is not None else item


def _remove(field: str) -> ItemFilter:
    return lambda item: {name: value for name, value in item.items() if name != field} if field in item else item


def _in_field(field: str, remove: ItemFilter) -> ItemFilter:
    """Applies a filter to an object inside the item."""

    def filter_field(item: Raw) -> Raw:
        inner = item.get(field)
        if not isinstance(inner, dict):
            return item
        rest = remove(cast("Raw", inner))
        return item if rest is inner else {**item, field: rest}

    return filter_field


def _in_parts(kind: str, remove: ItemFilter) -> ItemFilter:
    """Applies a filter to the content parts of a type."""

    def filter_parts(item: Raw) -> Raw:
        content = item.get("content")
        if not isinstance(content, list):
            return item
        parts = cast("list[Any]", content)
        rest = [remove(cast("Raw", part)) if _has_type(kind, part) else part for part in parts]
        return item if all(new is old for new, old in zip(rest, parts, strict=True)) else {**item, "content": rest}

    return filter_parts


def _has_type(kind: str, part: object) -> bool:
    return isinstance(part, dict) and cast("Raw", part).get("type") == kind


def _without_logprobs(part: Raw) -> Raw:
    return {**part, "logprobs": []} if part.get("logprobs") else part


_OPTIONAL_FIELDS: dict[str, tuple[tuple[Include, ItemFilter], ...]] = {
    "code_interpreter_call": (
        ("code_interpreter_call.outputs", _set_null("outputs")),
        ("antwort:code_interpreter_call.result", _remove("antwort:result")),
    ),
    "computer_call_output": (("computer_call_output.output.image_url", _in_field("output", _set_null("image_url"))),),
    "file_search_call": (("file_search_call.results", _set_null("results")),),
    "message": (
        ("message.input_image.image_url", _in_parts("input_image", _set_null("image_url"))),
        ("message.output_text.logprobs", _in_parts("output_text", _without_logprobs)),
    ),
    "shell_call_output": (("antwort:shell_call_output.file_ids", _remove("antwort:file_ids")),),
    "web_search_call": (
        ("web_search_call.action.sources", _in_field("action", _remove("sources"))),
        ("web_search_call.results", _remove("results")),
    ),
}
"""By item type: values of `include`, each with the filter that applies without it.

`reasoning.encrypted_content` has none: it is always sent.
"""
