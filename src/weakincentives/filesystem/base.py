"""`FilesystemBase`: implements the `Filesystem` protocol on top of six abstract methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice

from weakincentives.errors import FilesystemError, MissingFileError, NotADirectoryPathError
from weakincentives.filesystem.glob_patterns import compile_glob, literal_prefix
from weakincentives.filesystem.paths import join, split
from weakincentives.filesystem.protocol import FileStat, GrepMatch
from weakincentives.filesystem.regex_timeout import RegexTimeout, compile_pattern

MAX_SEARCHED_BYTES = 64 << 20  # a search reads one whole file into memory at a time


class FilesystemBase(ABC):
    """Base class of `Filesystem` implementations.

    Subclasses define `read_bytes`, `write_bytes`, `stat`, `list_dir`, `mkdir` and `delete`. The other methods may be
    overridden for speed, `scan` first.
    """

    @abstractmethod
    def read_bytes(self, path: str) -> bytes: ...

    @abstractmethod
    def write_bytes(self, path: str, content: bytes) -> None: ...

    @abstractmethod
    def stat(self, path: str) -> FileStat: ...

    @abstractmethod
    def list_dir(self, path: str = ".") -> list[str]: ...

    @abstractmethod
    def mkdir(self, path: str) -> None: ...

    @abstractmethod
    def delete(self, path: str, *, recursive: bool = False) -> None: ...

    def scan(self, path: str = ".") -> list[FileStat]:
        """The `stat` of each entry of a directory."""
        parts = split(path)
        return [self.stat(join((*parts, name))) for name in self.list_dir(path)]

    def read(self, path: str) -> bytes:
        return self.read_bytes(path)

    def write(self, path: str, content: bytes) -> None:
        self.write_bytes(path, content)

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return self.read_bytes(path).decode(encoding)

    def write_text(self, path: str, content: str, encoding: str = "utf-8") -> None:
        self.write_bytes(path, content.encode(encoding))

    def exists(self, path: str) -> bool:
        return self._stat_or_none(path) is not None

    def is_file(self, path: str) -> bool:
        found = self._stat_or_none(path)
        return found is not None and found.is_file

    def is_dir(self, path: str) -> bool:
        found = self._stat_or_none(path)
        return found is not None and found.is_dir

    def walk(self, path: str = ".") -> Iterator[tuple[str, list[str], list[str]]]:
        start = split(path)
        pending = [start]
        while pending:
            current = pending.pop()
            try:
                entries = self.scan(join(current))
            except FilesystemError:
                if current == start:
                    raise
                continue  # deleted meanwhile, or unreadable: skip it
            directories = [split(entry.path)[-1] for entry in entries if entry.is_dir]
            files = [split(entry.path)[-1] for entry in entries if entry.is_file]
            yield join(current), directories, files
            pending.extend((*current, name) for name in reversed(directories))

    def glob(self, pattern: str) -> list[str]:
        compiled = compile_glob(pattern)
        start = literal_prefix(pattern)
        if not self.is_dir(start):
            return []
        timeout = RegexTimeout()
        return sorted(path for path in self._files_below(start) if timeout.matches(compiled, path, full=True))

    def grep(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        max_matches: int | None = None,
    ) -> list[GrepMatch]:
        compiled = compile_pattern(pattern, ignore_case=ignore_case)
        name_pattern = compile_glob(glob if "/" in glob else f"**/{glob}") if glob else None
        start = self.stat(path)
        files = sorted(self._files_below(path)) if start.is_dir else [start.path]
        timeout = RegexTimeout()
        matches = (
            GrepMatch(file, number, line)
            for file in files
            if name_pattern is None or timeout.matches(name_pattern, file, full=True)
            for number, line in self._lines(file, skip_unreadable=start.is_dir)
            if timeout.matches(compiled, line, full=False)
        )
        return list(islice(matches, max_matches))

    def _lines(self, file: str, *, skip_unreadable: bool) -> Iterator[tuple[int, str]]:
        try:
            content = self._searchable_content(file)
        except FilesystemError:
            if not skip_unreadable:
                raise
            return
        if b"\0" in content:
            return
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return
        # Only "\n" ends a line: `splitlines` would also split at form feeds and others, unlike editors.
        for number, line in enumerate(text.split("\n"), start=1):
            yield number, line.removesuffix("\r")

    def _searchable_content(self, file: str) -> bytes:
        if self.stat(file).size > MAX_SEARCHED_BYTES:
            raise FilesystemError(f"{file!r} is too large to search", path=file)
        return self.read_bytes(file)

    def _files_below(self, path: str) -> Iterator[str]:
        for directory, _, files in self.walk(path):
            parts = split(directory)
            yield from (join((*parts, name)) for name in files)

    def _stat_or_none(self, path: str) -> FileStat | None:
        try:
            return self.stat(path)
        except (MissingFileError, NotADirectoryPathError):
            return None
