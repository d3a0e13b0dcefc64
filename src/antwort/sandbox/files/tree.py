"""File operations on a container's /mnt/data from outside, through one directory descriptor.

The code inside can change the tree at any moment, so nothing is decided on a path string: every step opens a
descriptor, no step follows a symbolic link, and anything but files and directories is refused.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import secrets
import stat
import threading
import unicodedata
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, Literal, Self

from antwort.sandbox.errors import BadPath, NotFound, TooLarge
from antwort.sandbox.jail import syscalls

MAX_LISTED: Final = 10_000
_MAX_PATHS: Final = 32 << 20
"""Characters of all paths of a listing, after which it ends early: a path may have 16,000."""
_MAX_NAME_BYTES: Final = 255
_MAX_DEPTH: Final = 64
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_NONBLOCKING: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a FIFO must not wait for its other end."""

_PARTIAL_PREFIX: Final = ".antwort-unfinished-"

Kind = Literal["file", "directory", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory at the time of the call."""

    path: str
    kind: Kind
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries, and whether there are more after them."""

    entries: list[Entry]
    has_more: bool


def is_safe_name(name: str) -> bool:
    """One path component without separators or control characters; checked for input and for listings."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False  # not valid UTF-8
    return (
        0 < length <= _MAX_NAME_BYTES
        and name not in {".", ".."}
        and "\\" not in name
        and "/" not in name
        and (name.isprintable() or not any(map(_is_unsafe_character, name)))
    )


def _is_unsafe_character(character: str) -> bool:
    """Control characters, line separators and bidirectional overrides; other spaces and joined emoji are allowed."""
    kind = unicodedata.category(character)
    return (kind.startswith("C") and character != "\N{ZERO WIDTH JOINER}") or kind in {"Zl", "Zp"}


def split_path(path: str) -> list[str]:
    """A relative path's components, or `BadPath`."""
    names = path.split("/")
    if path.endswith("/"):
        names = names[:-1]
    invalid = next((name for name in names if not is_safe_name(name)), None)
    if invalid is not None or not names or len(names) > _MAX_DEPTH:
        raise BadPath(f"{path!r} is not a plain relative path: no '..', leading '/', backslash or control character")
    return names


@dataclass(frozen=True, slots=True, eq=False)
class PendingFile:
    """A file being written under a temporary name that is never listed; `close` renames or removes it.

    As a context manager it commits on success. It must be closed in any case.
    """

    _tree: FileTree
    path: str
    directory: int
    partial_name: str
    name: str
    _descriptor: int

    def write(self, data: bytes) -> None:
        """Append; `TooLarge` if the quota is full."""
        view = memoryview(data)
        with _ErrorTranslation(self.path):
            while view:
                view = view[os.write(self._descriptor, view) :]

    def rename(self) -> None:
        os.rename(self.partial_name, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def close(self, *, commit: bool) -> None:
        """Rename it to its name, or remove it."""
        try:
            if commit:
                self._tree.commit(self)
        except BaseException:
            commit = False
            raise
        finally:
            if not commit:
                self._tree.discard(self)
            os.close(self._descriptor)
            os.close(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(commit=kind is None)


class FileTree:
    """The directory `/mnt/data` of one container."""

    def __init__(self, roots: list[int], uid: int | None) -> None:
        self._roots = roots
        self._uid = uid
        # Guards against the reuse of a closed descriptor's number for another container.
        self._close_lock = threading.Lock()

    def _open_root(self) -> int:
        with self._close_lock:
            if not self._roots:
                raise NotFound("the container has ended")
            return _duplicate(self._roots[0])

    def close(self) -> None:
        with self._close_lock:
            while self._roots:
                os.close(self._roots.pop())

    def open_read(self, path: str) -> tuple[int, int]:
        """A read descriptor of a regular file, and its size."""
        *above, name = split_path(path)
        with self._as_owner(), self._open_parent(above) as directory:
            descriptor = _open(name, os.O_RDONLY | _OPEN_NONBLOCKING, directory, path)
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            raise BadPath(f"{path!r} is not a regular file")
        return descriptor, info.st_size

    def open_write(self, path: str, mode: int = 0o644) -> PendingFile:
        """Start to write a file; parent directories are created, and an existing file stays until the commit."""
        *above, name = split_path(path)
        with self._as_owner():
            directory = self._open_directory(above, make=True)
            part = _PARTIAL_PREFIX + secrets.token_hex(16)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_NONBLOCKING
                descriptor = _open(part, flags, directory, path, mode)
            except BaseException:
                os.close(directory)
                raise
        return PendingFile(self, path, directory, part, name, descriptor)

    def commit(self, pending: PendingFile) -> None:
        """Rename a pending file to its name, atomically, whatever exists there: a link, a FIFO or an open file.

        A directory without files in it is replaced: a client that lists only files could never remove it.
        """
        with self._as_owner(), _ErrorTranslation(pending.path):
            try:
                pending.rename()
            except IsADirectoryError:
                if not _has_no_files(pending.name, pending.directory, 0):
                    raise
                _remove_empty_directories(pending.name, pending.directory, 0)
                pending.rename()

    def discard(self, pending: PendingFile) -> None:
        """Remove a pending file, if the code has not done so."""
        with self._as_owner(), contextlib.suppress(OSError):
            os.unlink(pending.partial_name, dir_fd=pending.directory)

    def make_directory(self, path: str) -> None:
        with self._as_owner(), self._open_parent(split_path(path), make=True):
            pass

    def read(self, path: str, limit: int) -> bytes:
        descriptor, size = self.open_read(path)
        with os.fdopen(descriptor, "rb") as file:
            if size > limit:
                raise TooLarge(f"{path!r} has {size} bytes, more than the {limit} allowed here")
            return file.read(limit)

    def write(self, path: str, data: bytes) -> None:
        with self.open_write(path) as pending:
            pending.write(data)

    def stat(self, path: str) -> Entry:
        *above, name = split_path(path)
        with self._as_owner(), self._open_parent(above) as directory:
            return _entry(path.rstrip("/"), _stat(name, directory, path))

    def list(self, below: str = "", *, limit: int = MAX_LISTED, after: str = "") -> Listing:
        """Files and directories below, sorted, a directory before its content; links and unsafe names are left out.

        At most `limit` entries, fewer if their paths are very long, after the path `after`: pass the last entry to get
        the next page.
        """
        prefix = f"{'/'.join(split_path(below))}/" if below else ""
        if after and not after.startswith(prefix):
            raise BadPath(f"{after!r} is not below {below!r}: pass a path from the previous page")
        start_after = split_path(after.removeprefix(prefix)) if after else []
        page = _Page(limit)
        with self._as_owner():
            start = self._open_directory(split_path(below)) if below else self._open_root()
            has_more = _list_into(page, start, prefix, start_after)
        return Listing(page.entries, has_more)

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content."""
        *above, name = split_path(path)
        with self._as_owner(), self._open_parent(above) as directory:
            if stat.S_ISDIR(_stat(name, directory, path).st_mode):
                _remove_below(name, directory, 0)
            else:
                with _ErrorTranslation(path):
                    os.unlink(name, dir_fd=directory)

    def move(self, source: str, target: str) -> None:
        """Rename within the tree; a file at the target is replaced."""
        *above, name = split_path(source)
        *above_target, new_name = split_path(target)
        with self._as_owner(), self._open_parent(above) as old, self._open_parent(above_target, make=True) as new:
            try:
                os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
            except FileNotFoundError:
                raise NotFound(f"no file {source!r}") from None
            except OSError as error:
                raise BadPath(f"cannot move {source!r} to {target!r}: {error.strerror}") from error

    def usage(self) -> int:
        """Bytes used in all writable directories of the container."""
        with self._close_lock:
            stats = [os.statvfs(root) for root in self._roots]
        return sum((info.f_blocks - info.f_bfree) * info.f_frsize for info in stats)

    @contextlib.contextmanager
    def _as_owner(self) -> Generator[None]:
        """If the server is root, access the tree as its owner, without root's power over files.

        The file-system uid is per thread, and with it the kernel drops the capabilities that override permissions.
        """
        if self._uid is None:
            yield
            return
        syscalls.call("setfsgid", self._uid)
        syscalls.call("setfsuid", self._uid)
        try:
            yield
        finally:
            syscalls.call("setfsuid", 0)
            syscalls.call("setfsgid", 0)

    def _open_parent(self, names: list[str], *, make: bool = False) -> _OpenDescriptor:
        return _OpenDescriptor(self._open_directory(names, make=make))

    def _open_directory(self, names: list[str], *, make: bool = False) -> int:
        directory = self._open_root()
        for name in names:
            with _OpenDescriptor(directory), _ErrorTranslation("/".join(names)):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=directory)
                directory = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
        return directory


class _ErrorTranslation:
    """Turns an `OSError` into an error of the sandbox. A class, since archives enter one for every file."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"no file {self._path!r}") from error
        if isinstance(error, OSError):
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise TooLarge(f"cannot write {self._path!r}: the container's disk or file quota is full") from error
            raise BadPath(f"{self._path!r}: {error.strerror}") from error


class _OpenDescriptor:
    """Closes a descriptor at the end of a `with` block."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _open(name: str, flags: int, directory: int, path: str, mode: int = 0) -> int:
    with _ErrorTranslation(path):
        return os.open(name, flags, mode, dir_fd=directory)


def _duplicate(descriptor: int) -> int:
    # openat rather than dup: a duplicate would share its read position with other listings.
    return os.open(".", _OPEN_DIRECTORY, dir_fd=descriptor)


def _stat(name: str, directory: int, path: str) -> os.stat_result:
    with _ErrorTranslation(path):
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def _entry(path: str, info: os.stat_result) -> Entry:
    kind: Kind = "file" if stat.S_ISREG(info.st_mode) else "directory" if stat.S_ISDIR(info.st_mode) else "other"
    return Entry(path, kind, info.st_size if kind == "file" else 0, info.st_mtime)


class _Page:
    """Entries of a listing, up to their limits."""

    def __init__(self, limit: int) -> None:
        self.entries: list[Entry] = []
        self._limit = limit
        self._characters = 0

    @property
    def left(self) -> int:
        return self._limit - len(self.entries) if self._characters <= _MAX_PATHS else 0

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._characters += len(entry.path)


def _list_into(page: _Page, directory: int, prefix: str, after: list[str], depth: int = 0) -> bool:
    """Add the entries after `after`, up to the limits; returns whether there are more. Closes the directory."""
    with _OpenDescriptor(directory):
        wanted = page.left + 2  # one more to know `has_more`, and one that is `after` itself
        names = _sorted_names(directory, after[0] if after else "", wanted)
        for name in names:
            if page.left <= 0:
                return True
            is_after = not after or name != after[0]
            try:
                entry = _entry(prefix + name, os.stat(name, dir_fd=directory, follow_symlinks=False))
                descend = entry.kind == "directory" and depth < _MAX_DEPTH
                below = os.open(name, _OPEN_DIRECTORY, dir_fd=directory) if descend else -1
            except OSError:
                continue  # removed or replaced since it was listed
            if is_after and entry.kind != "other":
                page.add(entry)
            after_below = [] if is_after else after[1:]
            if below >= 0 and _list_into(page, below, f"{entry.path}/", after_below, depth + 1):
                return True
        return len(names) == wanted


def _sorted_names(directory: int, start: str, limit: int) -> list[str]:
    """The first `limit` names of files and directories from `start` on, sorted, in bounded memory.

    Names come from hostile code: unsafe ones are skipped.
    """
    with os.scandir(directory) as entries:
        return heapq.nsmallest(limit, (entry.name for entry in entries if entry.name >= start and _is_listed(entry)))


def _is_listed(entry: os.DirEntry[str]) -> bool:
    if not is_safe_name(entry.name) or entry.name.startswith(_PARTIAL_PREFIX):
        return False
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def _has_no_files(name: str, parent: int, depth: int) -> bool:
    """Whether a directory contains only directories, recursively."""
    if depth > _MAX_DEPTH:
        return False
    with _OpenDescriptor(_open(name, _OPEN_DIRECTORY, parent, name)) as directory, os.scandir(directory) as entries:
        return all(e.is_dir(follow_symlinks=False) and _has_no_files(e.name, directory, depth + 1) for e in entries)


def _remove_empty_directories(name: str, parent: int, depth: int) -> None:
    """Remove it bottom-up. Fails, and keeps the rest, if the code has added files or depth meanwhile."""
    with _OpenDescriptor(_open(name, _OPEN_DIRECTORY, parent, name)) as directory, os.scandir(directory) as entries:
        for child in entries if depth <= _MAX_DEPTH else ():
            _remove_empty_directories(child.name, directory, depth + 1)
    os.rmdir(name, dir_fd=parent)


def _remove_below(name: str, parent: int, depth: int) -> None:
    if depth > 2 * _MAX_DEPTH:  # each level holds two descriptors
        raise TooLarge("the directory is too deep to remove; end the container instead")
    with (
        _OpenDescriptor(_open(name, _OPEN_DIRECTORY, parent, name)) as directory,
        _ErrorTranslation(name),
        os.scandir(directory) as entries,  # not a list of them: there may be millions
    ):
        for child in entries:
            try:
                os.unlink(child.name, dir_fd=directory)
            except IsADirectoryError:
                _remove_below(child.name, directory, depth + 1)
    # It may be removed already, or not be empty: the code adds files while they are removed.
    with _ErrorTranslation(name), contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
