"""Validation of the ids in a request: characters, length, prefix, and each item once. The messages are OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from antwort.api.errors import invalid
from antwort.api.ids import ITEM_PREFIXES, MAX_ID_LENGTH, Prefix
from antwort.api.items import Item, Raw

_ID_RE = re.compile(r"[A-Za-z0-9_-]+")

_ANY_PREFIX: Final = {
    "compaction",  # of an upstream, with the id that its encrypted content is bound to
    "compaction_trigger",
    "computer_call_output",
    "local_shell_call_output",
    "mcp_approval_response",
    "shell_call_output",
}
"""Items whose ids may have any prefix."""


SAME_ID_AS_CALL: Final = frozenset({"local_shell_call_output"})
"""Outputs whose `id` is that of their call."""


def check_id(value: str, param: str, prefix: str = "") -> None:
    """`ApiError` 400 for an id with other characters, of another length, or without the prefix."""
    _check_length(value, param)
    if not _ID_RE.fullmatch(value):
        raise invalid(
            f"Invalid '{param}': '{value}'. Expected an ID that contains letters, numbers, underscores, or dashes, "
            "but this value contained additional characters.",
            param=param,
        )
    if not value.startswith(prefix):
        raise invalid(f"Invalid '{param}': '{value}'. Expected an ID that begins with '{prefix}'.", param=param)


def check_call_id(value: str, param: str) -> None:
    """`ApiError` 400 for a `call_id` of another length. Models write these, so they may have any characters."""
    _check_length(value, param)


def check_item_ids(raw: Raw, kind: str, path: str) -> None:
    """Check `id` and `call_id` of an item, whose types were checked."""
    if raw.get("id") is not None:
        check_id(raw["id"], f"{path}.id", item_id_prefix(kind))
    if raw.get("call_id") is not None:
        check_call_id(raw["call_id"], f"{path}.call_id")


def item_id_prefix(kind: str) -> str:
    """What the ids of items of this type begin with; empty if any prefix is valid."""
    prefix: Prefix | None = None if kind in _ANY_PREFIX else ITEM_PREFIXES.get(kind)
    return prefix.rstrip("_") if prefix else ""


def check_each_once(given: Iterable[Item], param: str, existing: Iterable[str] = ()) -> None:
    """`ApiError` 400 for an item that is given twice, or is in the history already, by its id."""
    seen = set(existing)
    for item in given:
        if item.id is None or item.type in SAME_ID_AS_CALL:
            continue
        if item.id in seen:
            message = f"Duplicate item found with id {item.id}. Remove duplicate items from your {param} and try again."
            raise invalid(message, param=param, code=None)
        seen.add(item.id)


def _check_length(value: str, param: str) -> None:
    if not value:
        message = f"Invalid '{param}': empty string. Expected a string with minimum length 1, but got an empty string"
        raise invalid(f"{message} instead.", param=param, code="empty_string")
    if len(value) > MAX_ID_LENGTH:
        raise invalid(
            f"Invalid '{param}': string too long. Expected a string with maximum length {MAX_ID_LENGTH}, but got a "
            f"string with length {len(value)} instead.",
            param=param,
            code="string_above_max_length",
        )
