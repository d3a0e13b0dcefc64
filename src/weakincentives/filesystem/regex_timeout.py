"""Regular expressions with a timeout, for patterns from models (ReDoS protection).

The standard library cannot interrupt a match with catastrophic backtracking. The package `regex` can; it is imported
on first use.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from weakincentives.errors import FilesystemError

if TYPE_CHECKING:
    import regex

SEARCH_TIMEOUT_SECONDS = 10.0
"""Time limit for all matches of one search together."""


def compile_pattern(expression: str, *, ignore_case: bool = False) -> regex.Pattern[str]:
    """Compile a regular expression; `FilesystemError` if it is invalid."""
    import regex  # noqa: PLC0415 - see above

    try:
        return regex.compile(expression, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError, OverflowError) as error:
        raise FilesystemError(f"{expression!r} is not a valid regular expression: {error}", path="") from error


class RegexTimeout:
    """The shared time limit of all matches of one search."""

    def __init__(self, seconds: float = SEARCH_TIMEOUT_SECONDS) -> None:
        self._deadline = time.monotonic() + seconds

    def matches(self, pattern: regex.Pattern[str], text: str, *, full: bool) -> bool:
        """Whether the pattern matches anywhere in the text or, with `whole`, all of it."""
        remaining = max(0.001, self._deadline - time.monotonic())
        try:
            found = pattern.fullmatch(text, timeout=remaining) if full else pattern.search(text, timeout=remaining)
        except TimeoutError:
            raise FilesystemError("matching the pattern timed out; use a simpler pattern", path="") from None
        return found is not None
