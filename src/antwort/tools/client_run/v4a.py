"""V4A diffs of `apply_patch`: parses the operation of a call, and checks the syntax of its diff. Pure.

The diff of a new file has `+` before every line. The diff of a change consists of hunks. A hunk begins with `@@`, or
with one or more anchors `@@ some line`; the first one may begin without. Then come context lines (a space), removed
lines (`-`) and added lines (`+`). `*** End of File` after the last hunk says that it is at the end of the file.

Whether the context is in the file is not checked: the client has the file. What models write around a diff is removed
where the meaning stays the same: a code fence, the envelope `*** Begin Patch` of one file, and the headers of a unified
diff. Everything else is a `BadPatch`, whose message tells the model what is wrong and where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

OperationType: TypeAlias = Literal["create_file", "update_file", "delete_file"]

MAX_DIFF: Final = 1024 * 1024
"""Characters of a diff."""
MAX_PATH: Final = 4096
_MAX_SHOWN: Final = 80
_END_OF_FILE: Final = "*** End of File"
_BEGIN_PATCH: Final = "*** Begin Patch"
_END_PATCH: Final = "*** End Patch"
_SECTION_RE: Final = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*)")
_SECTION_TYPES: Final[dict[str, OperationType]] = {
    "Add": "create_file",
    "Update": "update_file",
    "Delete": "delete_file",
}
_FENCE: Final = "```"
_UNIFIED_HUNK_RE: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
"""The header of a hunk in a unified diff. Its line numbers are guesses, and what follows is cut off by some tools."""
_GIT_PREAMBLE: Final = ("diff --git ", "index ", "new file mode ", "deleted file mode ", "old mode ", "new mode ")
_NO_NEWLINE: Final = "\\ No newline at end of file"
_SIGNS: Final = " +-"
_CONTROL_RE: Final = re.compile(r"[\x00-\x1f\x7f]")


class BadPatch(ValueError):
    """The operation or its diff is malformed. The message tells the model what to change."""


class FilePatch(Struct, frozen=True):
    """A change of one file. Without a diff the file is deleted."""

    type: OperationType
    path: str
    diff: str | None = None


class _Section(Struct, frozen=True):
    """One file of a patch in an envelope."""

    type: OperationType
    path: str


def read_operation(kind: str | None, path: str | None, diff: str | None) -> FilePatch:
    """Check an operation. Type and path may be missing where an envelope around the diff has them."""
    if len(diff or "") > MAX_DIFF:
        raise BadPatch(f"the diff has more than {MAX_DIFF} characters: change the file in several smaller patches")
    section, lines = _without_envelope(_without_fence((diff or "").split("\n")))
    if section is not None:
        kind = section.type if kind is None else kind
        path = section.path if path is None else path
    operation, path = _type(kind), _path(path)
    if section is not None and (section.type != operation or _same(section.path) != _same(path)):
        raise BadPatch(
            f"the diff says {section.type} '{_shown(section.path)}', but the call says {operation} '{_shown(path)}'"
        )
    if operation == "delete_file":
        return FilePatch(operation, path)
    if diff is None:
        raise BadPatch(f"'diff' is missing: {operation} needs one")
    lines = _without_file_header(lines, path)
    checked = _created(lines) if operation == "create_file" else _updated(lines)
    return FilePatch(operation, path, checked)


def _type(kind: str | None) -> OperationType:
    for known in get_args(OperationType):
        if kind == known:
            return known
    known = ", ".join(get_args(OperationType))
    if kind is None:
        raise BadPatch(f"'type' is missing: it must be one of {known}")
    raise BadPatch(f"'type' is '{_shown(kind)}': it must be one of {known}")


def _path(path: str | None) -> str:
    if path is None or not path.strip():
        raise BadPatch("'path' is missing: name the file, relative to the workspace")
    if len(path) > MAX_PATH:
        raise BadPatch(f"'path' has more than {MAX_PATH} characters")
    if _CONTROL_RE.search(path):
        raise BadPatch("'path' contains a control character")
    return path.strip()


def _same(path: str) -> str:
    return path.strip().removeprefix("./")


# ── wrappers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _without_fence(lines: Sequence[str]) -> Sequence[str]:
    """Without a Markdown code fence. No line of a diff begins with a backtick."""
    inner = _stripped(lines)
    if len(inner) > 1 and inner[0].startswith(_FENCE) and inner[-1].strip() == _FENCE:
        return [*inner[1:-1], ""]
    return lines


def _without_envelope(lines: Sequence[str]) -> tuple[_Section | None, Sequence[str]]:
    """The file that the envelope of a patch names, and the lines inside. Several files are a `BadPatch`."""
    inner = _stripped(lines)
    if inner and inner[0].rstrip() == _BEGIN_PATCH:
        inner = inner[1:]
    if inner and inner[-1].rstrip() == _END_PATCH:
        inner = inner[:-1]
    if len(inner) == len(_stripped(lines)) and not (inner and _SECTION_RE.match(inner[0])):
        return None, lines
    sections = [found for line in inner if (found := _SECTION_RE.match(line.rstrip("\r")))]
    if len(sections) > 1:
        raise BadPatch("the diff changes several files: make one call for each file")
    if not sections:
        return None, [*inner, ""]
    if not _SECTION_RE.match(inner[0]):
        raise BadPatch(f"'{_shown(sections[0][0])}' must be the first line behind '{_BEGIN_PATCH}'")
    return _Section(_SECTION_TYPES[sections[0][1]], sections[0][2]), [*inner[1:], ""]


def _without_file_header(lines: Sequence[str], path: str) -> Sequence[str]:
    """Without the `---` and `+++` of a unified diff, and the lines of git before them.

    They are valid V4A, too: a removed and an added line. So they must name the file, or a unified hunk must follow.
    """
    start = 0
    while start < len(lines) and lines[start].startswith(_GIT_PREAMBLE):
        start += 1
    old, new, hunk = (lines[start + at].rstrip() if start + at < len(lines) else "" for at in range(3))
    if not (old.startswith("--- ") and new.startswith("+++ ")):
        return lines
    names = {f"{prefix}{_same(path)}" for prefix in ("", "./", "a/", "b/")} | {"/dev/null"}
    others = [name for line in (old, new) if (name := line[4:].partition("\t")[0]) not in names]
    if not others:
        return lines[start + 2 :]
    if _UNIFIED_HUNK_RE.match(hunk):
        raise BadPatch(f"the diff is of '{_shown(others[0])}', but the call is for '{_shown(path)}'")
    return lines


def _stripped(lines: Sequence[str]) -> Sequence[str]:
    """Without blank lines at both ends."""
    start, end = 0, len(lines)
    while start < end and not lines[start].strip():
        start += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    return lines[start:end]


# ── diffs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _created(lines: Sequence[str]) -> str:
    """The diff of a new file; an empty one is an empty file."""
    checked: list[str] = []
    for number, line in enumerate(_numbered(lines), start=1):
        if line.startswith("+"):
            checked.append(line)
        elif not (line.startswith(_NO_NEWLINE) or (not checked and _UNIFIED_HUNK_RE.match(line))):
            raise BadPatch(f"{_line(number, line)}: in a new file every line must begin with '+', also an empty one")
    return _joined(checked, like=lines)


def _updated(lines: Sequence[str]) -> str:
    """The diff of a change."""
    checker = _UpdateChecker()
    for number, line in enumerate(_numbered(lines), start=1):
        checker.add(number, line)
    return _joined(checker.finish(), like=lines)


class _UpdateChecker:
    """Reads the lines of a change, and keeps those of the diff."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._open_header = ""
        """The `@@` line that no line of its hunk has followed yet, as an error shows it."""
        self._has_lines = False
        self._has_changes = False
        self._is_at_end = False

    def add(self, number: int, line: str) -> None:
        bare = line.removesuffix("\r")
        if bare.startswith(_NO_NEWLINE) or (self._is_at_end and not bare.strip()):
            return
        if self._is_at_end:
            raise BadPatch(f"{_line(number, bare)}: '{_END_OF_FILE}' must be the last line of the diff")
        if bare.startswith("@@"):
            self._open_header, self._has_lines = _line(number, bare), False
            self._lines.append(_anchor(line))
        elif bare == _END_OF_FILE:
            if not self._has_lines:
                raise BadPatch(f"{_line(number, bare)}: there must be lines of a hunk before it")
            self._is_at_end = True
            self._lines.append(line)
        elif not bare or bare[0] in _SIGNS:
            self._open_header, self._has_lines = "", True
            self._has_changes = self._has_changes or bare[:1] in {"+", "-"}
            self._lines.append(line)
        else:
            raise BadPatch(f"{_line(number, bare)}: {_rule(bare)}")

    def finish(self) -> list[str]:
        """The lines of the diff, if it is complete."""
        if self._open_header:
            raise BadPatch(f"{self._open_header}: this hunk has no lines")
        if not self._has_changes:
            raise BadPatch("the diff changes nothing: write at least one line that begins with '+' or '-'")
        return self._lines


def _anchor(header: str) -> str:
    """A `@@` line as V4A has it."""
    if _UNIFIED_HUNK_RE.match(header) or not (text := header[2:]).strip():
        return "@@\r" if header.endswith("\r") else "@@"
    return header if text.startswith(" ") else f"@@ {text}"


def _rule(line: str) -> str:
    """What is wrong with a line that has no sign."""
    if line.startswith("*** Move to:"):
        return "a file cannot be renamed: create the new file, and delete the old one"
    if line.startswith("*** "):
        return f"the only such line is '{_END_OF_FILE}', at the end"
    return "it must begin with ' ' (context), '-' (removed), '+' (added) or '@@'"


def _numbered(lines: Sequence[str]) -> Sequence[str]:
    """The lines without the empty one behind the last line break."""
    return lines[:-1] if lines and not lines[-1] else lines


def _joined(lines: Sequence[str], *, like: Sequence[str]) -> str:
    """The diff; it ends with a line break if the given one did, or if its last line is empty."""
    return "\n".join([*lines, ""] if lines and not (like[-1] and lines[-1]) else lines)


def _line(number: int, line: str) -> str:
    return f"line {number} of the diff is '{_shown(line)}'"


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
