"""How likely each token was, as upstreams tell it, in the form of the wire. Pure.

Servers agree on the names and differ in what they leave out, and in how many likely
tokens they tell when few were asked for. An entry that makes no sense is left out: an
answer must not fail over its footnotes.
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


class _Chosen(_Token):
    top_logprobs: list[_Token] | None = None


def read_logprobs(told: object, most: int | None) -> tuple[Logprob, ...]:
    """One entry for each token, with at most so many likely ones beside it; nothing where nobody asked."""
    if most is None or not isinstance(told, list):
        return ()
    return tuple(entry for one in cast("list[object]", told) if (entry := _read(one, most)) is not None)


def _read(told: object, most: int) -> Logprob | None:
    try:
        chosen = msgspec.convert(told, _Chosen)
    except msgspec.ValidationError:
        return None
    likely = (chosen.top_logprobs or [])[:most]
    return {**_plain(chosen), "top_logprobs": [_plain(token) for token in likely]}


def _plain(token: _Token) -> Logprob:
    spelled = token.bytes if token.bytes is not None else list(token.token.encode())
    return {"token": token.token, "bytes": spelled, "logprob": token.logprob}
