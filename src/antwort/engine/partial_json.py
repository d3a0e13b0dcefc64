"""Incremental JSON: extracts a string, or a list of strings, from JSON that is still being written. Pure.

A model writes `{"code": "print(1)"}` in fragments that end anywhere, also in the middle
of an escape. The client receives `print(1)` as it is written.
"""

from __future__ import annotations

import json
import re
from typing import cast

from msgspec import Struct

# Text and complete escapes except surrogates: most of a fragment, decoded in one call.
_ESCAPE = r'\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_RUN = re.compile(rf'(?:[^"\\]++|{_ESCAPE})(?:{_ESCAPE}[^"\\]*+)*+')
_STRUCTURE = re.compile(r'["{}\[\],]')
_OUTSIDE_STRINGS, _IN_STRINGS = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX_DIGITS = 4
_FREE_TEXT_FIELD = "input"
_HIGH_SURROGATE, _LOW_SURROGATE, _SURROGATE_END = 0xD800, 0xDC00, 0xE000


class _StringReader:
    """Decodes the inside of one JSON string: complete runs in one call, split escapes character by character."""

    def __init__(self) -> None:
        self.done = False
        self._escape: str | None = None  # the received part of an escape, without its backslash
        self._high = 0  # a high surrogate that waits for its low surrogate

    def feed(self, fragment: str, at: int) -> tuple[str, int]:
        """Decoded text, and the index in the fragment to continue at."""
        if self._escape is not None:
            return self._feed_escape(fragment[at]), at + 1
        if run := _RUN.match(fragment, at):
            return self._unpaired() + _decoded(run[0]), run.end()
        if fragment[at] == "\\":
            self._escape = ""
            return "", at + 1
        self.done = True
        return self._unpaired(), at + 1

    def _feed_escape(self, char: str) -> str:
        escape = (self._escape or "") + char
        if escape[0] != "u":
            self._escape = None
            return self._unpaired() + _ESCAPES.get(escape, "")
        self._escape = escape
        if len(escape) <= _HEX_DIGITS:
            return ""
        self._escape = None
        try:
            return self._unit(int(escape[1:], 16))
        except ValueError:
            return ""

    def _unit(self, unit: int) -> str:
        if self._high and _LOW_SURROGATE <= unit < _SURROGATE_END:
            paired = 0x10000 + ((self._high - _HIGH_SURROGATE) << 10) + (unit - _LOW_SURROGATE)
            self._high = 0
            return chr(paired)
        unpaired = self._unpaired()
        if _HIGH_SURROGATE <= unit < _LOW_SURROGATE:
            self._high = unit
            return unpaired
        return unpaired + ("\ufffd" if _LOW_SURROGATE <= unit < _SURROGATE_END else chr(unit))

    def _unpaired(self) -> str:
        """The replacement character for an unpaired high surrogate."""
        unpaired, self._high = ("\ufffd" if self._high else ""), 0
        return unpaired


def _decoded(run: str) -> str:
    return json.loads(f'"{run}"', strict=False) if "\\" in run else run


class FieldReader:
    """Reads the value of the top-level string `field` of a JSON object."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._depth = 0
        self._string: _StringReader | None = None
        self._collected = ""
        self._key: str | None = None
        self._at_key = False
        self._in_field = False

    def feed(self, fragment: str) -> str:
        """The part of the value that this fragment contains."""
        texts: list[str] = []
        at = 0
        while at < len(fragment):
            if self._string is None:
                found = _STRUCTURE.search(fragment, at)
                if found is None:
                    break
                self._structural(found[0])
                at = found.end()
            else:
                text, at = self._string.feed(fragment, at)
                if self._in_field:
                    texts.append(text)
                elif self._at_key:
                    self._collected += text
                if self._string.done:
                    self._end_string()
        return "".join(texts)

    def _end_string(self) -> None:
        if self._at_key:
            self._key, self._at_key = self._collected, False
        self._string, self._in_field = None, False

    def _structural(self, char: str) -> None:
        if char == '"':
            self._string = _StringReader()
            self._collected = ""
            self._in_field = self._depth == 1 and not self._at_key and self._key == self._field
        elif char in "{[":
            self._depth += 1
            self._at_key = char == "{" and self._depth == 1
        elif char in "}]":
            self._depth -= 1
        elif char == "," and self._depth == 1:
            self._at_key, self._key = True, None


class ListItem(Struct, frozen=True):
    """A part of a string in a list. `is_end` is set for the last part, which may be empty."""

    index: int
    text: str
    is_end: bool


class ListReader:
    """Reads the strings of the top-level list `field` of a JSON object. Elements of other types count as none."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._open: list[str] = []  # the brackets that are open
        self._string: _StringReader | None = None
        self._collected = ""
        self._key: str | None = None
        self._at_key = False
        self._index = -1
        self._in_element = False

    def feed(self, fragment: str) -> list[ListItem]:
        """The parts of the elements that this fragment contains."""
        found: list[ListItem] = []
        at = 0
        while at < len(fragment):
            if self._string is None:
                match = _STRUCTURE.search(fragment, at)
                if match is None:
                    break
                self._structural(match[0])
                if self._in_element:
                    found.append(ListItem(self._index, "", is_end=False))
                at = match.end()
                continue
            text, at = self._string.feed(fragment, at)
            if self._in_element and (text or self._string.done):
                found.append(ListItem(self._index, text, is_end=self._string.done))
            elif self._at_key:
                self._collected += text
            if self._string.done:
                self._end_string()
        return found

    def _end_string(self) -> None:
        if self._at_key:
            self._key, self._at_key = self._collected, False
        self._string, self._in_element = None, False

    def _structural(self, char: str) -> None:
        if char == '"':
            self._string = _StringReader()
            self._collected = ""
            self._in_element = self._open == ["{", "["] and self._key == self._field
            self._index += self._in_element
        elif char in "{[":
            self._open.append(char)
            self._at_key = self._open == ["{"]
        elif char in "}]":
            del self._open[-1:]
        elif self._open == ["{"]:
            self._at_key, self._key = True, None


class ObjectScanner:
    """Finds the end of a JSON object: the bracket that closes the first one. Whether the rest is valid is not checked.

    Text that does not begin with an object is never complete.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._is_object: bool | None = None  # None before the first character
        self._depth = 0
        self._in_string = False
        self._in_escape = False

    def feed(self, fragment: str) -> None:
        """Read the next fragment."""
        if self._is_object is None and (begun := fragment.lstrip()):
            self._is_object = begun[0] == "{"
        at = 0
        while self._is_object and not self.is_complete and at < len(fragment):
            if self._in_escape:
                self._in_escape, at = False, at + 1
                continue
            found = (_IN_STRINGS if self._in_string else _OUTSIDE_STRINGS).search(fragment, at)
            if found is None:
                return
            self._structural(found[0])
            at = found.end()

    def _structural(self, char: str) -> None:
        if char == "\\":
            self._in_escape = True
        elif char == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if char in "{[" else -1
            self.is_complete = self._depth <= 0


def has_free_text(text: str) -> bool:
    """Whether it is JSON with the text of a custom tool call, and not the text itself, which may begin with `{` too."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(cast("dict[str, object]", value).get(_FREE_TEXT_FIELD), str)


class FreeTextReader:
    """Reads the text of a custom tool call: the field `input` of JSON, or plain text, as some models write it."""

    def __init__(self) -> None:
        self._field = FieldReader(_FREE_TEXT_FIELD)
        self._written: list[str] = []
        self._is_plain_text = False
        self._found = False

    def feed(self, fragment: str) -> str:
        """The part of the text that this fragment contains."""
        begins = not any(part.strip() for part in self._written) and bool(fragment.strip())
        self._written.append(fragment)
        if begins and fragment.lstrip()[0] not in '{"':
            self._is_plain_text = True
            return "".join(self._written)
        if self._is_plain_text:
            return fragment
        text = self._field.feed(fragment)
        self._found = self._found or bool(text)
        return text

    def rest(self, *, cut: bool) -> str:
        """At the end: the whole text if it was not JSON with `input`. JSON that was cut off is not returned as text."""
        written = "".join(self._written)
        if self._is_plain_text or self._found or not written.strip() or (cut and written.lstrip()[0] == "{"):
            return ""
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return written
        if isinstance(value, str):
            return value
        return "" if value == {} or isinstance(value.get(_FREE_TEXT_FIELD), str) else written
