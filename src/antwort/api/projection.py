"""What of an item a caller is shown: what is long or private only when it is asked for with `include`. Pure.

Items are kept whole, because models read them and a later request may ask for more. What
a caller sees is cut here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from antwort.api import events as wire
from antwort.api.events import AnyEvent, to_sse
from antwort.api.items import Raw, kind_of
from antwort.api.requests import Include
from antwort.api.responses import Response
from antwort.api.sse import obfuscate
from antwort.net.sse import decode_frame, encode_frame

Cut: TypeAlias = Callable[[Raw], Raw]

_TELLING = frozenset(kind for kind in wire.EVENTS if issubclass(kind, wire.ItemEvent | wire.ResponseEvent))
"""The events that hold items. Most events do not, so they are told apart as cheaply as can be."""
_TELLING_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in _TELLING)


class ResponseView(NamedTuple):
    """What one caller wants to see of items, responses and events."""

    include: Collection[str] = frozenset()
    obfuscation: bool = False
    """Whether deltas are padded, so that their sizes do not tell what is in them."""

    def item(self, item: Raw) -> Raw:
        """An item, without what was not asked for."""
        for value, cut in _HIDDEN.get(kind_of(item), ()):
            if value not in self.include:
                item = cut(item)
        return item

    def response(self, response: Response) -> Response:
        """A response, with such items."""
        output = [self.item(item) for item in response.output]
        same = all(cut is item for cut, item in zip(output, response.output, strict=True))
        return response if same else msgspec.structs.replace(response, output=output)

    def event(self, event: AnyEvent) -> bytes:
        """An event as a frame of a stream."""
        if type(event) in _TELLING:
            return to_sse(self._cut(event))
        return self._padded(to_sse(event))

    def _cut(self, event: AnyEvent) -> AnyEvent:
        match event:
            case wire.ItemEvent():
                return msgspec.structs.replace(event, item=self.item(event.item))
            case wire.ResponseEvent():
                return msgspec.structs.replace(event, response=self.response(event.response))
            case _:
                return event

    def frame(self, kept: bytes) -> bytes:
        """A frame that was kept whole, as this caller gets it."""
        kind, data = decode_frame(kept)
        if kind not in _TELLING_KINDS:
            return self._padded(kept)
        told: Raw = msgspec.json.decode(data)
        if "item" in told:
            told["item"] = self.item(told["item"])
        else:
            told["response"]["output"] = [self.item(item) for item in told["response"]["output"]]
        return encode_frame(kind, msgspec.json.encode(told))

    def _padded(self, sent: bytes) -> bytes:
        return obfuscate(sent) if self.obfuscation else sent


def _nulled(field: str) -> Cut:
    return lambda item: {**item, field: None} if item.get(field) is not None else item


def _left_out(field: str) -> Cut:
    return lambda item: {name: value for name, value in item.items() if name != field} if field in item else item


def _within(field: str, cut: Cut) -> Cut:
    """The same, one level further in."""

    def cut_inner(item: Raw) -> Raw:
        inner = item.get(field)
        if not isinstance(inner, dict):
            return item
        rest = cut(cast("Raw", inner))
        return item if rest is inner else {**item, field: rest}

    return cut_inner


def _parts(kind: str, cut: Cut) -> Cut:
    """The same, for the parts of a message that are of a kind."""

    def cut_parts(item: Raw) -> Raw:
        content = item.get("content")
        if not isinstance(content, list):
            return item
        parts = cast("list[Any]", content)
        rest = [cut(cast("Raw", part)) if _is(kind, part) else part for part in parts]
        return item if all(new is old for new, old in zip(rest, parts, strict=True)) else {**item, "content": rest}

    return cut_parts


def _is(kind: str, part: object) -> bool:
    return isinstance(part, dict) and cast("Raw", part).get("type") == kind


def _without_logprobs(part: Raw) -> Raw:
    return {**part, "logprobs": []} if part.get("logprobs") else part


_HIDDEN: dict[str, tuple[tuple[Include, Cut], ...]] = {
    "code_interpreter_call": (("code_interpreter_call.outputs", _nulled("outputs")),),
    "computer_call_output": (("computer_call_output.output.image_url", _within("output", _nulled("image_url"))),),
    "file_search_call": (("file_search_call.results", _nulled("results")),),
    "message": (
        ("message.input_image.image_url", _parts("input_image", _nulled("image_url"))),
        ("message.output_text.logprobs", _parts("output_text", _without_logprobs)),
    ),
    "web_search_call": (
        ("web_search_call.action.sources", _within("action", _left_out("sources"))),
        ("web_search_call.results", _left_out("results")),
    ),
}
"""By type: the value of `include` that asks for something, and how the item looks without it.

`reasoning.encrypted_content` is not among them: it is always shown.
"""
