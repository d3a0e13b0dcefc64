"""Inline data of a history: data URLs of images and the content of files, and the texts that replace them. Pure.

A model counts an image by its size in pixels, so images of many megabytes fit a budget of tokens. A compaction
contains its inline data twice: in the messages that the client gets, and in the encrypted item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from antwort.api import items
from antwort.api.items import GivenCodeCall, GivenMessage, Item, Logs, Raw

MAX_INLINE_BYTES: Final = 2_000_000
"""Maximum bytes of the inline data in a compacted window…"""
MAX_LAST_INLINE_BYTES: Final = 8_000_000
"""…except for the last message of the user, which alone may have so many."""
_IMAGE_PREFIX = "data:image/"
_IMAGE_TEXT = "[image]"


@dataclass
class InlineBudget:
    """The bytes of inline data that may still be kept."""

    left: int

    def takes(self, size: int) -> bool:
        """Whether so many bytes fit. If they do, they are subtracted."""
        if size > self.left:
            return False
        self.left -= size
        return True


def fit(item: Item, budget: InlineBudget) -> Item | None:
    """The item with the inline data that fits the budget, the last parts first; texts replace the rest.

    None if it has inline data that does not fit and that a text cannot replace, such as the screenshot of a computer.
    """
    fitted = _replace_parts(item, lambda part: not budget.takes(_part_size(part)))
    if isinstance(fitted.known, GivenMessage):
        return fitted
    return fitted if budget.takes(_size_outside_parts(fitted)) else None


def without_attachments(item: Item) -> Item | None:
    """The item with texts in place of all images and files; None if a text cannot replace one."""
    replaced = _replace_parts(without_figures(item), _is_attachment)
    if isinstance(replaced.known, GivenMessage):
        return replaced
    return None if _size_outside_parts(replaced) else replaced


def without_figures(item: Item) -> Item:
    """A call of the code interpreter without its figures, which no model sees, and without printed images."""
    if not isinstance(item.known, GivenCodeCall) or not item.known.outputs:
        return item
    outputs: list[Raw] = []
    for output in item.known.outputs:
        if isinstance(output, Logs):
            logs = _IMAGE_TEXT if output.logs.startswith(_IMAGE_PREFIX) else output.logs
            outputs.append({"type": "logs", "logs": logs})
    return item if outputs == item.raw["outputs"] else items.read({**item.raw, "outputs": outputs})


def strings(value: object) -> Iterator[str]:
    """All strings in a JSON value except data URLs, in their order."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from strings(inner)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _replace_parts(item: Item, should_replace: Callable[[Raw], bool]) -> Item:
    """The item with a text in place of these parts of its content or output, which are tested from last to first."""
    name = "content" if isinstance(item.known, GivenMessage) else "output"
    value = item.raw.get(name)
    if isinstance(value, str):
        part: Raw = {"type": "input_text", "text": value}
        return items.read({**item.raw, name: _placeholder(part)}) if should_replace(part) else item
    if not isinstance(value, list):
        return item
    text_type = "output_text" if item.raw.get("role") == "assistant" else "input_text"
    parts: list[Any] = list(cast("list[Any]", value))
    is_changed = False
    for index in range(len(parts) - 1, -1, -1):
        if isinstance(parts[index], dict) and should_replace(parts[index]):
            parts[index] = {"type": text_type, "text": _placeholder(parts[index])}
            is_changed = True
    return items.read({**item.raw, name: parts}) if is_changed else item


def _is_attachment(part: Raw) -> bool:
    return part.get("type") in {"input_image", "input_file"} or _part_size(part) > 0


def _part_size(part: Raw) -> int:
    """Bytes of the inline data of a part; 0 if it has none."""
    image, data, text = (part.get(name) for name in ("image_url", "file_data", "text"))
    if isinstance(image, str) and image.startswith("data:"):
        return len(image)
    if isinstance(data, str):
        return len(data)
    return len(text) if isinstance(text, str) and text.startswith(_IMAGE_PREFIX) else 0


def _placeholder(part: Raw) -> str:
    if part.get("type") != "input_file":
        return _IMAGE_TEXT
    name = part.get("filename") or part.get("file_id")
    return f"[file {name}]" if name else "[file]"


def _size_outside_parts(item: Item) -> int:
    """Bytes of the inline data in other places than the parts of the output."""
    output = item.raw.get("output")
    if isinstance(output, str):
        parts: list[Raw] = [{"text": output}]
    else:
        values = cast("list[Any]", output) if isinstance(output, list) else []
        parts = [part for part in values if isinstance(part, dict)]
    return _inline_size(item.raw) - sum(map(_part_size, parts))


def _inline_size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.startswith(_IMAGE_PREFIX) else 0
    if isinstance(value, dict):
        fields = cast("Raw", value)
        return _part_size(fields) or sum(map(_inline_size, fields.values()))
    return sum(map(_inline_size, cast("list[object]", value))) if isinstance(value, list) else 0
