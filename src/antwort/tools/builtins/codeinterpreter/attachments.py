"""Files that came with messages (`input_file`), which the code is to find in `/mnt/data`. Pure."""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import cast
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    GivenCodeCall,
    GivenMessage,
    InputFile,
    Item,
    Raw,
)

_LONGEST_NAME = 200


class Attachment(Struct, frozen=True):
    """A file of a message, and where in the input it was."""

    file: InputFile
    param: str


def attached(items: Iterable[Item], param: str = "input") -> Iterator[Attachment]:
    """All of them, in order; also those that a function of the caller's has answered with."""
    for at, item in enumerate(items):
        known = item.known
        if isinstance(known, GivenMessage):
            field, parts = "content", known.content
        elif isinstance(known, (FunctionCallOutput, CustomToolCallOutput)):
            field, parts = "output", known.output
        else:
            continue
        for within, part in enumerate(() if isinstance(parts, str) else parts):
            if isinstance(part, InputFile):
                yield Attachment(part, f"{param}[{at}].{field}[{within}]")


def containers_of(history: Sequence[Item]) -> list[str]:
    """The containers that earlier calls ran in, in the order of their last use."""
    used: dict[str, None] = {}
    for item in history:
        if (container := _container(item)) is not None:
            used.pop(container, None)
            used[container] = None
    return list(used)


def since_last_use(history: Sequence[Item], container_id: str) -> Sequence[Item]:
    """What came after the last call that ran in this container: files from before that are in it already."""
    for at in range(len(history) - 1, -1, -1):
        if _container(history[at]) == container_id:
            return history[at + 1 :]
    return history


def content(data: str) -> bytes:
    """What is in `file_data`: a data URL, or plain base64. `ValueError` where it is neither."""
    head, comma, payload = data.partition(",") if data.startswith("data:") else ("", "", data)
    if comma and not head.endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def name_for(file: InputFile) -> str:
    """Where an attached file goes: by its own name, without what no file can be called."""
    last = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    plain = "".join(one for one in last if not unicodedata.category(one).startswith(("C", "Zl", "Zp")))
    while len(plain.encode()) > _LONGEST_NAME:
        plain = plain[1:]  # the end says what kind of file it is
    return plain if plain.strip(". ") else "file"


def _container(item: Item) -> str | None:
    if isinstance(item.known, GivenCodeCall):
        return item.known.container_id
    if item.type == "shell_call":
        place: object = item.raw.get("environment")
        named = cast("Raw", place).get("container_id") if isinstance(place, dict) else None
        return named if isinstance(named, str) else None
    return None
