"""`CompactionState`: the session slice with the compacted window, and `TranscriptItem`: the plain items behind it.

Both are state slices: a snapshot of the session contains them, and `restore` rolls them back together.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class CompactionState:
    """The conversation of a session, as the next request continues it.

    `window` is the whole input of the next request before its new messages: the output of the latest compaction,
    unchanged, and the items that were added since. Its first `covered` items stand for the `TranscriptItem`s of the
    session. `encrypted_items` are the compaction items in it. `last_compaction_tokens` and `tokens_after` are the
    tokens before and after the latest compaction; `window_tokens` are the input tokens of the last request.
    """

    encrypted_items: tuple[dict[str, Any], ...] = ()
    last_compaction_tokens: int = 0
    compaction_count: int = 0
    window: tuple[dict[str, Any], ...] = ()
    covered: int = 0
    tokens_after: int = 0
    window_tokens: int = 0

    @property
    def tokens_before(self) -> int:
        """Another name of `last_compaction_tokens`."""
        return self.last_compaction_tokens


@dataclass(frozen=True, slots=True)
class TranscriptItem:
    """One item of the history that a compaction replaced, without ids and encrypted content."""

    item: dict[str, Any]


class ConversationLock:
    """Held by the evaluation that continues the conversation of a session.

    An evaluation that starts meanwhile, such as one that a tool starts, is a conversation of its own.
    """

    def __init__(self) -> None:
        self.lock = Lock()
