"""Glob patterns of `Filesystem.glob` and `grep`, compiled to regular expressions over normalised paths.

Host mounts use another dialect: the globs of `HostMount` are gitignore patterns (pathspec); see `mounts.plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from weakincentives.filesystem.paths import join, normalise, split
from weakincentives.filesystem.regex_timeout import compile_pattern

if TYPE_CHECKING:
    import regex

_TOKEN = re.compile(
    r"""
      (?P<descend>  (?<![^/{,]) (?:\*\*/)+      )   # one or more components `**`, followed by others
    | (?P<below>    (?<![^/{,]) \*\* (?=[,}]|$)  )   # a last component `**`
    | (?P<star>     \*+                          )
    | (?P<any>      \?                           )
    | \[ (?P<negated>!)? (?P<members>\]?[^]/]*) \]
    | (?P<brace>    [{},]                        )
    | (?P<literal>  .                            )
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache(maxsize=256)
def compile_glob(pattern: str) -> regex.Pattern[str]:
    """The regular expression of a `Filesystem.glob` pattern, to be matched against a whole path.

    >>> bool(compile_glob("**/*.py").fullmatch("main.py")), bool(compile_glob("*.py").fullmatch("src/main.py"))
    (True, False)
    """
    tokens = list(_TOKEN.finditer(normalise(pattern)))
    braces = _balanced(token["brace"] for token in tokens)
    expression = ""
    depth = 0
    for token in tokens:
        brace = token["brace"] if braces else None
        if brace and (brace != "," or depth):
            depth += {"{": 1, "}": -1, ",": 0}[brace]
            expression += {"{": "(?:", "}": ")", ",": "|"}[brace]
        else:
            expression += _translate(token)
    return compile_pattern(f"(?s:{expression})")


def literal_prefix(pattern: str) -> str:
    """The directory that contains all matches, where a search can start.

    >>> literal_prefix("src/app/**/*.py")
    'src/app'
    """
    parts = split(pattern)[:-1]
    wildcards = (position for position, part in enumerate(parts) if re.search(r"[*?\[{]", part))
    return join(parts[: next(wildcards, len(parts))])


def _translate(token: re.Match[str]) -> str:
    if token["descend"]:
        return "(?:.*/)?"
    if token["below"]:
        return ".*"
    if token["star"]:
        return "[^/]*"
    if token["any"]:
        return "[^/]"
    if token["members"] is not None:
        return _character_class(token["members"], negated=bool(token["negated"]))
    return re.escape(token[0])


def _character_class(members: str, *, negated: bool) -> str:
    # Both ends of a range are escaped, also hyphens: `re` warns about `--`, which is reserved.
    ranges = re.findall(r"(.)(?:(-)(.))?", members, re.DOTALL)
    escaped = "".join(re.escape(first) + hyphen + re.escape(last) for first, hyphen, last in ranges)
    expression = f"(?!/)[{'^' if negated else ''}{escaped}]"
    try:
        re.compile(expression)
    except re.error:  # `[]` and a reversed range contain no character
        return "[^/]" if negated else "(?!)"
    return expression


def _balanced(braces: Iterable[str | None]) -> bool:
    """Whether the braces are balanced; otherwise they are literal characters."""
    depth = 0
    for brace in braces:
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0
