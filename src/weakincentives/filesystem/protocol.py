"""The `Filesystem` protocol and its value types. `weakincentives.testing` has the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class FileStat:
    """Metadata of one path.

    `special` is True for what is neither file nor directory, such as a symbolic link, a FIFO or a device: it can only
    be listed and deleted.
    """

    path: str
    size: int
    is_dir: bool
    modified_at: datetime
    special: bool = False

    @property
    def is_file(self) -> bool:
        return not (self.is_dir or self.special)


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A matching line: `line_number` starts at 1, `line` has no line break."""

    path: str
    line_number: int
    line: str


@runtime_checkable
class Filesystem(Protocol):
    """Files under one root, addressed by relative POSIX paths (see `filesystem.paths`).

    Every method raises `InvalidPathError` for an invalid path. Unless stated otherwise, a path that does not exist
    raises `MissingFileError`, a directory where a file is needed `NotAFileError`, and a file where a directory is
    needed, also as a parent, `NotADirectoryPathError`. These and all other failures are `FilesystemError`s.
    """

    def read_bytes(self, path: str) -> bytes:
        """The content of a file."""
        ...

    def write_bytes(self, path: str, content: bytes) -> None:
        """Create or replace a file. Missing directories are created."""
        ...

    def read(self, path: str) -> bytes:
        """The same as `read_bytes`."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """The same as `write_bytes`."""
        ...

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The decoded content of a file; line endings are kept. May raise `UnicodeDecodeError`."""
        ...

    def write_text(self, path: str, content: str, encoding: str = "utf-8") -> None:
        """Encode and write `content`; line endings are kept."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path exists. The root always exists."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether the path is a regular file."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether the path is a directory."""
        ...

    def stat(self, path: str) -> FileStat:
        """Metadata of the path, with `path` in normal form. The size of a directory is 0."""
        ...

    def list_dir(self, path: str = ".") -> list[str]:
        """The names in a directory, sorted, without names that are not valid in a path."""
        ...

    def walk(self, path: str = ".") -> Iterator[tuple[str, list[str], list[str]]]:
        """Like `os.walk`, from `path` down: tuples of a directory's path, its directory names and its file names.

        Sorted, parents first; names that the caller removes from the list of directories are not visited. Links and
        other special entries are left out, and unreadable directories below `path` are skipped.
        """
        ...

    def glob(self, pattern: str) -> list[str]:
        """The files whose whole path matches, sorted.

        `*`, `?` and `[…]` match within one name, `**` matches any number of directories (also none), `{a,b}` matches
        alternatives: `*.py` matches files in the root only, `**/*.py` at every depth, `src/**` everything below `src`.
        """
        ...

    def grep(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        max_matches: int | None = None,
    ) -> list[GrepMatch]:
        """The lines that match the regular expression `pattern`, by path and line number.

        Searches the file `path`, or all files below the directory `path`; files that are not UTF-8 text, larger than
        64 MiB or unreadable are skipped. `glob` filters the files: with a `/` it is matched as in `glob()`, without one
        against the file name at any depth. An invalid regular expression raises `FilesystemError`.
        """
        ...

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents; does nothing if it exists. A file at the path is an error."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or an empty directory; with `recursive`, a directory with its content.

        Missing paths, non-empty directories (without `recursive`) and the root are errors. The parent directory is
        kept.
        """
        ...
