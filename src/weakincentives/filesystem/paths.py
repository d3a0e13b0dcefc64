"""What a path is: relative, POSIX, and never above its root. The one place that validates paths; touches no disk.

- `""` and `"."` are the root; empty and `.` parts vanish (`a//b/./` is `a/b`).
- `..` is resolved in the text, before any disk is asked: `a/../b` is `b`. What would rise above the root is refused.
- Absolute paths, backslashes (a Windows path would quietly become one odd name), NUL bytes, text that is no Unicode,
  names over 255 bytes and paths over 4,095 bytes are refused.
- Names are otherwise taken as they are: no case folding, no Unicode normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeAlias

from weakincentives.dbc import ensure
from weakincentives.errors import InvalidPathError

Parts: TypeAlias = tuple[str, ...]
"""A validated path, taken apart. The root is the empty tuple."""

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095  # PATH_MAX counts the NUL at the end

ROOT = "."

_MAX_SHOWN_CHARACTERS = 80


@ensure(
    lambda result: not any(part in {"", ".", ".."} or "/" in part for part in result),
    "every part of a validated path is a name below the root",
)
def split(path: str) -> Parts:
    """The parts of `path`, or `InvalidPathError`. Every path that a caller gives comes through here.

    >>> split("src//./main.py"), split("."), split("a/../b")
    (('src', 'main.py'), (), ('b',))
    """
    if path.startswith("/"):
        raise _invalid(path, "it is absolute")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise _invalid(path, "it leaves the root")
            parts.pop()
        elif part not in {"", "."}:
            _check_name(part, path)
            parts.append(part)
    if sum(len(part.encode()) + 1 for part in parts) - 1 > MAX_PATH_BYTES:
        raise _invalid(path, f"it is longer than {MAX_PATH_BYTES} bytes")
    return tuple(parts)


def join(parts: Sequence[str]) -> str:
    """The path that `split` would take apart into these parts; the root is `"."`."""
    return "/".join(parts) or ROOT


def normalise(path: str) -> str:
    """The one spelling of `path`.

    >>> normalise("./src//main.py"), normalise("")
    ('src/main.py', '.')
    """
    return join(split(path))


def is_addressable(parts: Parts) -> bool:
    """Whether a path can spell these parts, which a disk gave us; what cannot be spelled is not listed."""
    try:
        return split(join(parts)) == parts
    except InvalidPathError:
        return False


class VfsPath(str):
    """A path inside a workspace: a `str` in its one spelling that also knows its `segments`.

    Made from text or from segments. A leading `/` means the workspace's root, never the host's, and is dropped.
    Stricter than `split`: `..` and empty text are refused, because here they can only be a mistake.

    >>> VfsPath(("workspace", "sunfish")), VfsPath("/workspace/sunfish/").segments
    ('workspace/sunfish', ('workspace', 'sunfish'))
    """

    __slots__ = ()

    def __new__(cls, path: str | Sequence[str]) -> Self:
        """Validate and spell `path`, text or segments."""
        return super().__new__(cls, _normalise_text(path) if isinstance(path, str) else _normalise_segments(path))

    @property
    def segments(self) -> Parts:
        """The path's parts; none for the root."""
        return () if self == ROOT else tuple(self.split("/"))


def _normalise_text(path: str) -> str:
    if not path:
        raise _invalid(path, "it is empty; the root is '.'")
    if ".." in path.split("/"):
        raise _invalid(path, "it has a '..'")
    return normalise(path.lstrip("/"))


def _normalise_segments(segments: Sequence[str]) -> str:
    whole = "/".join(segments)
    for segment in segments:
        if segment in {"", ".", ".."} or "/" in segment:
            raise _invalid(whole, f"{segment!r} is no segment")
    return normalise(whole)


def _check_name(name: str, path: str) -> None:
    if "\0" in name:
        raise _invalid(path, "it has a NUL byte")
    if "\\" in name:
        raise _invalid(path, "it has a backslash; parts are separated by '/'")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _invalid(path, "it is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise _invalid(path, f"one of its names is longer than {MAX_NAME_BYTES} bytes")


def _invalid(path: str, reason: str) -> InvalidPathError:
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else path[:_MAX_SHOWN_CHARACTERS] + "…"
    return InvalidPathError(
        f"invalid path {shown!r}: {reason} (use a path relative to the root, such as 'src/main.py')", path=path
    )
