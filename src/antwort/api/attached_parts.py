"""Attached parts: the images and files in the content of an item, with their locations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from antwort.api import items
from antwort.api.items import (
    ComputerCallOutput,
    CustomToolCallOutput,
    FunctionCallOutput,
    GivenMessage,
    InputFile,
    InputImage,
    Item,
)

AttachedPart: TypeAlias = InputImage | InputFile

_IMAGE_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


class PartLocation(NamedTuple):
    """The location of a part: its field and index in the item, and its `param` in errors.

    That of a screenshot is its location in the `as_function_output` of its item.
    """

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
    elif isinstance(known, ComputerCallOutput):
        yield PartLocation("output", 0, f"{param}.output"), _image(known)
        return
    else:
        return
    if not isinstance(parts, str):
        for at, part in enumerate(parts):
            if isinstance(part, (InputImage, InputFile)):
                yield PartLocation(name, at, f"{param}.{name}[{at}]"), part


def as_function_output(item: Item) -> Item:
    """The screenshot of a computer as models read it: an image that a function returned. Other items stay the same."""
    known = item.known
    if not isinstance(known, ComputerCallOutput):
        return item
    image = {name: value for name, value in msgspec.to_builtins(_image(known)).items() if value is not None}
    return items.read({"type": "function_call_output", "call_id": known.call_id, "output": [image]})


def _image(known: ComputerCallOutput) -> InputImage:
    shown = known.output
    return InputImage(image_url=shown.image_url, file_id=shown.file_id, detail=shown.detail)


def image_as_file(image: InputImage) -> InputFile | None:
    """The file that a hosted tool reads in place of an image; None if only its URL is given."""
    if image.image_url is not None and image.image_url.startswith("data:"):
        media_type = image.image_url.removeprefix("data:").partition(",")[0].partition(";")[0]
        extension = _IMAGE_EXTENSIONS.get(media_type)
        return InputFile(file_data=image.image_url, filename=f"image.{extension}" if extension else "image")
    return None if image.file_id is None else InputFile(file_id=image.file_id)
