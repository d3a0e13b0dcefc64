"""Path validation: relative POSIX paths that cannot leave their root. All paths are validated here; no disk access.

- `""` and `"."` are the root; empty and `.` parts are dropped (`a//b/./` is `a/b`).
- `..` is resolved textually: `a/../b` is `b`. A path that leaves the root is an error.
- Errors too: absolute paths, backslashes (a Windows path would become a single name), NUL bytes, unpaired surrogates,
  names over 255 bytes and paths over 4,095 bytes.
- Names are otherwise unchanged: no case folding, no Unicode normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeAlias

from weakincentives.dbc import ensure
from weakincentives.errors import InvalidPathError

Parts: TypeAlias = tuple[str, ...]
"""The parts of a validated path. The root is the empty tuple."""

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095  # PATH_MAX counts the NUL at the end

ROOT = "."

_MAX_SHOWN_CHARACTERS = 80


@ensure(
    lambda result: not any(part in {"", ".", ".."} or "/" in part for part in result),
    "every part of a validated path is a name below the root",
)
def split(path: str) -> Parts:
    """Validate `path` and split it into parts; raises `InvalidPathError`.

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
    """The inverse of `split`; the root is `"."`."""
    return "/".join(parts) or ROOT


def normalise(path: str) -> str:
    """The normal form of `path`.

    >>> normalise("./src//main.py"), normalise("")
    ('src/main.py', '.')
    """
    return join(split(path))


def is_addressable(parts: Parts) -> bool:
    """Whether these parts, read from a disk, are a valid path. Entries that are not addressable are not listed."""
    try:
        return split(join(parts)) == parts
    except InvalidPathError:
        return False


class VfsPath(str):
    """A path in a workspace: a `str` in normal form, with its `segments`.

    Created from text or from segments. A leading `/` is the workspace's root, not the host's, and is dropped. Stricter
    than `split`: `..` and empty text are errors.

    >>> VfsPath(("workspace", "sunfish")), VfsPath("/workspace/sunfish/").segments
    ('workspace/sunfish', ('workspace', 'sunfish'))
    """

    __slots__ = ()

    def __new__(cls, path: str | Sequence[str]) -> Self:
        """Validate and normalise `path`, text or segments."""
        return super().__new__(cls, _normalise_text(path) if isinstance(path, str) else _normalise_segments(path))

    @property
    def segments(self) -> Parts:
        """The parts of the path; empty for the root."""
        return () if self == ROOT else tuple(self.split("/"))


def _normalise_text(path: str) -> str:
    if not path:
        raise _invalid(path, "it is empty; the root is '.'")
    if ".." in path.split("/"):
        raise _invalid(path, "it contains '..'")
    return normalise(path.lstrip("/"))


def _normalise_segments(segments: Sequence[str]) -> str:
    path = "/".join(segments)
    for segment in segments:
        if segment in {"", ".", ".."} or "/" in segment:
            raise _invalid(path, f"{segment!r} is not a valid segment")
    return normalise(path)


def _check_name(name: str, path: str) -> None:
    if "\0" in name:
        raise _invalid(path, "it contains a NUL byte")
    if "\\" in name:
        raise _invalid(path, "it contains a backslash; the separator is '/'")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _invalid(path, "it is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise _invalid(path, f"a name is longer than {MAX_NAME_BYTES} bytes")


def _invalid(path: str, reason: str) -> InvalidPathError:
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else path[:_MAX_SHOWN_CHARACTERS] + "…"
    return InvalidPathError(
        f"invalid path {shown!r}: {reason} (use a path relative to the root, such as 'src/main.py')", path=path
    )
