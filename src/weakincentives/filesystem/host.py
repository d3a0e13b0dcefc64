"""`HostFilesystem`: a directory of the host as a `Filesystem`, confined to its root.

Every operation resolves its path from the root's descriptor (`openat`), so no symbolic link is followed and concurrent
renames cannot redirect it; it then works on an entry of an open directory descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from weakincentives.errors import FilesystemError, InvalidPathError
from weakincentives.filesystem.base import FilesystemBase
from weakincentives.filesystem.errors import missing_file, not_a_directory, not_a_file, not_empty, root_not_deletable
from weakincentives.filesystem.openat import (
    LIST_DIR,
    READ_FILE,
    TRAVERSE,
    Opener,
    default_opener,
    describe_mode,
    list_names,
    open_beneath,
    read_all,
    write_all,
)
from weakincentives.filesystem.paths import Parts, is_addressable, join, split
from weakincentives.filesystem.protocol import FileStat
from weakincentives.filesystem.undo_log import Absent, HostSnapshot, SavedDir, SavedFile, SavedLink, SavedState, UndoLog


class HostFilesystem(FilesystemBase):
    """A `Filesystem` over the directory `root`, which must exist.

    - **Symbolic links are never followed**, not even inside the root: a link can only be listed and deleted, like
      FIFOs, sockets and devices. (The path of `root` itself may contain links.)
    - **Writes are atomic**: other processes read the old file or the new one. Permission bits are kept, and the owner
      if the process may change it; hard links are broken, extended attributes are lost. There is no fsync.
    - **Snapshots** cover changes through this object, not those of other processes. `restore` keeps a directory that
      another process has put files into, and cannot recreate sockets and devices.
    - Only one thread at a time may write; any number may read.

    `opener` selects one of the two implementations in `openat`; the default is the fastest that works.
    """

    def __init__(self, root: str | os.PathLike[str], *, opener: Opener | None = None) -> None:
        self._opener = opener or default_opener()
        self._undo_log = UndoLog()
        self._root = Path(root)
        try:
            self._root_fd = os.open(root, TRAVERSE | os.O_CLOEXEC)
        except OSError as error:
            raise FilesystemError(f"cannot open {str(root)!r} as the root: {error.strerror}", path=str(root)) from error
        weakref.finalize(self, os.close, self._root_fd)

    def __repr__(self) -> str:
        return f"HostFilesystem({str(self._root)!r})"

    @property
    def root(self) -> Path:
        """The root directory, as passed to the constructor."""
        return self._root

    def read_bytes(self, path: str) -> bytes:
        parts = split(path)
        with self._translate_errors(path, "file"), open_beneath(self._root_fd, parts, READ_FILE, self._opener) as file:
            _require_file(path, os.fstat(file))
            return read_all(file)

    def open_read(self, path: str) -> BinaryIO:
        """Open a file for reading in chunks. The caller closes it."""
        parts = split(path)
        with self._translate_errors(path, "file"):
            descriptor = self._opener(self._root_fd, parts, READ_FILE)
            try:
                _require_file(path, os.fstat(descriptor))
                return os.fdopen(descriptor, "rb")
            except BaseException:
                os.close(descriptor)
                raise

    def write_bytes(self, path: str, content: bytes) -> None:
        self.write_chunks(path, (content,))

    def write_chunks(self, path: str, content: Iterable[bytes]) -> None:
        """Write a file from chunks, atomically."""
        parts = split(path)
        if not parts:
            raise not_a_file(path)
        with self._translate_errors(path, "file"), self._directory(parts[:-1], make=True) as directory:
            before = _lstat_or_none(parts[-1], directory)
            if before is not None:
                _require_file(path, before)
                _require_writable(parts[-1], directory)
            self._write(parts, directory, content, before, keep_time=False)

    def stat(self, path: str) -> FileStat:
        parts = split(path)
        if not parts:
            return _file_stat(parts, os.fstat(self._root_fd))
        with self._translate_errors(path, "directory"), self._directory(parts[:-1]) as directory:
            return _file_stat(parts, os.stat(parts[-1], dir_fd=directory, follow_symlinks=False))

    def list_dir(self, path: str = ".") -> list[str]:
        parts = split(path)
        with (
            self._translate_errors(path, "directory"),
            open_beneath(self._root_fd, parts, LIST_DIR, self._opener) as directory,
        ):
            return sorted(name for name in list_names(directory) if is_addressable((*parts, name)))

    def scan(self, path: str = ".") -> list[FileStat]:
        parts = split(path)
        found: list[FileStat] = []
        with (
            self._translate_errors(path, "directory"),
            open_beneath(self._root_fd, parts, LIST_DIR, self._opener) as directory,
            os.scandir(directory) as entries,
        ):
            for entry in entries:
                if is_addressable((*parts, entry.name)):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append(_file_stat((*parts, entry.name), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda entry: entry.path)

    def mkdir(self, path: str) -> None:
        parts = split(path)
        with self._translate_errors(path, "directory"), self._directory(parts, make=True):
            pass  # opening it raises if the path is not a directory

    def delete(self, path: str, *, recursive: bool = False) -> None:
        parts = split(path)
        if not parts:
            raise root_not_deletable(path)
        with self._translate_errors(path, "directory"):
            if not self.stat(path).is_dir:
                with self._directory(parts[:-1]) as directory:
                    self._unlink(parts, directory)
            elif recursive:
                self._remove_tree(parts)
            else:
                self._remove_directory(parts)

    def snapshot(self) -> HostSnapshot:
        """A snapshot, in O(1); see `undo_log`."""
        return self._undo_log.take_snapshot()

    def restore(self, snapshot: object, /) -> None:
        """Undo the changes that were made through this object since the snapshot."""
        for parts, before in self._undo_log.changes_since(snapshot):
            with self._translate_errors(join(parts), "file"):
                self._restore_entry(parts, before)
        self._undo_log.discard_after(snapshot)

    @contextmanager
    def _directory(self, parts: Parts, *, make: bool = False) -> Generator[int]:
        """A descriptor of the directory at `parts`; with `make`, missing directories are created."""
        try:
            descriptor = self._opener(self._root_fd, parts, TRAVERSE)
        except FileNotFoundError:
            if not make:
                raise
            self._make_directories(parts)
            descriptor = self._opener(self._root_fd, parts, TRAVERSE)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_directories(self, parts: Parts) -> None:
        for length in range(1, len(parts) + 1):
            with self._directory(parts[: length - 1]) as parent:
                if _lstat_or_none(parts[length - 1], parent) is None:
                    self._undo_log.record(parts[:length], parent)
                    with suppress(FileExistsError):
                        os.mkdir(parts[length - 1], dir_fd=parent)

    def _write(
        self, parts: Parts, directory: int, content: Iterable[bytes], before: os.stat_result | None, *, keep_time: bool
    ) -> None:
        """Write to a temporary file and rename it, so that the write is atomic.

        The file gets the owner and permissions of `before`; with `keep_time`, its modification time too.
        """
        self._undo_log.record(parts, directory)
        temporary = f".wink-{os.urandom(8).hex()}.tmp"
        # The umask can only remove bits here: a private file is private from its first byte.
        mode = 0o666 if before is None else before.st_mode & 0o777
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, mode, dir_fd=directory)
        try:
            try:
                if before is not None:
                    _copy_owner_and_mode(file, before)
                for chunk in content:
                    write_all(file, chunk)
                if before is not None and keep_time:
                    os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
            finally:
                os.close(file)
            os.rename(temporary, parts[-1], src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _unlink(self, parts: Parts, directory: int) -> None:
        self._undo_log.record(parts, directory)
        os.unlink(parts[-1], dir_fd=directory)

    def _remove_directory(self, parts: Parts) -> None:
        with self._directory(parts[:-1]) as parent:
            self._undo_log.record(parts, parent)
            os.rmdir(parts[-1], dir_fd=parent)

    def _remove_tree(self, top: Parts) -> None:
        """Delete files top-down, then directories bottom-up. Needs a constant number of descriptors."""
        directories: list[Parts] = []
        pending = [top]
        while pending:
            parts = pending.pop()
            directories.append(parts)
            with open_beneath(self._root_fd, parts, LIST_DIR, self._opener) as directory:
                with os.scandir(directory) as entries:
                    kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                for name, is_directory in kinds:
                    if is_directory:
                        pending.append((*parts, name))
                    else:
                        self._unlink((*parts, name), directory)
        for parts in reversed(directories):
            self._remove_directory(parts)

    def _restore_entry(self, parts: Parts, before: SavedState) -> None:
        with self._directory(parts[:-1], make=True) as directory:
            current = _lstat_or_none(parts[-1], directory)
            if current is not None and not _is_replaceable(current, before):
                try:
                    self._remove_directory(parts) if stat.S_ISDIR(current.st_mode) else self._unlink(parts, directory)
                except OSError as error:
                    if error.errno == errno.ENOTEMPTY and isinstance(before, Absent):
                        return  # another process has put files there
                    raise
                current = None
            if isinstance(before, SavedFile):
                self._write(parts, directory, before.content(), before.stat_result, keep_time=True)
            elif isinstance(before, SavedDir) and current is None:
                self._undo_log.record(parts, directory)
                os.mkdir(parts[-1], before.mode, dir_fd=directory)
                with open_beneath(directory, parts[-1:], LIST_DIR, self._opener) as created:
                    os.fchmod(created, before.mode)
            elif isinstance(before, SavedLink):
                self._undo_log.record(parts, directory)
                os.symlink(before.target, parts[-1], dir_fd=directory)

    @contextmanager
    def _translate_errors(self, path: str, expected: Literal["file", "directory"]) -> Generator[None]:
        """Translate `OSError`s to `FilesystemError`s."""
        try:
            yield
        except FilesystemError:
            raise
        except OSError as error:
            raise self._filesystem_error(error, path, expected) from error

    def _filesystem_error(self, error: OSError, path: str, expected: Literal["file", "directory"]) -> FilesystemError:
        if error.errno == errno.ENOENT:
            return missing_file(path)
        if error.errno == errno.ENOTEMPTY:
            return not_empty(path)
        if error.errno == errno.ENAMETOOLONG:
            return InvalidPathError(f"invalid path {path!r}: too long for the host filesystem", path=path)
        if error.errno in {errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            return self._component_error(path, expected)
        return FilesystemError(f"{path!r}: {error.strerror}", path=path)

    def _component_error(self, path: str, expected: Literal["file", "directory"]) -> FilesystemError:
        """Find the component with the wrong type, for the message of an operation that already failed."""
        parts = split(path)
        for length in range(1, len(parts) + 1):
            try:
                with self._directory(parts[: length - 1]) as directory:
                    mode = os.stat(parts[length - 1], dir_fd=directory, follow_symlinks=False).st_mode
            except OSError:
                break
            if length == len(parts) and expected == "file":
                return not_a_file(path, describe_mode(mode))
            if not stat.S_ISDIR(mode):
                return not_a_directory(path, component=join(parts[:length]), description=describe_mode(mode))
        return FilesystemError(f"{path!r} was changed by another process; try again", path=path)


def _lstat_or_none(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _require_file(path: str, stat_result: os.stat_result) -> None:
    if not stat.S_ISREG(stat_result.st_mode):
        raise not_a_file(path, describe_mode(stat_result.st_mode))


def _require_writable(name: str, directory: int) -> None:
    """Raise if the file is not writable, which a rename would not check."""
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))
    except OSError as error:
        if error.errno != errno.ETXTBSY:  # a running program can be replaced
            raise


def _copy_owner_and_mode(file: int, template: os.stat_result) -> None:
    with suppress(PermissionError):
        os.fchown(file, template.st_uid, template.st_gid)
    os.fchmod(file, template.st_mode & 0o777)  # without setuid and setgid, as when the kernel writes to a file


def _is_replaceable(current: os.stat_result, before: SavedState) -> bool:
    """Whether `before` can replace the current entry without deleting it first."""
    if isinstance(before, SavedFile):
        return stat.S_ISREG(current.st_mode)
    return isinstance(before, SavedDir) and stat.S_ISDIR(current.st_mode)


def _file_stat(parts: Parts, stat_result: os.stat_result) -> FileStat:
    is_dir = stat.S_ISDIR(stat_result.st_mode)
    is_file = stat.S_ISREG(stat_result.st_mode)
    modified_at = datetime.fromtimestamp(stat_result.st_mtime, UTC)
    size = stat_result.st_size if is_file else 0
    return FileStat(join(parts), size, is_dir, modified_at, special=not (is_dir or is_file))
