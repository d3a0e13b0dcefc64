"""The sentences in which every filesystem refuses, so that all of them say the same. Pure."""

from __future__ import annotations

from weakincentives.errors import FilesystemError, MissingFileError, NotADirectoryPathError, NotAFileError


def missing_file(path: str) -> MissingFileError:
    """Nothing is there."""
    return MissingFileError(f"{path!r} does not exist", path=path)


def not_a_file(path: str, what: str = "a directory") -> NotAFileError:
    """Something is there, and it is no regular file."""
    return NotAFileError(f"{path!r} is {what}, not a file", path=path)


def not_a_directory(path: str, *, component: str | None = None, what: str = "a file") -> NotADirectoryPathError:
    """The path, or `culprit` on the way to it, is no directory."""
    where = f"{component!r} in {path!r}" if component and component != path else repr(path)
    return NotADirectoryPathError(f"{where} is {what}, not a directory", path=path)


def directory_not_empty(path: str) -> FilesystemError:
    """A directory that only a recursive delete removes."""
    return FilesystemError(f"{path!r} is a directory that is not empty; delete it with recursive=True", path=path)


def root_not_deletable(path: str) -> FilesystemError:
    """The root itself cannot be removed."""
    return FilesystemError("the root cannot be deleted; delete what is in it", path=path)
