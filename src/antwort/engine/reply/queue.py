"""Order of the items of a reply: only the first unfinished one is sent, what the model writes of later ones is kept.

On the wire an item is done before the next one is added. A model may write several calls at once, and a hosted call
is done only after it has run. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antwort.engine.ports import CallPiece, CompactionPiece, Finished, Piece, RefusalPiece, TextPiece
from antwort.engine.reply.calls import WrittenCall


@dataclass
class ReplyQueue:
    """One reply: its calls by index, in the order in which they began, and what of the reply is not sent yet."""

    calls: dict[int, WrittenCall] = field(default_factory=dict[int, WrittenCall])
    waiting: deque[WrittenCall | list[Piece]] = field(default_factory=deque[WrittenCall | list[Piece]])
    """The first entry is the open call, or what waits for a demanded call; the others follow in the order of sending.
    A list has consecutive pieces of text and reasoning."""
    finished: Finished | None = None
    first_index: int = 0
    """The output index of its first item."""
    is_saved: bool = False
    """Whether a step of the checkpoint has it."""
    is_opened: bool = False
    """Whether all of its hosted calls were opened, to be run at the same time."""
    has_accepted_call: bool = False
    """A call was not refused. Where `tool_choice` forces a call, others are refused."""
    is_asked_again: bool = False
    """The demanded call is missing, and the model is asked for it again."""
    _keys: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def is_cut(self) -> bool:
        """Whether the reply was cut off."""
        return self.finished is not None and self.finished.reason in ("length", "content_filter")

    @property
    def awaits_client(self) -> bool:
        """Whether a call needs the client: the response ends with this reply."""
        return any(call.is_client_side or call.awaits_client for call in self.calls.values())

    @property
    def has_hosted_calls(self) -> bool:
        return any(call.is_hosted for call in self.calls.values())

    def made_calls(self, *, for_client: str | None) -> list[WrittenCall]:
        """The calls that the model reads of in this response. `for_client` is the output of those of the client."""
        made: list[WrittenCall] = []
        for call in self.calls.values():
            if call.is_client_side or call.awaits_client:
                if for_client is None:
                    continue
                call.output = for_client
            made.append(call)
        return made

    def key_of(self, call: WrittenCall) -> int:
        """The index of a call in the reply."""
        if len(self._keys) < len(self.calls):  # a search for each of many calls would be quadratic
            self._keys = {id(one): key for key, one in self.calls.items()}
        return self._keys[id(call)]

    def add_call(self, piece: CallPiece, call: WrittenCall) -> None:
        self.calls[piece.index] = call
        self.waiting.append(call)

    def keep(self, piece: Piece) -> None:
        """Keep a piece of text or reasoning until what is before it is done."""
        if self.waiting and isinstance(last := self.waiting[-1], list):
            last.append(piece)
        else:
            self.waiting.append([piece])

    def may_begin(self, call: WrittenCall) -> bool:
        """Whether the item of the first call can begin: at once, or when enough of the call is written."""
        return self.finished is not None or call.may_begin

    def may_end(self, call: WrittenCall) -> bool:
        """Whether the first call is done: at the end of the reply, or where something follows a complete call."""
        return self.finished is not None or (call.is_complete and len(self.waiting) > 1)

    @property
    def is_refusal(self) -> bool:
        """Whether the kept text is a refusal, without calls."""
        return not self.calls and any(isinstance(piece, RefusalPiece) for piece in self._kept_pieces())

    def drop_text(self) -> str:
        """Drop the text and reasoning that wait; the text of them."""
        kept = self._kept_pieces()
        compactions: list[Piece] = [piece for piece in kept if isinstance(piece, CompactionPiece)]
        calls = [entry for entry in self.waiting if isinstance(entry, WrittenCall)]
        self.waiting = deque([*calls, compactions] if compactions else calls)
        return "".join(piece.text for piece in kept if isinstance(piece, (TextPiece, RefusalPiece)))

    def _kept_pieces(self) -> list[Piece]:
        return [piece for entry in self.waiting if isinstance(entry, list) for piece in entry]
