"""Attached parts: the images and files in the content of an item, with their locations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from antwort.api.items import CustomToolCallOutput, FunctionCallOutput, GivenMessage, InputFile, InputImage, Item

AttachedPart: TypeAlias = InputImage | InputFile


class PartLocation(NamedTuple):
    """The location of a part: its field and index in the item, and its `param` in errors."""

    field: str
    part_index: int
    param: str


def attached_parts(item: Item, param: str) -> Iterator[tuple[PartLocation, AttachedPart]]:
    """The images and files of an item."""
    known = item.known
    if isinstance(known, GivenMessage):
        name, parts = "content", known.content
    elif isinstance(known, (FunctionCallOutput, CustomToolCallOutput)):
        name, parts = "output", known.output
    else:
        return
    if not isinstance(parts, str):
        for at, part in enumerate(parts):
            if isinstance(part, (InputImage, InputFile)):
                yield PartLocation(name, at, f"{param}.{name}[{at}]"), part
