"""Reads the messages of a request as items, and keeps the path of each item and of its parts. Pure."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from antwort.api.errors import ApiError, invalid
from antwort.api.ids import MAX_ID_LENGTH
from antwort.http.wires.messages.replay import (
    is_search,
    replayed_call,
    replayed_output,
    search_item,
    search_results,
)
from antwort.http.wires.messages.request import (
    Base64Source,
    Block,
    ContainerUploadBlock,
    ContentSource,
    DocumentBlock,
    FileSource,
    ImageBlock,
    MessageParam,
    RedactedThinkingBlock,
    ResultPart,
    SearchResultBlock,
    ServerToolResult,
    ServerToolUseBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)

Item: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]

_IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DOCUMENT_TYPES: Final = ("application/pdf", "text/plain")
_FAILED: Final = "The tool failed:"
_SIGNATURE_PREFIX: Final = "rs_"


class Origin(NamedTuple):
    """Where an item came from: the paths of its block, or message, and of its parts."""

    path: str
    parts: Sequence[str] = ()


class History:
    """The items of the messages. `referenced` are the tools that a search or a call has named."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.origins: list[Origin] = []
        self.referenced: set[str] = set()
        self._role = ""
        self._path = ""
        """Of the message that is being read…"""
        self._item_path = ""
        """…and of the first one of its item."""
        self._parts: list[Part] = []
        self._part_paths: list[str] = []
        """Of the message that is being read, and of what follows it with the same role."""
        self._called: set[str] = set()
        self._searches: dict[str, Item] = {}
        """The web searches, whose results are added to them."""
        self.uploads: list[str] = []
        """The ids of the files for the container."""
        self.upload_path = ""
        """Of the first of them."""

    def read(self, messages: Sequence[MessageParam]) -> None:
        """Read all messages. Those of one role that follow each other are one."""
        for at, message in enumerate(messages):
            path = f"messages.{at}"
            if message.role != self._role or message.role == "system":
                self._flush()
                self._role = message.role
            self._path = path
            content = message.content
            if isinstance(content, str):
                self._add_part(_text(content, message.role), path)
                continue
            for index, block in enumerate(content):
                self._read_block(block, message.role, f"{path}.content.{index}")
        self._flush()

    def _read_block(self, block: Block, role: str, path: str) -> None:
        match block:
            case TextBlock():
                self._add_part(_text(block.text, role), path)
            case ToolUseBlock() if role == "assistant":
                self._add_call(block, path)
            case ServerToolUseBlock() if role == "assistant":
                self._add_hosted_call(block, path)
            case ServerToolResult() if role == "assistant":
                self._check_called(block.tool_use_id, path)
                self._add_hosted_result(block, path)
            case ContainerUploadBlock() if role == "user":
                self.upload_path = self.upload_path or path
                self.uploads.append(block.file_id)
            case ThinkingBlock() | RedactedThinkingBlock() if role == "assistant":
                self._add_thinking(block, path)
            case ToolResultBlock() if role == "user":
                self._add_result(block, path)
            case ImageBlock() | DocumentBlock() | SearchResultBlock() if role == "user":
                for part in _parts(block, path):
                    self._add_part(part, path)
            case _:
                kind = str(block.__struct_config__.tag)
                raise invalid(f"`{kind}` blocks are not allowed in messages with the role '{role}'.", param=path)

    def _add_part(self, part: Part, path: str) -> None:
        if part.get("text") != "":
            self._item_path = self._item_path or self._path
            self._parts.append(part)
            self._part_paths.append(path)

    def _flush(self) -> None:
        """End the message that is being read."""
        if self._parts:
            role = "developer" if self._role == "system" else self._role
            self.items.append({"type": "message", "role": role, "content": self._parts})
            self.origins.append(Origin(self._item_path, self._part_paths))
        self._parts, self._part_paths, self._item_path = [], [], ""

    def _add(self, item: Item, origin: Origin) -> None:
        self._flush()
        self.items.append(item)
        self.origins.append(origin)

    def _add_call(self, block: ToolUseBlock, path: str) -> None:
        self.referenced.add(block.name)
        self._called.add(block.id)
        arguments = msgspec.json.encode(block.input).decode()
        call = {"type": "function_call", "call_id": call_id(block.id), "name": block.name, "arguments": arguments}
        self._add(call, Origin(path))

    def _add_hosted_call(self, block: ServerToolUseBlock, path: str) -> None:
        self._called.add(block.id)
        if is_search(block):
            self._searches[block.id] = item = search_item(block)
        else:
            name, arguments = replayed_call(block)
            item = {"type": "function_call", "call_id": call_id(block.id), "name": name, "arguments": arguments}
        self._add(item, Origin(path))

    def _add_hosted_result(self, block: ServerToolResult, path: str) -> None:
        if (searched := self._searches.get(block.tool_use_id)) is not None:
            searched["results"] = search_results(block)
            return
        item = {"type": "function_call_output", "call_id": call_id(block.tool_use_id)}
        self._add({**item, "output": replayed_output(block)}, Origin(path))

    def _add_thinking(self, block: ThinkingBlock | RedactedThinkingBlock, path: str) -> None:
        if isinstance(block, RedactedThinkingBlock):
            return
        item: Item = {"type": "reasoning", "summary": []}
        identifier, _, encrypted = (block.signature or "").partition(".")
        if identifier.startswith(_SIGNATURE_PREFIX) and encrypted:
            summary = [{"type": "summary_text", "text": block.thinking}] if block.thinking else []
            self._add({**item, "id": identifier, "summary": summary, "encrypted_content": encrypted}, Origin(path))
        elif block.thinking:
            content = [{"type": "reasoning_text", "text": block.thinking}]
            self._add({**item, "content": content}, Origin(path))

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        self._check_called(block.tool_use_id, path)
        parts = [*self._result_parts(block, path)]
        if block.is_error:
            parts = [({"type": "input_text", "text": _FAILED}, path), *parts]
        output = _output([part for part, _ in parts])
        item = {"type": "function_call_output", "call_id": call_id(block.tool_use_id), "output": output}
        self._add(item, Origin(path, [place for _, place in parts]))

    def _check_called(self, identifier: str, path: str) -> None:
        if identifier not in self._called:
            message = (
                f"unexpected `tool_use_id` found in `tool_result` blocks: {identifier[:MAX_ID_LENGTH]}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in a previous message."
            )
            raise invalid(message, param=path)

    def _result_parts(self, block: ToolResultBlock, path: str) -> Iterator[tuple[Part, str]]:
        if isinstance(block.content, str):
            yield _text(block.content, "user"), path
            return
        for at, inner in enumerate(block.content or ()):
            place = f"{path}.content.{at}"
            if isinstance(inner, ToolReferenceBlock):
                self.referenced.add(inner.tool_name)
                yield _text(f"[The tool '{inner.tool_name}' is available now.]", "user"), place
            else:
                yield from ((part, place) for part in _parts(inner, place))


def call_id(identifier: str) -> str:
    """The id of a call. Other servers make longer ones than this server accepts."""
    if len(identifier) <= MAX_ID_LENGTH:
        return identifier
    return "toolu_" + hashlib.sha256(identifier.encode(errors="replace")).hexdigest()[:32]


def _output(parts: list[Part]) -> str | list[Part]:
    """The output of a call: only text as one string."""
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _text(text: str, role: str) -> Part:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


# ── images and documents ─────────────────────────────────────────────────────────────────────────────────────────────


def _parts(block: ResultPart, path: str) -> Iterator[Part]:
    """The parts of a block that a user, or a tool, shows the model."""
    match block:
        case TextBlock():
            yield _text(block.text, "user")
        case ImageBlock():
            yield _image(block, path)
        case DocumentBlock():
            _refuse_citations(block, path)
            yield from _document(block, path)
        case SearchResultBlock():
            _refuse_citations(block, path)
            text = "\n".join(inner.text for inner in block.content)
            yield _text(f"{block.title}\n{block.source}\n{text}", "user")
        case ToolReferenceBlock():
            pass


def _refuse_citations(block: DocumentBlock | SearchResultBlock, path: str) -> None:
    if block.citations is not None and block.citations.enabled:
        message = "Citations of documents are not available on this server. Set `enabled` to false."
        raise invalid(message, param=f"{path}.citations.enabled", code="unsupported_value")


def _image(block: ImageBlock, path: str) -> Part:
    match block.source:
        case Base64Source() as source:
            place = f"{path}.source.base64"
            if source.media_type not in _IMAGE_TYPES:
                raise _wrong_media_type(source.media_type, _IMAGE_TYPES, place)
            return {"type": "input_image", "image_url": _data_url(source, place)}
        case UrlSource(url=url):
            if not url.startswith(("https://", "http://")):
                raise invalid("Only http and https URLs are supported.", param=f"{path}.source.url.url")
            return {"type": "input_image", "image_url": url}
        case FileSource(file_id=file_id):
            return {"type": "input_image", "file_id": file_id}


def _document(block: DocumentBlock, path: str) -> Iterator[Part]:
    """A document: its title and context as text before it."""
    name = block.title or "document"
    match block.source:
        case TextSource(data=data):
            yield _titled(name, block.context, data)
        case ContentSource(content=content):
            yield _titled(name, block.context, content if isinstance(content, str) else "")
            for one in () if isinstance(content, str) else content:
                yield from _parts(one, f"{path}.source.content")
        case Base64Source() as source:
            place = f"{path}.source.base64"
            if source.media_type not in _DOCUMENT_TYPES:
                raise _wrong_media_type(source.media_type, _DOCUMENT_TYPES, place)
            extension = ".pdf" if source.media_type == "application/pdf" else ".txt"
            named = name if name.endswith(extension) else name + extension
            yield from _context(block)
            yield {"type": "input_file", "filename": named, "file_data": _data_url(source, place)}
        case UrlSource(url=url):
            yield from _context(block)
            yield {"type": "input_file", "file_url": url}
        case FileSource(file_id=file_id):
            yield from _context(block)
            yield {"type": "input_file", "file_id": file_id}


def _titled(title: str, context: str | None, text: str) -> Part:
    return _text("\n".join(filter(None, (f"[document: {title}]", context, text))), "user")


def _context(block: DocumentBlock) -> Iterator[Part]:
    if block.context:
        yield _text(block.context, "user")


def _data_url(source: Base64Source, path: str) -> str:
    try:
        binascii.a2b_base64(source.data, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"Invalid base64 data: {error}.", param=f"{path}.data") from error
    return f"data:{source.media_type};base64,{source.data}"


def _wrong_media_type(given: str, supported: Sequence[str], path: str) -> ApiError:
    listed = ", ".join(f"'{one}'" for one in supported)
    return invalid(f"Input should be one of {listed}, not '{given[:64]}'.", param=f"{path}.media_type")
