"""Functions on lists of input items: pairs of calls and outputs, pruning at a compaction item, rebuilding. Pure.

A provider refuses an output without its call and a call without its output. So a list is divided only where every call
before the division is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weakincentives.adapters.openai.wire import COMPACTION, MESSAGE, OUTPUT_SUFFIX, REASONING, Wire

_ANSWERED_CALLS = frozenset(
    {
        *("function_call", "custom_tool_call", "apply_patch_call"),
        *("shell_call", "local_shell_call", "computer_call"),
    }
)
"""The types of calls that need an output item."""

_APPROVAL_REQUEST, _APPROVAL_RESPONSE = "mcp_approval_request", "mcp_approval_response"
_TYPES_WITH_OPTIONAL_ID = frozenset({MESSAGE, *_ANSWERED_CALLS})


def call_of(item: Wire) -> str | None:
    """The id of the call that this item opens; None if it is not a call that needs an output item."""
    kind = item.get("type")
    if kind == _APPROVAL_REQUEST:
        return _text(item.get("id"))
    return _text(item.get("call_id")) if kind in _ANSWERED_CALLS else None


def answered_by(item: Wire) -> str | None:
    """The id of the call whose output this item is; None if it is not an output."""
    kind = _text(item.get("type")) or ""
    if kind == _APPROVAL_RESPONSE:
        return _text(item.get("approval_request_id"))
    if kind.endswith(OUTPUT_SUFFIX):
        return _text(item.get("call_id")) or _text(item.get("id"))  # the output of a local shell has no call_id
    return None


def is_encrypted(item: Wire) -> bool:
    """Whether the item is a compaction item."""
    return item.get("type") == COMPACTION


def closed_length(items: Sequence[Wire]) -> int:
    """The length of the longest prefix in which every call is answered.

    Reasoning at its end belongs to the item that follows, and is not part of the prefix.
    """
    unanswered: set[str] = set()
    length = 0
    for number, item in enumerate(items, 1):
        _follow(item, unanswered)
        if not unanswered:
            length = number
    while 0 < length < len(items) and items[length - 1].get("type") == REASONING:
        length -= 1
    return length


def closed_blocks(items: Sequence[Wire]) -> Iterator[list[Wire]]:
    """The shortest runs of items in which every call is answered; unanswered calls are in the last one."""
    unanswered: set[str] = set()
    block: list[Wire] = []
    for item in items:
        block.append(item)
        _follow(item, unanswered)
        if not unanswered and item.get("type") != REASONING:
            yield block
            block = []
    if block:
        yield block


def prune(items: Sequence[Wire]) -> tuple[list[Wire], list[Wire]]:
    """The window that the latest compaction item leaves, and the items that it replaces.

    Calls before the compaction item that are answered after it, or not yet, stay, after the compaction item.
    """
    last = next((at for at in range(len(items) - 1, -1, -1) if is_encrypted(items[at])), None)
    if last is None:
        return list(items), []
    unanswered: dict[str, list[int]] = {}
    for at, item in enumerate(items[:last]):
        if (opened := call_of(item)) is not None:
            start = at
            while start > 0 and items[start - 1].get("type") == REASONING:
                start -= 1
            unanswered[opened] = list(range(start, at + 1))
        elif (answered := answered_by(item)) is not None:
            unanswered.pop(answered, None)
    moved = {at for indexes in unanswered.values() for at in indexes}
    replaced = [item for at, item in enumerate(items[:last]) if at not in moved]
    return [items[last], *(items[at] for at in sorted(moved)), *items[last + 1 :]], replaced


def plain(items: Sequence[Wire]) -> list[Wire]:
    """The items that any provider can read: no encrypted content, no ids that refer to it, no call without output.

    Reasoning is left out. Without it, an id of a message or call would refer to reasoning that is missing.
    """
    kept: list[Wire] = []
    opened_at: dict[str, int] = {}
    unpaired: set[int] = set()
    for item in items:
        if item.get("type") in (REASONING, COMPACTION):
            continue
        at = len(kept)
        if (opened := call_of(item)) is not None:
            unpaired.add(at)
            opened_at[opened] = at
        elif (answered := answered_by(item)) is not None:
            if answered in opened_at:
                unpaired.discard(opened_at.pop(answered))
            else:
                unpaired.add(at)
        kept.append(_without_id(item))
    return [item for at, item in enumerate(kept) if at not in unpaired]


def chunks(items: Sequence[Wire], size: Callable[[Wire], float], limit: float) -> list[list[Wire]]:
    """Divide into chunks of at most `limit`, each with all outputs of its calls; a longer block is a chunk alone."""
    divided: list[list[Wire]] = []
    left = 0.0
    for block in closed_blocks(items):
        needed = sum(map(size, block))
        if not divided or needed > left:
            divided.append([])
            left = limit
        divided[-1].extend(block)
        left -= needed
    return divided


def newest(items: Sequence[Wire], size: Callable[[Wire], float], limit: float) -> list[Wire]:
    """The newest blocks that together are at most `limit`; the last block always."""
    kept: list[list[Wire]] = []
    used = 0.0
    for block in reversed(list(closed_blocks(items))):
        used += sum(map(size, block))
        if kept and used > limit:
            break
        kept.append(block)
    return [item for block in reversed(kept) for item in block]


def _follow(item: Wire, unanswered: set[str]) -> None:
    if (opened := call_of(item)) is not None:
        unanswered.add(opened)
    elif (answered := answered_by(item)) is not None:
        unanswered.discard(answered)


def _without_id(item: Wire) -> Wire:
    kind = item.get("type")
    has_optional_id = kind in _TYPES_WITH_OPTIONAL_ID or (answered_by(item) is not None and "call_id" in item)
    return {key: value for key, value in item.items() if key != "id"} if has_optional_id else item


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
