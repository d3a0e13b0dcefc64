"""The `Filesystem` port and the values that it speaks in. Declarations only; `conformance` pins what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class FileStat:
    """What is known of one path.

    `special` marks what is neither file nor directory, such as a symbolic link, a FIFO or a device: it can be listed
    and deleted, and nothing else.
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
    """One line that matched: `line_number` counts from 1, `line` has no line break."""

    path: str
    line_number: int
    line: str


@runtime_checkable
class Filesystem(Protocol):
    """Files under one root, by relative POSIX paths (`paths` says what a path is).

    Every method raises `InvalidPathError` for what is no path inside the root. Otherwise, where nothing else is said:
    nothing there is a `MissingFileError`; a directory where a file is wanted, a `NotAFileError`; a file where a
    directory is wanted, also in the middle of a path, a `NotADirectoryPathError`. All are `FilesystemError`s, which
    is also what any other failure is.
    """

    def read_bytes(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def write_bytes(self, path: str, content: bytes) -> None:
        """Make `content` the whole content of a file. Missing directories are created."""
        ...

    def read(self, path: str) -> bytes:
        """The same as `read_bytes`."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """The same as `write_bytes`."""
        ...

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A file's content, decoded and otherwise untouched: line endings stay. May be a `UnicodeDecodeError`."""
        ...

    def write_text(self, path: str, content: str, encoding: str = "utf-8") -> None:
        """Write `content`, encoded and otherwise untouched: line endings stay."""
        ...

    def exists(self, path: str) -> bool:
        """Whether anything is there. The root always exists."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether a directory is there."""
        ...

    def stat(self, path: str) -> FileStat:
        """What is there; its `path` is in normal form. A directory's size is 0."""
        ...

    def list_dir(self, path: str = ".") -> list[str]:
        """The names in a directory, sorted. Names that no path can spell are left out."""
        ...

    def walk(self, path: str = ".") -> Iterator[tuple[str, list[str], list[str]]]:
        """Each directory from `path` down, as `os.walk` does: its path, its directories' names, its files' names.

        All sorted, parents first; what is taken out of the list of directories is not visited. Neither links nor other
        special entries appear, and directories below `path` that cannot be read are passed over.
        """
        ...

    def glob(self, pattern: str) -> list[str]:
        """The files whose whole path matches, sorted.

        `*`, `?` and `[…]` match within one name, `**` any number of directories (also none), `{a,b}` either. So `*.py`
        finds files at the top only, `**/*.py` at every depth, `src/**` everything below `src`.
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
        """The lines in which the regular expression `pattern` is found, by path and line number.

        Searches the file `path`, or all files below the directory `path`; those that are not UTF-8 text, larger than
        64 MiB or unreadable are passed over. `glob` narrows the files: with a `/` it is matched as `glob()` does,
        without one against the file's name at any depth. A `pattern` that is no regular expression is a
        `FilesystemError`.
        """
        ...

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it. One that exists is fine; a file in its place is not."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or an empty directory; with `recursive`, a directory and all in it.

        Missing paths, directories with content (without `recursive`) and the root are refused. The directory that held
        the path stays.
        """
        ...
