"""Citations of retrieved pages (`url_citation`) in a text that the model is writing. Pure.

A citation is a Markdown link to a retrieved page, its plain URL, or its number in brackets: `[2]`, `[1, 3]`, `【2】`.
Code has no citations, and numbers in JSON are none. Indexes count code points, from the first character of the link,
the URL or the bracket to behind its last one. Some mentions end only with the character behind them, so an annotation
follows the delta that has this character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from antwort.api.items import UrlCitation
from antwort.tools.builtins.websearch.sources import Source, Sources

MAX_MENTION: Final = 3000
"""Characters of the longest mention; what is longer is text. Limits what is read again with each part."""

_PART: Final = 512
_START_RE: Final = re.compile(r"[\[【`]|https?://", re.IGNORECASE)
_SCHEME_PREFIX: Final = len("https:/")
_URL_RE: Final = re.compile(r"https?://[^\s<>\"'`\[\]{}|\\^【】]+", re.IGNORECASE)
_LABEL_RE: Final = re.compile(r"\[[^\[\]\n]*")
_TARGET_RE: Final = re.compile(r"\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))+)>?(?:\s+(?:\"[^\"\n]*\"|'[^'\n]*'))?\s*\)")
_NUMBERS_RE: Final = re.compile(r"[\[【]\s*\^?(\d{1,6}(?:\s*[,;]\s*\d{1,6}){0,20})\s*(?:†[^\]】\n]*)?[\]】]")
_BACKTICKS_RE: Final = re.compile(r"`+")
_CODE_END_RE: Final = re.compile(r"`+|\n")
_FENCE: Final = 3
_JSON_RE: Final = re.compile(r"\{|\[\s*[{\[\"]")
_MAX_NUMBERS: Final = 200  # characters of a list of numbers
_MAX_HEAD: Final = 80
_PUNCTUATION: Final = ".,;:!?*_"


class _Step(NamedTuple):
    """A part of the text that is decided: where it ends, and what it cites."""

    end: int
    sources: tuple[Source, ...] = ()
    cited_to: int | None = None
    """Where the citation ends, if that is before the end of the part."""


class CitationScanner:
    """A `TextAnnotator`. It keeps only the end of the text, where a mention may have begun."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._tail = ""
        self._offset = 0
        """The index of the first character of the tail."""
        self._code = 0
        """The number of backticks that the current code began with; 0 outside of code."""
        self._head = ""
        """The start of the text, until it is known whether it is JSON."""
        self._is_json: bool | None = None

    def feed(self, delta: str) -> Sequence[UrlCitation]:
        found: list[UrlCitation] = []
        for start in range(0, len(delta), _PART):  # what is read again is as long as the part and the tail
            part = delta[start : start + _PART]
            self._tail += part
            if self._is_json is None:
                self._read_head(part)
            found += self._scan(is_complete=False)
        return found

    def finish(self, text: str) -> Sequence[UrlCitation]:
        del text
        return list(self._scan(is_complete=True))

    def _scan(self, *, is_complete: bool) -> Iterator[UrlCitation]:
        position = 0
        while position < len(self._tail):
            start = self._next_start(position)
            if start is None:
                position = len(self._tail) if is_complete else max(position, len(self._tail) - _SCHEME_PREFIX)
                break
            step = self._step(start, is_complete=is_complete)
            if step is None and len(self._tail) - start <= MAX_MENTION:
                position = start
                break
            if step is None or step.end - start > MAX_MENTION:
                step = self._numbers(start) or _Step(start + 1)
            end = self._offset + (step.end if step.cited_to is None else step.cited_to)
            yield from (UrlCitation(one.url, one.title, self._offset + start, end) for one in step.sources)
            position = step.end
        self._offset += position
        self._tail = self._tail[position:]

    def _read_head(self, delta: str) -> None:
        self._head = (self._head + delta).lstrip()[:_MAX_HEAD]
        if self._head and (self._head[0] != "[" or len(self._head[1:].lstrip()) or len(self._head) == _MAX_HEAD):
            self._is_json, self._head = _JSON_RE.match(self._head) is not None, ""

    def _next_start(self, position: int) -> int | None:
        """Where the next mention, or the next end of code, may begin; None if nothing does."""
        found = (_CODE_END_RE if self._code else _START_RE).search(self._tail, position)
        return None if found is None else found.start()

    def _step(self, start: int, *, is_complete: bool) -> _Step | None:
        """The part that begins here; None if more of the text is needed to decide it."""
        match self._tail[start]:
            case "`" | "\n":
                return self._code_boundary(start, is_complete=is_complete)
            case "[":
                return self._bracket(start, is_complete=is_complete)
            case "【":
                is_decided = is_complete or len(self._tail) - start > _MAX_NUMBERS
                return self._numbers(start) or (_Step(start + 1) if is_decided else None)
            case _:
                return self._plain_url(start, is_complete=is_complete)

    def _code_boundary(self, start: int, *, is_complete: bool) -> _Step | None:
        """The start or the end of code. Code between single backticks ends with its line."""
        found = _BACKTICKS_RE.match(self._tail, start)
        if found is None:
            self._code = self._code if self._code >= _FENCE else 0
            return _Step(start + 1)
        if found.end() == len(self._tail) and not is_complete:
            return None
        length = found.end() - start
        if not self._code:
            self._code = length
        elif length == self._code or (self._code >= _FENCE and length >= _FENCE):
            self._code = 0
        return _Step(found.end())

    def _plain_url(self, start: int, *, is_complete: bool) -> _Step | None:
        found = _URL_RE.match(self._tail, start)
        if found is None:
            is_open = not is_complete and self._tail.endswith("://", start)
            return None if is_open else _Step(start + 1)
        if found.end() == len(self._tail) and not is_complete:
            return None
        url = found[0].rstrip(_PUNCTUATION)
        while url.endswith(")") and url.count(")") > url.count("("):
            url = url[:-1].rstrip(_PUNCTUATION)
        return _Step(found.end(), self._cited(url), start + len(url))

    def _bracket(self, start: int, *, is_complete: bool) -> _Step | None:
        """A Markdown link, or numbers in brackets, or text."""
        label = _LABEL_RE.match(self._tail, start)
        close = start + 1 if label is None else label.end()
        if close == len(self._tail):
            return _Step(close) if is_complete else None
        if self._tail[close] != "]":
            return _Step(start + 1)
        behind = close + 1
        if behind == len(self._tail) and not is_complete:
            return None
        if self._tail.startswith("(", behind):
            target = _TARGET_RE.match(self._tail, behind)
            if target is not None:
                return _Step(target.end(), self._cited(target[1]))
            if not is_complete and len(self._tail) - start <= MAX_MENTION and _is_open(self._tail[behind:]):
                return None
        return self._numbers(start) or _Step(start + 1)

    def _numbers(self, start: int) -> _Step | None:
        """Numbers in brackets; None if there are none here, or none yet."""
        found = _NUMBERS_RE.match(self._tail, start)
        if found is None or self._is_json or found.end() - start > _MAX_NUMBERS:
            return None
        numbers = dict.fromkeys(int(number) for number in re.findall(r"\d+", found[1]))
        sources = tuple(source for number in numbers if (source := self._sources.by_number(number)) is not None)
        return _Step(found.end(), sources)

    def _cited(self, url: str) -> tuple[Source, ...]:
        source = self._sources.by_url(url)
        return () if source is None else (source,)


def _is_open(text: str) -> bool:
    """Whether the parenthesis that a text begins with is not closed yet, on its line."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth == 0 or character == "\n":
            return False
    return True
