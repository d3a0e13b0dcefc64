"""Plan of a response for compaction, and the items of a compacted window as models read them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antwort.api import items
from antwort.api.attached_parts import AttachedPart, PartLocation, as_function_output, attached_parts
from antwort.api.items import InputImage, Item, Raw
from antwort.engine.compaction.compactor import Compactor


@dataclass(frozen=True)
class CompactionPlan:
    """What a response does about compaction. By default nothing."""

    compactor: Compactor | None = None
    is_triggered: bool = False
    """The request asks for a compaction instead of an answer."""
    transcript: Sequence[Item] = ()
    """The history as it is stored, item by item as in `history`, which has the attachments that models read."""
    history: Sequence[Item] = ()
    upstream_threshold: int | None = None
    """The upstream compacts by itself: its threshold…"""
    is_upstream_triggered: bool = False
    """…and whether it is triggered now."""

    def restored(self, window: Sequence[Raw]) -> list[Item]:
        """The items of a stored window. Those of the transcript are its own objects, as after a compaction."""
        known = {item.id: item for item in self.transcript if item.id is not None}
        found = [(raw, known.get(raw["id"]) if isinstance(raw.get("id"), str) else None) for raw in window]
        return [item if item is not None and item.raw == raw else items.read(raw) for raw, item in found]

    def with_attachments(self, window: Sequence[Item]) -> list[Item]:
        """The items of a window as models read them."""
        pairs = list(zip(self.transcript, self.history, strict=True))
        resolved = {id(item): read for item, read in pairs}
        parts = {
            source: as_function_output(read).raw[location.field][location.part_index]
            for item, read in pairs
            for location, source in _sources(item)
        }
        return [resolved.get(id(item)) or _with_parts(item, parts) for item in window]


def _sources(item: Item) -> list[tuple[PartLocation, str]]:
    """The attached parts of an item: their locations, and what identifies their content."""
    found = [(location, _source(part)) for location, part in attached_parts(item, "")]
    return [(location, source) for location, source in found if source is not None]


def _source(part: AttachedPart) -> str | None:
    inline = part.image_url if isinstance(part, InputImage) else part.file_data
    return part.file_id or inline


def _with_parts(item: Item, parts: Mapping[str, dict[str, Any]]) -> Item:
    """A changed item of the window, with the parts that the item in the history has."""
    raw = as_function_output(item).raw
    for location, source in _sources(item):
        content = list(raw[location.field])
        content[location.part_index] = parts.get(source, content[location.part_index])
        raw = {**raw, location.field: content}
    return item if raw is item.raw else items.read(raw)
