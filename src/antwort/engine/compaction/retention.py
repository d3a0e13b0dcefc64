"""Retention: what of a history stays verbatim in a compaction. Pure.

Verbatim are all instructions, the tools that items have brought, the first and the newest user messages and the newest
tool calls with their outputs (each within a budget), calls that wait for their output, the last call in each container,
and the identifiers of containers and files. A call and its output are kept or dropped together. Images and files whose
content is inline have a budget of their own, in bytes: a text replaces those beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from msgspec import Struct

from antwort.api import items
from antwort.api.items import CustomToolCallOutput, FunctionCallOutput, GivenCodeCall, GivenMessage, Item, Logs, Raw
from antwort.api.token_estimate import estimate_item
from antwort.engine.compaction.inline_data import (
    MAX_INLINE_BYTES,
    MAX_LAST_INLINE_BYTES,
    InlineBudget,
    fit,
    strings,
    without_figures,
)
from antwort.engine.compaction.opening import is_request_message, message_digest
from antwort.engine.declared.tools import merged_tools
from antwort.engine.truncate import truncate_tokens

_ANSWERED_TYPES = {
    "function_call",
    "custom_tool_call",
    "shell_call",
    "local_shell_call",
    "apply_patch_call",
    "computer_call",
    "tool_search_call",
    "mcp_approval_request",
}
"""Types of calls whose output is an item of its own; that of an approval request is the response to it."""
_NOT_RETAINED = {"image_generation_call"}  # contains the whole image
_ID_RE = re.compile(
    r"(?=[cf])(?:\b|(?<=\\[nrt]))"  # the lookahead halves the time of a search
    r"(?P<id>cntr_[0-9A-Za-z]+|cfile_[0-9A-Za-z]+|file-[0-9A-Za-z]{8,})(?P<name> \([^()\n]{1,200} in cntr_\w+\))?"
)
"""An id, also after an escaped line break of JSON; in the summary of an earlier compaction also with its file name."""
_ID_PREFIXES = ("cntr_", "cfile_", "file-")
_MAX_SEARCHED_CHARS = 100_000
"""Ids are searched in so many characters at the start and at the end of a text."""
_MAX_FIRST_SHARE = 4
"""The first message of the user is kept if it takes at most this fraction (1 / 4) of the budget."""
_MAX_CONTAINERS = 4
_MAX_IDS = 40
_MAX_LAST_CALL_TOKENS = 250
SUMMARY_ID_PREFIX = "cmp_"
"""The message with a summary has the id of its compaction item."""


class Budgets(Struct, frozen=True):
    """The maximum tokens of each part of a compacted window."""

    summary: int
    users: int
    calls: int

    def within(self, threshold: int) -> Budgets:
        """Budgets whose sum is at most five eighths of a threshold, so that there is space for new items."""
        return Budgets(
            min(self.summary, threshold // 4), min(self.users, threshold // 4), min(self.calls, threshold // 8)
        )

    def within_history(self, tokens: int) -> Budgets:
        """Budgets for a history whose client asks for a compaction: most of the user's messages stay."""
        return Budgets(min(self.summary, tokens // 4), min(self.users, tokens // 2), min(self.calls, tokens // 8))


@dataclass(frozen=True)
class Retained:
    """The parts of a history that stay verbatim, in the order of the window, which has the summary before `calls`."""

    instructions: list[Item]
    users: list[Item]
    calls: list[Item]
    tail: list[Item]
    """Messages at the end that no model has answered yet."""
    open_calls: list[Item]
    """The calls that wait for their output, which are also the last ones of `calls`."""
    dropped_tokens: int
    """Estimated tokens of everything that is only in the summary."""
    history: Sequence[Item]

    @cached_property
    def tools(self) -> list[Item]:
        """An item that brings the tools which items of the history have brought, if they did."""
        tools = merged_tools(self.history)
        return [] if tools is None else [tools]

    @cached_property
    def identifiers(self) -> list[str]:
        """The ids of containers and files in the history, the newest last."""
        return _identifiers(self.history)

    def window(self, summary: Item) -> list[Item]:
        """The items of the compacted window."""
        return [*self.tools, *self.instructions, *self.users, summary, *self.calls, *self.tail]

    @property
    def user_messages(self) -> list[Item]:
        """The retained messages of the user, in their order."""
        return [item for item in (*self.users, *self.tail) if has_role(item, "user")]


def is_summary(item: Item) -> bool:
    """Whether an item is the summary of an earlier compaction."""
    return item.type == "message" and str(item.id or "").startswith(SUMMARY_ID_PREFIX)


def is_instruction(item: Item) -> bool:
    """Whether an item is a message with instructions (`system`, `developer`)."""
    return has_role(item, "system") or has_role(item, "developer")


def retain(history: Sequence[Item], budgets: Budgets) -> Retained:
    """Divide a history into what stays verbatim and what is only summarized."""
    end = _tail_start(history)
    instructions = _distinct(enumerate(history[:end])) | {
        index: item for index, item in enumerate(history) if index >= end and is_instruction(item)
    }
    users = _newest_users(history, budgets.users)
    calls, open_calls = _newest_calls(history[:end], budgets.calls)
    units = [*({index: item} for index, item in (instructions | users).items()), *calls]
    kept = _fit_inline_data(units, last_user=max(users, default=None))
    ordered = sorted(kept.items())
    head = [(index, item) for index, item in ordered if index < end]
    before = sum(estimate_item(item) for item in history if not is_summary(item))
    return Retained(
        instructions=[item for _, item in head if is_instruction(item)],
        users=[item for _, item in head if has_role(item, "user")],
        calls=[*(item for _, item in head if not is_request_message(item)), *open_calls],
        tail=[item for index, item in ordered if index >= end],
        open_calls=open_calls,
        dropped_tokens=before - sum(map(estimate_item, (*kept.values(), *open_calls))),
        history=history,
    )


def without_open_calls(history: Sequence[Item]) -> list[Item]:
    """The history without calls that have no output, and outputs that have no call."""
    paired = {index for call in _paired_calls(history) if call.is_complete for index in call.indexes}
    return [item for at, item in enumerate(history) if at in paired or not (_is_call(item) or _is_output(item))]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def has_role(item: Item, role: str) -> bool:
    """Whether an item is a message of this role, and not a summary."""
    return isinstance(item.known, GivenMessage) and item.known.role == role and not is_summary(item)


def _tail_start(history: Sequence[Item]) -> int:
    start = len(history)
    while start and is_request_message(history[start - 1]) and not is_summary(history[start - 1]):
        start -= 1
    return start


def _distinct(head: Iterable[tuple[int, Item]]) -> dict[int, Item]:
    """The instructions by their index, without repetitions."""
    found: dict[str, tuple[int, Item]] = {}
    for index, item in head:
        if is_instruction(item):
            found.setdefault(message_digest(item), (index, item))
    return dict(found.values())


def _newest_users(history: Sequence[Item], budget: int) -> dict[int, Item]:
    """The newest messages of the user within the budget, by their index.

    The last one stays whatever its length, and the first one, the task, unless it is long.
    """
    users = [(index, item) for index, item in enumerate(history) if has_role(item, "user")]
    first = [(index, item) for index, item in users[:1] if estimate_item(item) * _MAX_FIRST_SHARE <= budget]
    budget -= sum(estimate_item(item) for _, item in first)
    kept: list[tuple[int, Item]] = []
    for index, item in reversed(users[len(first) :]):
        budget -= estimate_item(item)
        if budget < 0 and kept:
            break
        kept.append((index, item))
    return dict([*first, *kept])


def _fit_inline_data(units: Sequence[dict[int, Item]], last_user: int | None) -> dict[int, Item]:
    """The retained items by their index with the inline data that may stay: that of the newest items.

    A unit is a message, or a call with its output. One whose inline data a text cannot replace is dropped.
    """
    last_budget = InlineBudget(MAX_LAST_INLINE_BYTES)
    kept: dict[int, Item] = {}
    for unit in (unit for unit in units if last_user in unit):
        kept = {index: fit(item, last_budget) or item for index, item in unit.items()}
    budget = InlineBudget(max(0, MAX_INLINE_BYTES - (MAX_LAST_INLINE_BYTES - last_budget.left)))
    for unit in sorted((unit for unit in units if last_user not in unit), key=max, reverse=True):
        fitted = {index: fit(item, budget) for index, item in unit.items()}
        kept |= {} if None in fitted.values() else cast("dict[int, Item]", fitted)
    return kept


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _PairedCall:
    """A call, and the index of its output in the history."""

    index: int
    item: Item
    output_index: int | None = None
    indexes: list[int] = field(default_factory=list[int])

    @property
    def is_complete(self) -> bool:
        return self.output_index is not None or not _has_separate_output(self.item)


def _has_separate_output(item: Item) -> bool:
    is_hosted_search = item.type == "tool_search_call" and item.call_id is None
    return item.type in _ANSWERED_TYPES and not is_hosted_search


def _is_call(item: Item) -> bool:
    return item.type.endswith("_call") or item.type == "mcp_approval_request"


def _is_output(item: Item) -> bool:
    return item.is_output or item.type == "mcp_approval_response"


def _answered_id(item: Item) -> str | None:
    """The id of the call that an output belongs to."""
    answered = item.raw.get("approval_request_id")
    return answered if item.type == "mcp_approval_response" and isinstance(answered, str) else item.call_id


def _paired_calls(history: Sequence[Item]) -> list[_PairedCall]:
    """All calls with their outputs. Ids may occur twice: an output belongs to the first call of its id without one."""
    calls: list[_PairedCall] = []
    waiting: dict[str | None, list[_PairedCall]] = {}
    for index, item in enumerate(history):
        if _is_call(item):
            call = _PairedCall(index, item, indexes=[index])
            calls.append(call)
            if _has_separate_output(item):
                waiting.setdefault(item.call_id or item.id, []).append(call)
        elif _is_output(item) and waiting.get(_answered_id(item)):
            call = waiting[_answered_id(item)].pop(0)
            call.output_index = index
            call.indexes.append(index)
    return calls


def _newest_calls(history: Sequence[Item], budget: int) -> tuple[list[dict[int, Item]], list[Item]]:
    """The retained calls, each with its output, by their indexes; and the calls that wait for an output."""
    calls = [call for call in _paired_calls(history) if call.item.type not in _NOT_RETAINED]
    open_calls = [call.item for call in calls if not call.is_complete]
    kept: list[dict[int, Item]] = []
    left = budget
    for call in reversed(calls):
        if not call.is_complete:
            continue
        unit = {index: without_figures(history[index]) for index in call.indexes}
        cost = sum(map(estimate_item, unit.values()))
        if cost > left:
            if kept:
                break
            unit = _shortened(unit, left)
            cost = sum(map(estimate_item, unit.values()))
            if cost > left:
                break
        kept.append(unit)
        left -= cost
    _keep_containers(calls, kept, min(_MAX_LAST_CALL_TOKENS, budget // _MAX_CONTAINERS))
    return kept, open_calls


def _shortened(unit: dict[int, Item], budget: int) -> dict[int, Item]:
    """A call whose output is cut to the budget. The call itself is not cut: its arguments are JSON."""
    smallest = sum(estimate_item(cut(item, 0)) for item in unit.values())
    return {index: cut(item, max(0, budget - smallest)) for index, item in unit.items()}


def cut(item: Item, tokens: int) -> Item:
    """A call or an output with at most so many tokens of text. Images are left out."""
    raw, known = item.raw, item.known
    if isinstance(known, GivenCodeCall):
        logs = "\n".join(output.logs for output in known.outputs or () if isinstance(output, Logs))
        outputs = [{"type": "logs", "logs": truncate_tokens(logs, tokens // 2)}] if logs else []
        kept = None if known.outputs is None else outputs
        return items.read({**raw, "code": truncate_tokens(known.code or "", tokens // 2), "outputs": kept})
    output = raw.get("output")
    if isinstance(output, str):
        return items.read({**raw, "output": truncate_tokens(output, tokens)})
    if isinstance(known, (FunctionCallOutput, CustomToolCallOutput)):
        texts = [part.text for part in known.output if isinstance(part, items.InputText)]
        return items.read({**raw, "output": truncate_tokens("\n".join(texts), tokens)})
    if item.type == "shell_call_output" and isinstance(output, list):
        entries = cast("list[Any]", output)
        return items.read({**raw, "output": [_cut_entry(entry, tokens // (2 * len(entries))) for entry in entries]})
    return item


def _cut_entry(entry: Any, tokens: int) -> Any:  # noqa: ANN401 - any JSON
    """The result of a shell command, with so many tokens of each of its two texts."""
    if not isinstance(entry, dict):
        return entry
    fields = cast("Raw", entry)
    texts = {name: text for name in ("stdout", "stderr") if isinstance(text := fields.get(name), str)}
    return fields | {name: truncate_tokens(text, tokens) for name, text in texts.items()}


def _keep_containers(calls: Sequence[_PairedCall], kept: list[dict[int, Item]], tokens: int) -> None:
    """Keep the last call in each of the newest containers, so that later calls use the container again."""
    seen: set[str] = set()
    indexes = {index for unit in kept for index in unit}
    for call in reversed(calls):
        known = call.item.known
        if not isinstance(known, GivenCodeCall) or known.container_id in seen:
            continue
        seen.add(known.container_id)
        if call.index not in indexes:
            kept.append({call.index: cut(without_figures(call.item), tokens)})
        if len(seen) == _MAX_CONTAINERS:
            break


# ── identifiers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _identifiers(history: Sequence[Item]) -> list[str]:
    """The ids of containers and files, the newest last; those of cited files with their names."""
    found: dict[str, str] = {}
    for item in history:
        for match in _id_matches(item):
            known = found.pop(match["id"], match["id"])
            found[match["id"]] = match[0] if match["name"] else known
        for citation in _citations(item):
            file_id, name = str(citation.get("file_id")), str(citation.get("filename"))
            if file_id in found:
                found[file_id] = f"{file_id} ({name} in {citation.get('container_id')})"
    return list(found.values())[-_MAX_IDS:]


def _id_matches(item: Item) -> Iterable[re.Match[str]]:
    for name, value in item.raw.items():
        if name == "encrypted_content":
            continue
        for text in strings(value):
            if not any(prefix in text for prefix in _ID_PREFIXES):
                continue
            if len(text) <= 2 * _MAX_SEARCHED_CHARS:
                yield from _ID_RE.finditer(text)
                continue
            start = _ID_RE.finditer(text, 0, _MAX_SEARCHED_CHARS)
            yield from (match for match in start if match.end() < _MAX_SEARCHED_CHARS)  # that one may be cut
            yield from _ID_RE.finditer(text, len(text) - _MAX_SEARCHED_CHARS)


def _citations(item: Item) -> Iterable[Raw]:
    content = item.raw.get("content")
    for part in cast("list[Any]", content) if isinstance(content, list) else []:
        annotations = cast("Raw", part).get("annotations") if isinstance(part, dict) else None
        for annotation in cast("list[Any]", annotations) if isinstance(annotations, list) else []:
            if isinstance(annotation, dict) and cast("Raw", annotation).get("type") == "container_file_citation":
                yield cast("Raw", annotation)
