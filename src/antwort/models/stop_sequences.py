"""Stop sequences: ends the reply of any model where its text has one. The text before it is kept, the rest is dropped.

Backends that know stop sequences stop by themselves, and nothing is cut here. The others would write on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from antwort.api.token_estimate import TokenEstimator
from antwort.engine.ports import CallPiece, Finished, ModelRequest, Piece, TextPiece
from antwort.models.tokens import estimate_usage, generated_text


async def cut_at_stop(request: ModelRequest, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """The pieces of a reply up to a stop sequence of the request. The usage of a reply that is cut is estimated."""
    scanner, written, has_calls = StopScanner(request.sampling.stop), TokenEstimator(), False
    async with aclosing(pieces) as reply:
        async for piece in reply:
            written.add(generated_text(piece))
            has_calls |= isinstance(piece, CallPiece)
            for sent in scanner.read(piece):
                yield sent
            if scanner.matched is not None:
                reason = "calls" if has_calls else "stop"
                yield Finished(reason, estimate_usage(request, written.tokens), scanner.matched)
                return


class StopScanner:
    """Searches a streamed text for stop sequences. Text that may be the start of one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.matched: str | None = None
        """The stop sequence that the text has."""
        self._stop = stop
        self._held: list[TextPiece] = []

    def read(self, piece: Piece) -> Iterator[Piece]:
        """The pieces that can be sent now. A stop sequence does not continue behind a call or another item."""
        if not isinstance(piece, TextPiece):
            yield from self._held
            self._held = []
            yield piece
            return
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            _, end, self.matched = min(found)
            yield from _up_to(self._held, end)
            self._held = []
            return
        safe = min(_possible_start(text, stop) for stop in self._stop)
        while self._held and len(self._held[0].text) <= safe:
            first = self._held.pop(0)
            safe -= len(first.text)
            yield first
        if safe > 0 and not self._held[0].logprobs:  # a piece with logprobs is a token, and stays whole
            first = self._held[0]
            yield TextPiece(first.text[:safe])
            self._held[0] = TextPiece(first.text[safe:])


def _possible_start(text: str, stop: str) -> int:
    """Where the end of a text may be the start of a stop sequence; the length of the text if nowhere."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)


def _up_to(pieces: Sequence[TextPiece], end: int) -> Iterator[TextPiece]:
    """The pieces of a text up to an index. A piece that is cut keeps the logprobs of its whole tokens."""
    for piece in pieces:
        if len(piece.text) <= end:
            yield piece
        elif end > 0:
            yield TextPiece(piece.text[:end], _whole_tokens(piece, end))
        end -= len(piece.text)
        if end <= 0:
            return


def _whole_tokens(piece: TextPiece, end: int) -> tuple[dict[str, object], ...]:
    kept: list[dict[str, object]] = []
    for entry in piece.logprobs:
        end -= len(str(entry.get("token", "")))
        if end < 0:
            break
        kept.append(entry)
    return tuple(kept)
