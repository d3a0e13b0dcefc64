"""Attachments of the history, which are copied to `/mnt/data`: their names and their containers. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import cast

from msgspec import Struct

from antwort.api.attached_parts import PartLocation, attached_parts, image_as_file
from antwort.api.items import GivenCodeCall, InputFile, Item, Raw

_MAX_NAME_BYTES = 200


class Attachment(Struct, frozen=True):
    """An attached file, and its location in the input."""

    file: InputFile
    location: PartLocation


def attached_files(items: Iterable[Item], *, images: bool) -> Iterator[Attachment]:
    """All attached files, in order; also those in the outputs of client-side calls. With `images`, images too."""
    for at, item in enumerate(items):
        for location, part in attached_parts(item, f"input[{at}]"):
            file = part if isinstance(part, InputFile) else image_as_file(part) if images else None
            if file is not None:
                yield Attachment(file, location)


def with_names(items: Iterable[Item], taken: Iterable[str] = (), *, images: bool) -> Iterator[tuple[Attachment, str]]:
    """The files with inline content, each with a name that is unique in its message and not `taken`."""
    for item in items:
        names = set(taken)
        for attachment in attached_files([item], images=images):
            if attachment.file.file_id is None and attachment.file.file_data is not None:
                wanted = name_for(attachment.file)
                spellings = (f"{number}-{wanted}" if number > 1 else wanted for number in count(1))
                name = next(one for one in spellings if one not in names)
                names.add(name)
                yield attachment, name


def containers_in(history: Sequence[Item]) -> list[str]:
    """The ids of the containers of earlier calls, in the order of their last use."""
    used: dict[str, None] = {}
    for item in history:
        if (container := _container_id(item)) is not None:
            used.pop(container, None)
            used[container] = None
    return list(used)


def items_since_last_use(history: Sequence[Item], container_id: str) -> Sequence[Item]:
    """The items behind the last call in this container: files from before it are in the container already."""
    for at in range(len(history) - 1, -1, -1):
        if _container_id(history[at]) == container_id:
            return history[at + 1 :]
    return history


def is_listed(path: str) -> bool:
    """Whether a file is listed to the model: what git stores in a repository is not."""
    return ".git" not in path.split("/")


def name_for(file: InputFile) -> str:
    """The file name of an attachment: its own, without control characters and directories."""
    last = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    plain = "".join(one for one in last if not unicodedata.category(one).startswith(("C", "Zl", "Zp")))
    while len(plain.encode()) > _MAX_NAME_BYTES:
        plain = plain[1:]  # keeps the extension
    return plain if plain.strip(". ") else "file"


def _container_id(item: Item) -> str | None:
    if isinstance(item.known, GivenCodeCall):
        return item.known.container_id
    if item.type == "shell_call":
        environment: object = item.raw.get("environment")
        found = cast("Raw", environment).get("container_id") if isinstance(environment, dict) else None
        return found if isinstance(found, str) else None
    return None
