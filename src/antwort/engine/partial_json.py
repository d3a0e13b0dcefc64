"""Reads one string out of JSON that is still being written. Pure.

A model writes `{"code": "print(1)"}` in fragments that end anywhere, also in the middle
of an escape. The client wants `print(1)` as it comes.
"""

from __future__ import annotations

import json
import re

# Text and whole escapes, but for halves of a pair: what a fragment mostly consists of, decoded in one go.
_ESCAPE = r'\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_RUN = re.compile(rf'(?:[^"\\]++|{_ESCAPE})(?:{_ESCAPE}[^"\\]*+)*+')
_STRUCTURE = re.compile(r'["{}\[\],]')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX_DIGITS = 4
_HIGH, _LOW, _END = 0xD800, 0xDC00, 0xE000


class _StringReader:
    """Decodes the inside of one JSON string: what is whole in one go, what is cut character by character."""

    def __init__(self) -> None:
        self.done = False
        self._escape: str | None = None  # what has come of an escape, without its backslash
        self._high = 0  # the first half of a pair of escapes for one character

    def feed(self, fragment: str, at: int) -> tuple[str, int]:
        """Some text, and where in the fragment to go on."""
        if self._escape is not None:
            return self._feed_escape(fragment[at]), at + 1
        if run := _RUN.match(fragment, at):
            return self._lone() + _decoded(run[0]), run.end()
        if fragment[at] == "\\":
            self._escape = ""
            return "", at + 1
        self.done = True
        return self._lone(), at + 1

    def _feed_escape(self, char: str) -> str:
        escape = (self._escape or "") + char
        if escape[0] != "u":
            self._escape = None
            return self._lone() + _ESCAPES.get(escape, "")
        self._escape = escape
        if len(escape) <= _HEX_DIGITS:
            return ""
        self._escape = None
        try:
            return self._unit(int(escape[1:], 16))
        except ValueError:
            return ""

    def _unit(self, unit: int) -> str:
        if self._high and _LOW <= unit < _END:
            paired = 0x10000 + ((self._high - _HIGH) << 10) + (unit - _LOW)
            self._high = 0
            return chr(paired)
        lone = self._lone()
        if _HIGH <= unit < _LOW:
            self._high = unit
            return lone
        return lone + ("\ufffd" if _LOW <= unit < _END else chr(unit))

    def _lone(self) -> str:
        """Half a character that never got its other half."""
        lone, self._high = ("\ufffd" if self._high else ""), 0
        return lone


def _decoded(run: str) -> str:
    return json.loads(f'"{run}"', strict=False) if "\\" in run else run


class FieldReader:
    """The value of the string `field` at the top of a JSON object, as far as it has come."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._depth = 0
        self._string: _StringReader | None = None
        self._collected = ""
        self._key: str | None = None
        self._at_key = False
        self._wanted = False

    def feed(self, fragment: str) -> str:
        """The part of the value that this fragment brought."""
        texts: list[str] = []
        at = 0
        while at < len(fragment):
            if self._string is None:
                found = _STRUCTURE.search(fragment, at)
                if found is None:
                    break
                self._outside(found[0])
                at = found.end()
            else:
                text, at = self._string.feed(fragment, at)
                if self._wanted:
                    texts.append(text)
                elif self._at_key:
                    self._collected += text
                if self._string.done:
                    self._end_string()
        return "".join(texts)

    def _end_string(self) -> None:
        if self._at_key:
            self._key, self._at_key = self._collected, False
        self._string, self._wanted = None, False

    def _outside(self, char: str) -> None:
        if char == '"':
            self._string = _StringReader()
            self._collected = ""
            self._wanted = self._depth == 1 and not self._at_key and self._key == self._field
        elif char in "{[":
            self._depth += 1
            self._at_key = char == "{" and self._depth == 1
        elif char in "}]":
            self._depth -= 1
        elif char == "," and self._depth == 1:
            self._at_key, self._key = True, None


class FreeTextReader:
    """The text of a call that takes free text: inside of `{"input": …}`, or bare, as some models write it."""

    def __init__(self) -> None:
        self._field = FieldReader("input")
        self._written: list[str] = []
        self._bare = False
        self._found = False

    def feed(self, fragment: str) -> str:
        """The part of the text that this fragment brought."""
        begins = not any(part.strip() for part in self._written) and bool(fragment.strip())
        self._written.append(fragment)
        if begins and fragment.lstrip()[0] not in '{"':
            self._bare = True
            return "".join(self._written)
        if self._bare:
            return fragment
        text = self._field.feed(fragment)
        self._found = self._found or bool(text)
        return text

    def rest(self, *, cut: bool) -> str:
        """What only the end tells: that it was no such JSON after all. One that was cut off may have become it."""
        written = "".join(self._written)
        if self._bare or self._found or not written.strip() or (cut and written.lstrip()[0] == "{"):
            return ""
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return written
        if isinstance(value, str):
            return value
        return "" if value == {} or isinstance(value.get("input"), str) else written
