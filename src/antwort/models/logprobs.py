"""Converts upstream logprobs to the wire format. Pure.

Servers use the same names, but omit different fields, and may send more top tokens than requested. An invalid entry is
dropped: an answer does not fail because of its logprobs.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

Logprob: TypeAlias = dict[str, Any]


class _Token(Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _ChosenToken(_Token):
    top_logprobs: list[_Token] | None = None


def parse_logprobs(entries: object, max_top: int | None) -> tuple[Logprob, ...]:
    """One entry per token, each with at most `max_top` alternatives; empty if logprobs were not requested (None)."""
    if max_top is None or not isinstance(entries, list):
        return ()
    parsed = (_parse_entry(entry, max_top) for entry in cast("list[object]", entries))
    return tuple(entry for entry in parsed if entry is not None)


def _parse_entry(entry: object, max_top: int) -> Logprob | None:
    try:
        chosen = msgspec.convert(entry, _ChosenToken)
    except msgspec.ValidationError:
        return None
    top = (chosen.top_logprobs or [])[:max_top]
    return {**_to_wire(chosen), "top_logprobs": [_to_wire(token) for token in top]}


def _to_wire(token: _Token) -> Logprob:
    encoded = token.bytes if token.bytes is not None else list(token.token.encode())
    return {"token": token.token, "bytes": encoded, "logprob": token.logprob}
