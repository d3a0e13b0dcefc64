"""Attachments: resolves `input_image` and `input_file` ids to data URLs for the model.

A part of this request that is missing, or that its model cannot read, is an error with the `param` of the part. A part
of an earlier request that is gone is replaced by a text, so that a conversation survives the deletion of its files. An
image of an earlier request that the model cannot read is an error, too: its answer would be about a picture that it
does not see. If a hosted tool reads files, the parts that the model cannot read are for the tool.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote_to_bytes

from antwort.api import items
from antwort.api.attached_parts import (
    AttachedPart,
    PartLocation,
    as_function_output,
    attached_parts,
    image_as_file,
)
from antwort.api.errors import ApiError, invalid, missing_parameter, not_found
from antwort.api.items import SOURCE_URL, InputFile, InputImage, Item, Raw
from antwort.engine.context import Context
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import FileRecord, FileStore, Owner

_IMAGE_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_URL_SCHEMES = ("http://", "https://", "data:")
_UNREADABLE_CODES = ("unsupported_file", "file_too_large")
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml")


async def check_files(given: Sequence[Item], owner: Owner, store: FileStore, param: str) -> None:
    """`ApiError` 404 for a file that these items name and that is missing, or another owner's."""
    for at, item in enumerate(given):
        for location, part in attached_parts(item, f"{param}[{at}]"):
            if part.file_id is not None and await store.get_file(owner, part.file_id) is None:
                raise _file_not_found(part.file_id, location)


@dataclass
class Attacher:
    """Resolves the attachments of one request."""

    owner: Owner
    store: FileStore
    model: ChosenModel
    max_bytes: int
    """Bytes of uploaded files that one request may send to its model."""
    tools_read_files: bool = False
    """A hosted tool reads the files: one that the model cannot read is then mentioned by name, and no error."""
    history_param: str = "input"
    """The parameter that names the history before this request."""
    content_reads: AbstractAsyncContextManager[None] = field(default_factory=nullcontext)
    """Held while contents are read; a semaphore bounds how many requests do so at a time."""
    _loaded: dict[str, tuple[FileRecord, bytes]] = field(default_factory=dict[str, tuple[FileRecord, bytes]])
    _size: int = 0

    async def history(self, context: Context) -> list[Item]:
        """The history with its attachments resolved; those of this request first, since they may be errors."""
        visible = enumerate(context.visible, context.start)
        given = [await self._item(item, f"input[{at}]", strict=True) for at, item in visible]
        before = [await self._item(item, "", strict=False) for item in context.before]
        return [*before, *given]

    async def _item(self, item: Item, param: str, *, strict: bool) -> Item:
        raw = as_function_output(item).raw
        for location, part in attached_parts(item, param):
            parts = list(cast("list[Raw]", raw[location.field]))
            if isinstance(part, InputImage) and not self._takes(part):
                raise self._image_not_read(item, location, is_given=strict)
            try:
                parts[location.part_index] = await self._resolved(part, parts[location.part_index], location)
            except ApiError as error:
                for_tools = self.tools_read_files and isinstance(part, InputFile) and error.code in _UNREADABLE_CODES
                if strict and not for_tools:
                    raise
                parts[location.part_index] = _placeholder(part, for_tools=for_tools)
            raw = {**raw, location.field: parts}
        return item if raw is item.raw else items.read(raw)

    def _takes(self, image: InputImage) -> bool:
        """Whether the model reads an image, or a hosted tool does."""
        return self.model.reads_images or (self.tools_read_files and image_as_file(image) is not None)

    def _image_not_read(self, item: Item, location: PartLocation, *, is_given: bool) -> ApiError:
        cause = f"The model '{self.model.name}' cannot read images."
        if is_given:
            message = f"{cause} Send text instead, or use a model that reads images."
            if self.tools_read_files:
                message += " The tools read images only as data or files, not by URL."
            return invalid(message, param=location.param, code="unsupported_value")
        part = f"{location.field}[{location.part_index}]"
        message = f"{cause} The history has one, in {part} of the item '{item.id}'."
        cure = "Use a model that reads images, or a history without this item."
        return invalid(f"{message} {cure}", param=self.history_param, code="unsupported_value")

    async def _resolved(self, part: AttachedPart, raw: Raw, location: PartLocation) -> Raw:
        """The part as the model reads it."""
        raw = {name: value for name, value in raw.items() if name != SOURCE_URL}
        if isinstance(part, InputFile):
            return raw | await self._file(part, location)
        if self.model.reads_images:
            return raw | await self._image(part, location)
        return await self._image_for_tools(part, location)

    async def _image_for_tools(self, part: InputImage, location: PartLocation) -> Raw:
        """The name of an image that only a hosted tool reads."""
        file = image_as_file(part) or InputFile()
        if file.file_data is not None:
            decode_file_data(file.file_data, f"{location.param}.image_url")
        if file.file_id is not None:
            record = await self.store.get_file(self.owner, file.file_id)
            if record is None:
                raise _file_not_found(file.file_id, location)
            file.filename = record.filename
        return _text_part(f"[attached image: {file.filename}, for your tools to read]")

    async def _image(self, part: InputImage, location: PartLocation) -> Raw:
        if part.image_url:
            if not part.image_url.startswith(_URL_SCHEMES):  # an upstream might open a local path
                raise invalid("Expected an http or https URL, or a data URL.", param=f"{location.param}.image_url")
            return {}
        if part.file_id is None:
            raise missing_parameter(f"{location.param}.image_url")
        record, content = await self._load(part.file_id, location)
        media_type = image_type(content)
        if media_type is None:
            raise invalid(
                f"'{record.filename}' is not a supported image: it must be PNG, JPEG, GIF or WebP.",
                param=f"{location.param}.file_id",
                code="unsupported_file",
            )
        return {"image_url": await _data_url(media_type, content)}

    async def _file(self, part: InputFile, location: PartLocation) -> Raw:
        if part.file_data:
            name, source = part.filename or "file", "file_data" if part.source_url is None else "file_url"
            content = decode_file_data(part.file_data, f"{location.param}.file_data")
        elif part.file_id is not None:
            record, content = await self._load(part.file_id, location)
            name, source = part.filename or record.filename, "file_id"
        elif part.file_url:
            if self.model.reads_file_urls:
                return {}
            raise invalid(
                "This server does not fetch files from URLs: send the file's content, or upload it. Its operator can "
                "allow it with `fetch.input_urls: true` in the configuration.",
                param=f"{location.param}.file_url",
                code="unsupported_value",
            )
        else:
            raise missing_parameter(f"{location.param}.file_id")
        media_type = file_type(name, content)
        if not (self.model.reads_files or media_type.startswith(_TEXT_TYPES)):
            readable = "text and images" if self.model.reads_images else "text"
            raise invalid(
                f"The model '{self.model.name}' cannot read '{name}' ({media_type}): it reads only {readable}. "
                "Send the file's text instead.",
                param=f"{location.param}.{source}",
                code="unsupported_file",
            )
        return {"filename": name, "file_data": await _data_url(media_type, content)}

    async def _load(self, file_id: str, location: PartLocation) -> tuple[FileRecord, bytes]:
        if file_id in self._loaded:
            return self._loaded[file_id]
        record = await self.store.get_file(self.owner, file_id)
        if record is None:
            raise _file_not_found(file_id, location)
        if self._size + record.bytes > self.max_bytes:
            raise invalid(
                f"The files of this request are too large for a model: more than {self.max_bytes} bytes.",
                param=f"{location.param}.file_id",
                code="file_too_large",
            )
        async with self.content_reads:
            chunks = await self.store.read_file(self.owner, file_id)
            if chunks is None:
                raise _file_not_found(file_id, location)
            self._size += record.bytes
            self._loaded[file_id] = record, b"".join([chunk async for chunk in chunks])
        return self._loaded[file_id]


def image_type(content: bytes) -> str | None:
    """The media type of an image by its magic bytes; its name may be wrong."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for start, media_type in _IMAGE_MAGIC if content.startswith(start)), None)


def file_type(name: str, content: bytes) -> str:
    """The media type of a file. Valid UTF-8 is text, whatever its name."""
    guessed, _ = mimetypes.guess_type(name)
    if _is_text(content):
        return guessed if guessed is not None and guessed.startswith(_TEXT_TYPES) else "text/plain"
    if content.startswith(b"%PDF-"):
        return "application/pdf"
    binary_type = guessed if guessed and not guessed.startswith(_TEXT_TYPES) else "application/octet-stream"
    return image_type(content) or binary_type


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def decode_file_data(data: str, param: str) -> bytes:
    """The content of `file_data`: a data URL, or plain base64."""
    head, comma, payload = data.partition(",")
    try:
        if comma and head.startswith("data:") and not head.endswith(";base64"):
            return unquote_to_bytes(payload)
        return base64.b64decode(payload if comma else head, validate=True)
    except (binascii.Error, ValueError) as error:
        message = "Expected a data URL with base64, such as 'data:application/pdf;base64,…'."
        raise invalid(message, param=param) from error


async def _data_url(media_type: str, content: bytes) -> str:
    return await asyncio.to_thread(lambda: f"data:{media_type};base64,{base64.b64encode(content).decode()}")


def _placeholder(part: AttachedPart, *, for_tools: bool = False) -> Raw:
    if isinstance(part, InputImage):
        return _text_part("[an image that cannot be shown any more]")
    name = part.filename or part.file_id or "file"
    return _text_part(
        f"[attached file: {name}, for your tools to read]"
        if for_tools
        else f"[attached file: {name}, which cannot be shown any more]"
    )


def _text_part(text: str) -> Raw:
    return {"type": "input_text", "text": text}


def _file_not_found(file_id: str, location: PartLocation) -> ApiError:
    return not_found("File", file_id, param=f"{location.param}.file_id")
