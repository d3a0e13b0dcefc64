"""Pictures and files that a request speaks of by id, as data that a model can be shown.

What this request brings must be there and be readable by its model, or is an error that
says which part. What came with earlier requests may be gone by now: the model then reads
that there was something, because a conversation must not end with the file it began with.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast
from urllib.parse import unquote_to_bytes

from antwort.api import items
from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    GivenMessage,
    InputFile,
    InputImage,
    Item,
    Raw,
)
from antwort.engine.context import Context
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import FileRecord, FileStore, Owner

Attached: TypeAlias = InputImage | InputFile

_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_ADDRESSES = ("http://", "https://", "data:")
_UNSHOWN = ("unsupported_file", "file_too_large")
_TEXT = ("text/", "application/json", "application/xml", "application/yaml")


class PartLocation(NamedTuple):
    """Where in an item a part is, and how a request would name it."""

    field: str
    at: int
    param: str


def attached_parts(item: Item, param: str) -> Iterator[tuple[PartLocation, Attached]]:
    """The pictures and files of an item."""
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


async def check_files(given: Sequence[Item], owner: Owner, store: FileStore, param: str) -> None:
    """Every file that these items name is there, and the caller's."""
    for at, item in enumerate(given):
        for place, part in attached_parts(item, f"{param}[{at}]"):
            if part.file_id is not None and await store.get_file(owner, part.file_id) is None:
                raise _absent(part.file_id, place)


@dataclass
class Attacher:
    """Puts data into the items of one request."""

    owner: Owner
    store: FileStore
    model: ChosenModel
    most: int
    """Bytes of uploaded files that one request may show to its model."""
    spared: bool = False
    """A tool reads the files: one that the model cannot be shown is mentioned to it, and no error."""
    _loaded: dict[str, tuple[FileRecord, bytes]] = field(default_factory=dict[str, tuple[FileRecord, bytes]])
    _size: int = 0

    async def history(self, context: Context) -> list[Item]:
        """The whole history as the model is shown it. What this request brought comes first: it must be there."""
        given = [await self._item(item, f"input[{at}]", strict=True) for at, item in enumerate(context.given)]
        before = [await self._item(item, "", strict=False) for item in context.before]
        return [*before, *given]

    async def _item(self, item: Item, param: str, *, strict: bool) -> Item:
        raw = item.raw
        for place, part in attached_parts(item, param):
            parts = list(cast("list[Raw]", raw[place.field]))
            try:
                data = await self._data(part, place)
            except ApiError as error:
                spared = self.spared and isinstance(part, InputFile) and error.code in _UNSHOWN
                if strict and not spared:
                    raise
                parts[place.at] = {"type": "input_text", "text": _mention(part, spared=spared)}
            else:
                parts[place.at] = parts[place.at] | data
            raw = {**raw, place.field: parts}
        return item if raw is item.raw else items.read(raw)

    async def _data(self, part: Attached, place: PartLocation) -> Raw:
        if isinstance(part, InputImage):
            return await self._image(part, place)
        return await self._file(part, place)

    async def _image(self, part: InputImage, place: PartLocation) -> Raw:
        if part.image_url:
            if not part.image_url.startswith(_ADDRESSES):  # an upstream might look for it on its own disk
                raise invalid(
                    "Expected an address with http or https, or a data URL.", param=f"{place.param}.image_url"
                )
            return {}
        if part.file_id is None:
            raise _missing(place, "image_url")
        record, content = await self._load(part.file_id, place)
        kind = image_type(content)
        if kind is None:
            raise invalid(
                f"'{record.filename}' is no image that models see: it must be PNG, JPEG, GIF or WebP.",
                param=f"{place.param}.file_id",
                code="unsupported_file",
            )
        return {"image_url": await _data_url(kind, content)}

    async def _file(self, part: InputFile, place: PartLocation) -> Raw:
        if part.file_data:
            name, source = part.filename or "file", "file_data"
            content = decoded(part.file_data, place)
        elif part.file_id is not None:
            record, content = await self._load(part.file_id, place)
            name, source = part.filename or record.filename, "file_id"
        elif part.file_url:
            if self.model.reads_files:
                return {}
            raise invalid(
                "This server does not fetch files from addresses. Send the file's content, or upload it.",
                param=f"{place.param}.file_url",
                code="unsupported_file",
            )
        else:
            raise _missing(place, "file_id")
        kind = file_type(name, content)
        if not (self.model.reads_files or kind.startswith(_TEXT)):
            raise invalid(
                f"The model '{self.model.name}' cannot read '{name}' ({kind}): it is shown only text and images. "
                "Send the file's text instead.",
                param=f"{place.param}.{source}",
                code="unsupported_file",
            )
        return {"filename": name, "file_data": await _data_url(kind, content)}

    async def _load(self, file_id: str, place: PartLocation) -> tuple[FileRecord, bytes]:
        if file_id in self._loaded:
            return self._loaded[file_id]
        record = await self.store.get_file(self.owner, file_id)
        if record is None:
            raise _absent(file_id, place)
        if self._size + record.bytes > self.most:
            raise invalid(
                f"The files of this request are too large for a model: more than {self.most} bytes.",
                param=f"{place.param}.file_id",
                code="file_too_large",
            )
        chunks = await self.store.read_file(self.owner, file_id)
        if chunks is None:
            raise _absent(file_id, place)
        self._size += record.bytes
        self._loaded[file_id] = record, b"".join([chunk async for chunk in chunks])
        return self._loaded[file_id]


def image_type(content: bytes) -> str | None:
    """What kind of picture it is: its first bytes tell, its name may not."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES if content.startswith(start)), None)


def file_type(name: str, content: bytes) -> str:
    """What kind of file it is. What reads as text is text, whatever its name says."""
    guessed, _ = mimetypes.guess_type(name)
    if _is_text(content):
        return guessed if guessed is not None and guessed.startswith(_TEXT) else "text/plain"
    if content.startswith(b"%PDF-"):
        return "application/pdf"
    return image_type(content) or (guessed if guessed and not guessed.startswith(_TEXT) else "application/octet-stream")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def decoded(data: str, place: PartLocation) -> bytes:
    """What is in `file_data`: a data URL, or base64 alone."""
    head, comma, payload = data.partition(",")
    try:
        if comma and head.startswith("data:") and not head.endswith(";base64"):
            return unquote_to_bytes(payload)
        return base64.b64decode(payload if comma else head, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(
            "Expected a data URL with base64, such as 'data:application/pdf;base64,…'.",
            param=f"{place.param}.file_data",
        ) from error


async def _data_url(kind: str, content: bytes) -> str:
    return await asyncio.to_thread(lambda: f"data:{kind};base64,{base64.b64encode(content).decode()}")


def _mention(part: Attached, *, spared: bool = False) -> str:
    if isinstance(part, InputImage):
        return "[an image that cannot be shown any more]"
    if spared:
        return f"[attached file: {part.filename or part.file_id or 'file'}, for your tools to read]"
    return f"[attached file: {part.filename or part.file_id or 'file'}, which cannot be shown any more]"


def _absent(file_id: str, place: PartLocation) -> ApiError:
    return not_found("File", file_id, param=f"{place.param}.file_id")


def _missing(place: PartLocation, name: str) -> ApiError:
    param = f"{place.param}.{name}"
    return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
