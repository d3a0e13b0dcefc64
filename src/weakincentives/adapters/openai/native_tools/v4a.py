"""V4A diff format of `apply_patch`: parses a diff and applies it to text. Pure.

In the diff of a new file all lines begin with `+`. The diff of a change has hunks. A hunk may begin with `@@`, or with
anchors `@@ some line`, each of which the hunk follows; then come context lines (a space), removed lines (`-`) and added
lines (`+`). There are no line numbers: context and removed lines are searched from the end of the last hunk. An anchor
that is above that position already, as a class header is in the second hunk of the class, is ignored.

Lines are compared exactly first, then without trailing white space, then also without leading white space, because
models do not copy white space reliably. Context lines and line endings stay as they are in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_END_OF_FILE = "*** End of File"
# The header of a unified diff; the model guesses its line numbers.
_UNIFIED_HEADER_RE = re.compile(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@.*")
_SIGNS = " +-"
_NORMALISERS: tuple[Callable[[str], str], ...] = (lambda line: line.removesuffix("\r"), str.rstrip, str.strip)
_MAX_SHOWN_LINES = 3


class PatchError(ValueError):
    """The diff is malformed, or does not match the file. The message tells the model what to do."""


@dataclass
class _Hunk:
    anchors: list[str] = field(default_factory=list[str])
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    at_end: bool = False

    @property
    def before(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "+"]


@dataclass(frozen=True)
class Patched:
    """The new text, and the number of added and removed lines."""

    text: str
    added: int
    removed: int


def create(diff: str) -> Patched:
    """The text of a new file. It ends with a line break."""
    lines = _lines(diff)
    for number, line in enumerate(lines, start=1):
        if not line.startswith("+"):
            raise PatchError(f"line {number} of the diff is {line!r}: in a new file every line begins with '+'")
    text = "\n".join(line[1:] for line in lines)
    return Patched(text if not text or text.endswith("\n") else f"{text}\n", len(lines), 0)


def update(text: str, diff: str) -> Patched:
    """Apply a diff to a text; a `PatchError` names the lines that were not found."""
    hunks = list(_hunks(diff))
    if not hunks:
        raise PatchError("the diff changes nothing: write at least one line that begins with '+' or '-'")
    ended = text.endswith("\n")
    lines = text.split("\n")[: -1 if ended or not text else None]
    ending = "\r" if lines and lines[0].endswith("\r") else ""
    result: list[str] = []
    cursor = 0
    for hunk in hunks:
        at = _find_hunk(hunk, lines, cursor)
        result += lines[cursor:at]
        cursor = at
        for sign, content in hunk.lines:
            if sign == "+":
                result.append(content + ending)
            else:
                result += lines[cursor : cursor + 1] if sign == " " else []
                cursor += 1
    result += lines[cursor:]
    signs = [sign for hunk in hunks for sign, _ in hunk.lines]
    closing = "\n" if result and (ended or not text) else ""
    return Patched("\n".join(result) + closing, signs.count("+"), signs.count("-"))


def _lines(diff: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in diff.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _hunks(diff: str) -> Iterator[_Hunk]:
    hunk = _Hunk()
    for number, line in enumerate(_lines(diff), start=1):
        if line.startswith("@@"):
            if hunk.lines:
                yield hunk
                hunk = _Hunk()
            anchor = "" if _UNIFIED_HEADER_RE.fullmatch(line) else line[2:].removeprefix(" ")
            hunk.anchors += [anchor] if anchor.strip() else []
        elif line == _END_OF_FILE:
            hunk.at_end = True
            if hunk.lines:
                yield hunk
            hunk = _Hunk()
        elif line == "" or line[0] in _SIGNS:
            hunk.lines.append((line[:1] or " ", line[1:]))
        else:
            raise PatchError(f"line {number} of the diff is {line!r}: it must begin with ' ', '+', '-' or '@@'")
    if any(sign != " " for sign, _ in hunk.lines):
        yield hunk


def _find_hunk(hunk: _Hunk, lines: Sequence[str], start: int) -> int:
    """The index of the line at which a hunk begins."""
    after = start
    for anchor in hunk.anchors:
        found = _find([anchor], lines, after)
        if found is not None:
            after = found + 1
        elif _find([anchor], lines[:after], 0) is None:
            raise PatchError(f"the line {anchor!r} of '@@' is not in the file: read the file again")
    before = hunk.before
    if not before:
        return after if hunk.anchors and not hunk.at_end else len(lines)
    if hunk.at_end and (found := _find(before, lines, max(start, len(lines) - len(before)))) is not None:
        return found
    found = _find(before, lines, after)
    if found is None and after > start:
        passed = any(_find([anchor], lines[:start], 0) is not None for anchor in hunk.anchors)
        # Either the anchor is above the position already, or it is repeated as the hunk's first line.
        found = _find(before, lines, start if passed else after - 1)
    if found is None:
        shown = "\n".join(before[:_MAX_SHOWN_LINES]) + ("\n…" if len(before) > _MAX_SHOWN_LINES else "")
        raise PatchError(f"these lines are not in the file below line {after}; read it again:\n{shown}")
    return found


def _find(wanted: Sequence[str], lines: Sequence[str], start: int) -> int | None:
    """The first index from `start` at which these lines stand; an exact match is preferred."""
    for normalise in _NORMALISERS:
        needles = [normalise(line) for line in wanted]
        candidates = [normalise(line) for line in lines]
        for at in range(start, len(candidates) - len(needles) + 1):
            if candidates[at : at + len(needles)] == needles:
                return at
    return None
