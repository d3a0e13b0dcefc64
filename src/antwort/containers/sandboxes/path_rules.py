"""Rules for the paths of files in a sandbox, which callers and untrusted code name. Pure."""

from __future__ import annotations

import unicodedata

MAX_NAME_BYTES = 255
_MAX_DEPTH = 64


def is_plain_path(path: str) -> bool:
    """Whether a relative path stays in its directory and has printable parts only."""
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(map(_is_part, parts))


def _is_part(name: str) -> bool:
    return name not in ("", ".", "..") and _fits(name) and not any(map(is_forbidden, name))


def _fits(name: str) -> bool:
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def is_forbidden(character: str) -> bool:
    """Control characters, line separators and bidi overrides, as in the sandbox. Emoji joiners are allowed."""
    kind = unicodedata.category(character)
    return character == "\\" or (kind.startswith("C") and character != "\N{ZERO WIDTH JOINER}") or kind in ("Zl", "Zp")
