"""V4A: the diffs that models write for `apply_patch`. Text in, text out; pure.

A new file is all lines with `+`. A change is hunks, each of which may begin with `@@`, or with `@@ some line` to say
which line it comes after (several of them narrow it down), and goes on with lines that stay (a space), go (`-`) or come
(`+`). There are no line numbers: the lines that stay and go are looked for, from where the last hunk ended. A line of
`@@` that is above that already, as the head of a class is in the second hunk for it, moves nothing.

They are looked for as written first, then without the spaces at their ends, then without those at their beginnings too,
because models do not copy white space well. Lines that stay are kept as the file has them, and so are its line endings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_END_OF_FILE = "*** End of File"
_NUMBERED = re.compile(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@.*")  # of the other kind of diff; its numbers are guesses
_SIGNS = " +-"
_LOOKS: tuple[Callable[[str], str], ...] = (lambda line: line.removesuffix("\r"), str.rstrip, str.strip)
_SHOWN = 3


class PatchError(ValueError):
    """The diff is none, or does not fit the file. Says what the model can do about it."""


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
    """The new text, and how many lines came and went."""

    text: str
    added: int
    removed: int


def create(diff: str) -> Patched:
    """The text of a new file. It ends with a line break, as text files do."""
    lines = _lines(diff)
    for number, line in enumerate(lines, start=1):
        if not line.startswith("+"):
            raise PatchError(f"line {number} of the diff is {line!r}: in a new file every line begins with '+'")
    text = "\n".join(line[1:] for line in lines)
    return Patched(text if not text or text.endswith("\n") else f"{text}\n", len(lines), 0)


def update(text: str, diff: str) -> Patched:
    """The text after the change, or a `PatchError` that says which lines were not found."""
    hunks = list(_hunks(diff))
    if not hunks:
        raise PatchError("the diff changes nothing: write at least one line that begins with '+' or '-'")
    ended = text.endswith("\n")
    lines = text.split("\n")[: -1 if ended or not text else None]
    ending = "\r" if lines and lines[0].endswith("\r") else ""
    result: list[str] = []
    cursor = 0
    for hunk in hunks:
        at = _place(hunk, lines, cursor)
        result += lines[cursor:at]
        cursor = at
        for sign, words in hunk.lines:
            if sign == "+":
                result.append(words + ending)
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
            anchor = "" if _NUMBERED.fullmatch(line) else line[2:].removeprefix(" ")
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


def _place(hunk: _Hunk, lines: Sequence[str], start: int) -> int:
    """Where in the file a hunk begins."""
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
        # Either we were in the right place already, or the line of `@@` was written once more as the hunk's first.
        found = _find(before, lines, start if passed else after - 1)
    if found is None:
        shown = "\n".join(before[:_SHOWN]) + ("\n…" if len(before) > _SHOWN else "")
        raise PatchError(f"these lines are not in the file below line {after}; read it again:\n{shown}")
    return found


def _find(wanted: Sequence[str], lines: Sequence[str], start: int) -> int | None:
    """The first place from `start` on where these lines stand, the exact look first."""
    for look in _LOOKS:
        needles = [look(line) for line in wanted]
        seen = [look(line) for line in lines]
        for at in range(start, len(seen) - len(needles) + 1):
            if seen[at : at + len(needles)] == needles:
                return at
    return None
