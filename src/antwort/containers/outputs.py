"""What a run printed and showed, cut to the size that the configuration allows: never refused. Pure.

The jail of this machine is told that size; a sandbox server elsewhere has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from antwort.containers.sandboxes.port import Figure, Outcome, Output
from antwort.engine.truncate import fitting

_Piece: TypeAlias = tuple[Literal["stdout", "stderr"], bytes]

_THREE: Final = 3  # bytes become four characters in a data URL


def cut_to(outcome: Outcome, most: int) -> Outcome:
    """The same, with pictures left out that are too large, and of a text that is too long its two ends."""
    figures: list[Figure] = []
    left = most
    for figure in outcome.figures:
        size = 4 * -(-len(figure.data) // _THREE)
        if size <= left:
            left -= size
            figures.append(figure)
    echo = None if outcome.echo is None else fitting(outcome.echo, left)
    left = max(0, left - len((echo or "").encode()))
    output, cut = _ends(outcome.output, left)
    if missing := len(outcome.figures) - len(figures):
        output = (*output, Output("stderr", f"[figures that were too large, and are left out: {missing}]\n"))
    return msgspec.structs.replace(
        outcome, output=output, echo=echo, figures=tuple(figures), cut_bytes=outcome.cut_bytes + cut
    )


def _ends(output: tuple[Output, ...], most: int) -> tuple[tuple[Output, ...], int]:
    """The beginning and the end, and how many bytes are missing between them."""
    pieces: list[_Piece] = [(one.stream, one.text.encode()) for one in output]
    cut = sum(len(data) for _, data in pieces) - most
    if cut <= 0:
        return output, 0
    backwards: list[_Piece] = [(stream, data[::-1]) for stream, data in reversed(pieces)]
    tail: list[_Piece] = [(stream, data[::-1]) for stream, data in _first(backwards, most - most // 2)]
    mark: _Piece = (pieces[-1][0], f"\n[... {cut} bytes cut ...]\n".encode())
    shown = [*_first(pieces, most // 2), mark, *reversed(tail)]
    return tuple(Output(stream, data.decode(errors="ignore")) for stream, data in shown), cut


def _first(pieces: Iterable[_Piece], most: int) -> Iterator[_Piece]:
    for stream, data in pieces:
        if most <= 0:
            return
        yield stream, data[:most]
        most -= len(data)
