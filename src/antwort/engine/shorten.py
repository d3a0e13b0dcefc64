"""A history that is too long for its model, cut from its beginning. Pure.

Only what a request with `truncation: "auto"` allows: the oldest goes first, instructions
stay, and so does all from the last thing that the user said.
"""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.items import GivenMessage, Item

TOO_LONG = "context_length_exceeded"
"""The code of a model's fault that says so."""


def shortened(history: Sequence[Item]) -> list[Item] | None:
    """Without the older half of what may go; None where nothing more may."""
    last = max((at for at, item in enumerate(history) if _role(item) == "user"), default=len(history) - 1)
    may_go = [at for at, item in enumerate(history[:last]) if _role(item) not in ("system", "developer")]
    if not may_go:
        return None
    gone = set(may_go[: (len(may_go) + 1) // 2])
    rest = [item for at, item in enumerate(history) if at not in gone]
    called = {item.call_id for item in rest if not item.type.endswith("_output")}
    # A result without its call is an error to many models.
    return [item for item in rest if not item.type.endswith("_output") or item.call_id in called]


def _role(item: Item) -> str | None:
    return item.known.role if isinstance(item.known, GivenMessage) else None
