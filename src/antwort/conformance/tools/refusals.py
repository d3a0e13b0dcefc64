"""Whether a 400 says that the server does not support a tool, or a parameter of the request. Pure.

Any other 400 is a failure of the server: it refuses a request that is valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from antwort.conformance.client import Json

_TYPE_PARAM_RE: Final = re.compile(r"tools\[\d+\]\.type")
_CODES: Final = frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"})
_PHRASE_RE: Final = re.compile(
    r"unsupported|unavailable|unknown|unrecogni[sz]ed|(?:do|does) ?n[o\u2019']t support|invalid value|there is no"
    r"|not (?:yet )?(?:allowed|available|enabled|found|implemented|supported)",
    re.IGNORECASE,
)


def is_refusal(error: Json, types: Collection[str], fields: Collection[str]) -> bool:
    """Whether an error refuses tools of these types, or these parameters: it points to them, and says so.

    Without a `param`, the message must name the type or the parameter as such: in quotation marks, or as a tool.
    """
    param, message = str(error.get("param") or ""), str(error["message"])
    if _TYPE_PARAM_RE.fullmatch(param):
        return True
    if error.get("code") not in _CODES and not _PHRASE_RE.search(message):
        return False
    if param:
        return param.partition("[")[0].partition(".")[0] in {"tools", *fields}
    return any(_names(message, name) for name in (*types, *fields))


def _names(message: str, name: str) -> bool:
    word = re.escape(name)
    pattern = rf"[\"'`]{word}[\"'`.\[]|\btools? {word}\b|\b{word} tools?\b|\btype {word}\b"
    return re.search(pattern, message, re.IGNORECASE) is not None
