"""File tools: `ls`, `read_file`, `write_file`, `edit_file`, `glob`, `grep`, `rm`, with their types and size limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import Filesystem, GrepMatch
from weakincentives.prompt import Tool, ToolContext, ToolResult

P = ParamSpec("P")
R = TypeVar("R")

MAX_LINES = 2000  # also in the docstring of `read_file`
MAX_CHARACTERS = 100_000
MAX_ENTRIES = 500
MAX_MATCHES = 200
MAX_LINE_CHARACTERS = 500
MAX_FILE_BYTES = 32 * 1024 * 1024

_Path = Annotated[str, "Path relative to the workspace's root, such as src/app.py."]


@dataclass(frozen=True)
class ListParams:
    """Parameters of `ls`."""

    path: Annotated[str, "The directory."] = "."


@dataclass(frozen=True)
class ReadParams:
    """Parameters of `read_file`."""

    path: _Path
    offset: Annotated[int, "The first line to read, from 1."] = 1
    limit: Annotated[int, "How many lines to read at most."] = MAX_LINES


@dataclass(frozen=True)
class WriteParams:
    """Parameters of `write_file`."""

    path: _Path
    content: Annotated[str, "The whole content of the file."]


@dataclass(frozen=True)
class EditParams:
    """Parameters of `edit_file`."""

    path: _Path
    old: Annotated[str, "The text to replace, exactly as it stands in the file, with enough around it to be unique."]
    new: Annotated[str, "The text to put in its place."]
    replace_all: Annotated[bool, "Replace every occurrence instead of the only one."] = False


@dataclass(frozen=True)
class GlobParams:
    """Parameters of `glob`."""

    pattern: Annotated[str, "Such as **/*.py; ** stands for any number of directories."]


@dataclass(frozen=True)
class GrepParams:
    """Parameters of `grep`."""

    pattern: Annotated[str, "A regular expression."]
    path: Annotated[str, "The file or directory to search."] = "."
    glob: Annotated[str | None, "Search only files whose name fits, such as *.py."] = None
    ignore_case: Annotated[bool, "Whether upper and lower case are the same."] = False


@dataclass(frozen=True)
class RemoveParams:
    """Parameters of `rm`."""

    path: _Path
    recursive: Annotated[bool, "Remove a directory with everything in it."] = False


@dataclass(frozen=True)
class FileList:
    """Names; `total` includes those that were cut off."""

    names: tuple[str, ...]
    total: int

    def render(self) -> str:
        cut = self.total - len(self.names)
        lines = [*self.names, f"[{cut} more not shown: narrow the search]"] if cut else list(self.names)
        return "\n".join(lines) or "No entries."


@dataclass(frozen=True)
class FileText:
    """Lines `first` to `last` of the `total` lines of a text file."""

    path: str
    text: str
    first: int
    last: int
    total: int

    def render(self) -> str:
        if self.total == 0:
            return f"{self.path} is empty."
        shown = f"{self.path}, lines {self.first} to {self.last} of {self.total}:\n{self.text}"
        return shown if self.last >= self.total else f"{shown}\n[more: read on with offset={self.last + 1}]"


@dataclass(frozen=True)
class MatchList:
    """Matching lines; `more` if there are others."""

    matches: tuple[GrepMatch, ...]
    more: bool

    def render(self) -> str:
        lines = [f"{match.path}:{match.line_number}: {_truncate_line(match.line)}" for match in self.matches]
        if self.more:
            lines.append(f"[only the first {len(self.matches)} are shown: narrow the search]")
        return "\n".join(lines) or "No line matches."


@dataclass(frozen=True)
class ChangedPath:
    """A path that was written or deleted, with its new size."""

    path: str
    size: int

    def render(self) -> str:
        return ""  # the message has it


def _filesystem_errors_as_results(
    method: Callable[Concatenate[FileTools, P], ToolResult[R]],
) -> Callable[Concatenate[FileTools, P], ToolResult[R]]:
    """Convert `FilesystemError`s to failed results."""

    @wraps(method)
    def handler(tools: FileTools, *args: P.args, **kwargs: P.kwargs) -> ToolResult[R]:
        try:
            return method(tools, *args, **kwargs)
        except FilesystemError as error:
            return ToolResult.error(str(error))

    return handler


class FileTools:
    """The handlers; they use `filesystem` or, without it, the filesystem of the evaluation."""

    def __init__(self, filesystem: Filesystem | None = None) -> None:
        self._filesystem = filesystem

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        """All seven tools; the docstring of a handler is the description of its tool."""
        handlers = (self.ls, self.read_file, self.write_file, self.edit_file, self.glob, self.grep, self.rm)
        return tuple(map(Tool.wrap, handlers))

    def _files(self, context: ToolContext) -> Filesystem:
        return context.filesystem if self._filesystem is None else self._filesystem

    @_filesystem_errors_as_results
    def ls(self, params: ListParams, *, context: ToolContext) -> ToolResult[FileList]:
        """List a directory. Directories end with a slash."""
        files = self._files(context)
        base = "" if params.path in ("", ".") else f"{params.path.rstrip('/')}/"
        names = files.list_dir(params.path or ".")
        shown = tuple(_printable(name) + ("/" if files.is_dir(base + name) else "") for name in names[:MAX_ENTRIES])
        return ToolResult.ok(FileList(shown, len(names)))

    @_filesystem_errors_as_results
    def read_file(self, params: ReadParams, *, context: ToolContext) -> ToolResult[FileText]:
        """Read a text file, 2000 lines at a time."""
        if params.offset < 1 or params.limit < 1:
            return ToolResult.error("offset and limit count from 1.")
        text = _read_text(self._files(context), params.path)
        if text is None:
            return _not_text_error(params.path)
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()  # a final line break does not start another line
        if lines and params.offset > len(lines):
            return ToolResult.error(f"{params.path} has only {len(lines)} lines.")
        shown = _truncate_lines(lines[params.offset - 1 :][: min(params.limit, MAX_LINES)], MAX_CHARACTERS)
        last = params.offset - 1 + len(shown)
        return ToolResult.ok(FileText(params.path, "\n".join(shown), params.offset, last, len(lines)))

    @_filesystem_errors_as_results
    def write_file(self, params: WriteParams, *, context: ToolContext) -> ToolResult[ChangedPath]:
        """Create a file, or replace all of its content. Missing directories are created."""
        content = params.content.encode()
        self._files(context).write_bytes(params.path, content)
        return ToolResult(f"Wrote {params.path} ({len(content)} bytes).", ChangedPath(params.path, len(content)))

    @_filesystem_errors_as_results
    def edit_file(self, params: EditParams, *, context: ToolContext) -> ToolResult[ChangedPath]:
        """Replace a text in a file. The text must occur exactly once, unless replace_all."""
        files = self._files(context)
        text = _read_text(files, params.path)
        if text is None:
            return _not_text_error(params.path)
        if not params.old:
            return ToolResult.error("old is empty: give the text to replace, or use write_file.")
        old, new = _match_line_endings(text, params.old), _match_line_endings(text, params.new)
        count = text.count(old)
        if count == 0:
            return ToolResult.error(f"old does not occur in {params.path}: read the file and copy the text exactly.")
        if count > 1 and not params.replace_all:
            return ToolResult.error(
                f"old occurs {count} times in {params.path}: add text around it until it is unique, or set replace_all."
            )
        content = text.replace(old, new).encode()
        files.write_bytes(params.path, content)
        return ToolResult(f"Replaced {count} in {params.path}.", ChangedPath(params.path, len(content)))

    @_filesystem_errors_as_results
    def glob(self, params: GlobParams, *, context: ToolContext) -> ToolResult[FileList]:
        """Find files by name."""
        found = self._files(context).glob(params.pattern)
        return ToolResult.ok(FileList(tuple(_printable(path) for path in found[:MAX_ENTRIES]), len(found)))

    @_filesystem_errors_as_results
    def grep(self, params: GrepParams, *, context: ToolContext) -> ToolResult[MatchList]:
        """Find lines by a regular expression."""
        found = self._files(context).grep(
            params.pattern, params.path, glob=params.glob, ignore_case=params.ignore_case, max_matches=MAX_MATCHES + 1
        )
        return ToolResult.ok(MatchList(tuple(found[:MAX_MATCHES]), len(found) > MAX_MATCHES))

    @_filesystem_errors_as_results
    def rm(self, params: RemoveParams, *, context: ToolContext) -> ToolResult[ChangedPath]:
        """Remove a file, or a directory."""
        self._files(context).delete(params.path, recursive=params.recursive)
        return ToolResult(f"Removed {params.path}.", ChangedPath(params.path, 0))


def _read_text(files: Filesystem, path: str) -> str | None:
    """The text of a file; None if it is not UTF-8 text."""
    if (size := files.stat(path).size) > MAX_FILE_BYTES:
        raise FilesystemError(f"{path} has {size} bytes, too many to read; use grep", path=path)
    content = files.read_bytes(path)
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _match_line_endings(text: str, part: str) -> str:
    """Convert line feeds, which models write, to the line endings of `text`."""
    if "\r\n" not in text or "\r" in part:
        return part
    return part.replace("\n", "\r\n")


def _printable(name: str) -> str:
    """The name, escaped if it has unprintable characters."""
    return name if name.isprintable() else repr(name)


def _not_text_error(path: str) -> ToolResult[Any]:
    return ToolResult.error(f"{path} is not UTF-8 text; this tool cannot show or change it.")


def _truncate_lines(lines: list[str], max_characters: int) -> list[str]:
    """The first lines within the limit; at least one, truncated if it alone exceeds the limit."""
    shown: list[str] = []
    for line in lines:
        max_characters -= len(line) + 1
        if shown and max_characters < 0:
            break
        shown.append(line if max_characters >= 0 else f"{line[:max_characters]} [line cut]")
    return shown


def _truncate_line(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]} [line cut]"
