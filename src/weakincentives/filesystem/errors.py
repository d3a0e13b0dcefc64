"""Constructors of filesystem errors, shared by all implementations so that their messages agree."""

from __future__ import annotations

from weakincentives.errors import FilesystemError, MissingFileError, NotADirectoryPathError, NotAFileError


def missing_file(path: str) -> MissingFileError:
    """The path does not exist."""
    return MissingFileError(f"{path!r} does not exist", path=path)


def not_a_file(path: str, description: str = "a directory") -> NotAFileError:
    """The path is not a regular file."""
    return NotAFileError(f"{path!r} is {description}, not a file", path=path)


def not_a_directory(path: str, *, component: str | None = None, description: str = "a file") -> NotADirectoryPathError:
    """The path, or its parent `component`, is not a directory."""
    where = f"{component!r} in {path!r}" if component and component != path else repr(path)
    return NotADirectoryPathError(f"{where} is {description}, not a directory", path=path)


def not_empty(path: str) -> FilesystemError:
    """The directory has entries and the delete is not recursive."""
    return FilesystemError(f"{path!r} is a non-empty directory; delete it with recursive=True", path=path)


def root_not_deletable(path: str) -> FilesystemError:
    """The root cannot be deleted."""
    return FilesystemError("the root cannot be deleted; delete its entries", path=path)
