"""Files that came with messages (`input_file`), which the code is to find in `/mnt/data`. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import cast

from msgspec import Struct

from antwort.api.items import GivenCodeCall, InputFile, Item, Raw
from antwort.engine.attachments import PartLocation, attached_parts

_LONGEST_NAME = 200


class Attachment(Struct, frozen=True):
    """A file of a message, and where in the input it was."""

    file: InputFile
    place: PartLocation


def attached(items: Iterable[Item]) -> Iterator[Attachment]:
    """All of them, in order; also those that a function of the caller's has answered with."""
    for at, item in enumerate(items):
        for place, part in attached_parts(item, f"input[{at}]"):
            if isinstance(part, InputFile):
                yield Attachment(part, place)


def named(items: Iterable[Item], taken: Iterable[str] = ()) -> Iterator[tuple[Attachment, str]]:
    """Those whose content came along, each with its name: none that another of the same message has, or is `taken`."""
    for item in items:
        names = set(taken)
        for attachment in attached([item]):
            if attachment.file.file_id is None and attachment.file.file_data is not None:
                wanted = name_for(attachment.file)
                spellings = (f"{number}-{wanted}" if number > 1 else wanted for number in count(1))
                name = next(one for one in spellings if one not in names)
                names.add(name)
                yield attachment, name


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
