"""Results of the web search: the text that the model reads, and the results of the item. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from antwort.tools.builtins.websearch.sources import Source

_WORD_RE: Final = re.compile(r"\w{2,}")
_MAX_EXCERPT_WORDS: Final = 32
_MAX_FOUND: Final = 12
_FOUND_CONTEXT: Final = 250
_PART: Final = 8192
_MAX_MATCH: Final = 2000
"""Characters of the longest match; longer ones, with much white space between the words, may be missed."""
MAX_TITLE: Final = 300
_MARGIN: Final = 4  # how much more of a title is read than is kept, since white space is removed
_CONTROL_RE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
NOTHING_FOUND: Final = "Nothing was found. Try other or fewer words."


class ShownResult(Struct, frozen=True):
    """A source, and the text of it that the model reads."""

    source: Source
    text: str

    def as_item(self) -> dict[str, Any]:
        """A result of the item; requests may `include` them."""
        return {"index": self.source.number, "title": self.source.title, "url": self.source.url, "text": self.text}


def without_control_characters(text: str) -> str:
    """A text of the web, with a space for each character that is none of text, or that UTF-8 cannot encode."""
    return _CONTROL_RE.sub(" ", text)


def clean_title(title: str) -> str:
    """A title of the web on one line: what follows it must not look like another result."""
    return " ".join(without_control_characters(title[: _MARGIN * MAX_TITLE]).split())[:MAX_TITLE]


def search_text(results: Sequence[ShownResult], problems: Sequence[str]) -> str:
    """What the model reads of a search."""
    shown = [_shown(result.source, result.text) for result in results]
    return "\n\n".join([*(shown or [NOTHING_FOUND]), *(f"({problem})" for problem in problems)])


def page_text(source: Source, text: str, part: int, size: int) -> tuple[str, str]:
    """A part of a page: what the model reads, and the text of the page in it."""
    parts = max(1, -(-len(text) // size))
    part = min(part, parts)
    shown = text[(part - 1) * size : part * size]
    more = f"\n(part {part} of {parts}; open_page with part {part + 1} continues)" if part < parts else ""
    if part == parts > 1:
        more = f"\n(part {part} of {parts}, the last)"
    return _shown(source, shown or "(the page has no text)") + more, shown


def found_text(source: Source, text: str, pattern: str) -> tuple[str, str]:
    """The places of a page that contain a text: what the model reads, and the excerpts in it. Slow: use a thread."""
    words = [re.escape(word) for word in pattern.split()]
    excerpts: list[str] = []
    end, count = -1, 0
    for match in _matches(re.compile(r"\s+".join(words), re.IGNORECASE), text) if words else ():
        count += 1
        if match.start() < end or len(excerpts) == _MAX_FOUND:
            continue
        start, end = max(0, match.start() - _FOUND_CONTEXT), match.end() + _FOUND_CONTEXT
        excerpts.append(_cut(text, start, end))
    if not excerpts:
        return _shown(source, f"The page does not contain {pattern!r}."), ""
    shown = "\n---\n".join(excerpts)
    places = f"{count} {'place' if count == 1 else 'places'}"
    return _shown(source, f"{places} with {pattern!r}:\n{shown}"), shown


def excerpt(text: str, query: str, size: int) -> str:
    """The part of a text, at most `size` characters, where the words of a query first occur. Slow: use a thread."""
    if len(text) <= size:
        return text
    words = [re.escape(word) for word in _WORD_RE.findall(query)[:_MAX_EXCERPT_WORDS]]
    found = next(_matches(re.compile("|".join(words), re.IGNORECASE), text), None) if words else None
    start = max(0, min(found.start() - size // 4, len(text) - size)) if found else 0
    return _cut(text, start, start + size - 2)


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern, from parts of the text: a search of the whole would hold the GIL for too long."""
    position = 0
    while position < len(text):
        found = pattern.search(text, position, position + _PART + _MAX_MATCH)
        if found is None or found.start() >= position + _PART:
            position += _PART
        else:
            yield found
            position = found.end()


def _cut(text: str, start: int, end: int) -> str:
    return f"{'…' if start > 0 else ''}{text[start:end].strip()}{'…' if end < len(text) else ''}"


def _shown(source: Source, text: str) -> str:
    return f"[{source.number}] {source.title}\n{source.url}\n{text}".rstrip()
