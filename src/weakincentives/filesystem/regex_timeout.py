"""Matching with patterns that a model wrote: none may take for ever. No I/O.

The standard library cannot stop a match that has begun, and some patterns take longer than
anybody lives. `regex` can; it is loaded on first use, like all that only searches need.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from weakincentives.errors import FilesystemError

if TYPE_CHECKING:
    import regex

SEARCH_TIMEOUT_SECONDS = 10.0
"""Seconds that all matches of one search may take together."""


def compile_pattern(expression: str, *, ignore_case: bool = False) -> regex.Pattern[str]:
    """Compile, or say what is wrong with it."""
    import regex  # noqa: PLC0415 - see above

    try:
        return regex.compile(expression, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError, OverflowError) as error:
        raise FilesystemError(f"{expression!r} is no regular expression: {error}", path="") from error


class RegexTimeout:
    """What is left of the time for one search."""

    def __init__(self, seconds: float = SEARCH_TIMEOUT_SECONDS) -> None:
        self._deadline = time.monotonic() + seconds

    def matches(self, pattern: regex.Pattern[str], text: str, *, whole: bool) -> bool:
        """Whether the pattern is in the text, or is all of it."""
        left = max(0.001, self._deadline - time.monotonic())
        try:
            found = pattern.fullmatch(text, timeout=left) if whole else pattern.search(text, timeout=left)
        except TimeoutError:
            raise FilesystemError("the pattern takes too long to match; write a simpler one", path="") from None
        return found is not None
