"""Truncates an execution result to `max_output_size`. Pure.

The local sandbox server is configured with that limit; a remote one has a limit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from antwort.containers.sandboxes.port import ExecutionResult, Figure, Output
from antwort.engine.truncate import truncate_bytes

_Chunk: TypeAlias = tuple[Literal["stdout", "stderr"], bytes]


def truncate_result(result: ExecutionResult, limit: int) -> ExecutionResult:
    """The result without the figures that are too large, and with the head and tail of an output that is too long."""
    figures: list[Figure] = []
    left = limit
    for figure in result.figures:
        size = 4 * -(-len(figure.data) // 3)  # as base64
        if size <= left:
            left -= size
            figures.append(figure)
    echo = None if result.echo is None else truncate_bytes(result.echo, left)
    left = max(0, left - len((echo or "").encode()))
    output, cut = _head_and_tail(result.output, left)
    if missing := len(result.figures) - len(figures):
        output = (*output, Output("stderr", f"[figures that were too large, and are left out: {missing}]\n"))
    return msgspec.structs.replace(
        result, output=output, echo=echo, figures=tuple(figures), cut_bytes=result.cut_bytes + cut
    )


def _head_and_tail(output: tuple[Output, ...], limit: int) -> tuple[tuple[Output, ...], int]:
    """The head and tail with a mark between them, and the number of bytes that were cut."""
    chunks: list[_Chunk] = [(one.stream, one.text.encode()) for one in output]
    cut = sum(len(data) for _, data in chunks) - limit
    if cut <= 0:
        return output, 0
    backwards: list[_Chunk] = [(stream, data[::-1]) for stream, data in reversed(chunks)]
    tail: list[_Chunk] = [(stream, data[::-1]) for stream, data in _head(backwards, limit - limit // 2)]
    mark: _Chunk = (chunks[-1][0], f"\n[... {cut} bytes cut ...]\n".encode())
    shown = [*_head(chunks, limit // 2), mark, *reversed(tail)]
    return tuple(Output(stream, data.decode(errors="ignore")) for stream, data in shown), cut


def _head(chunks: Iterable[_Chunk], limit: int) -> Iterator[_Chunk]:
    for stream, data in chunks:
        if limit <= 0:
            return
        yield stream, data[:limit]
        limit -= len(data)
