"""`HostFilesystem`: a directory of this machine, which cannot be left. Only here are agents' files read and written.

Every operation starts from the root's descriptor and goes down through `beneath`, so no symbolic link is followed and
no rename on the way changes where it ends. What it then does, it does to an entry of a directory that it holds open.
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
from weakincentives.filesystem.errors import (
    directory_not_empty,
    missing_file,
    not_a_directory,
    not_a_file,
    root_not_deletable,
)
from weakincentives.filesystem.openat import (
    LIST_DIRECTORY,
    READ_FILE,
    TRAVERSE_DIRECTORY,
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
from weakincentives.filesystem.undo_log import (
    Absent,
    HostSnapshot,
    PreviousState,
    SavedDirectory,
    SavedFile,
    SavedLink,
    UndoLog,
)


class HostFilesystem(FilesystemBase):
    """A `Filesystem` over the directory `root`, which must exist.

    - **Links are never followed**, not even those that stay inside: a symbolic link is listed and can be deleted,
      nothing else. The same holds for FIFOs, sockets and devices. (`root` itself may be reached through links.)
    - **Writes are atomic**: others see the old file or the new one. Permission bits are kept, and the owner where we
      may give files away; hard links are parted, extended attributes lost. Nothing is synced to the disk.
    - **Snapshots** cover what is changed through this object, not what others do to the directory meanwhile. `restore`
      leaves a directory in place that others have put something into, and cannot bring back sockets and devices.
    - One thread at a time may change it; any number may read.

    `opener` picks one of the two routes of `beneath`; left out, it is the better one.
    """

    def __init__(self, root: str | os.PathLike[str], *, opener: Opener | None = None) -> None:
        self._opener = opener or default_opener()
        self._undo_log = UndoLog()
        self._root = Path(root)
        try:
            self._root_fd = os.open(root, TRAVERSE_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FilesystemError(f"cannot open {str(root)!r} as a root: {error.strerror}", path=str(root)) from error
        weakref.finalize(self, os.close, self._root_fd)

    def __repr__(self) -> str:
        return f"HostFilesystem({str(self._root)!r})"

    @property
    def root(self) -> Path:
        """The directory, as it was given."""
        return self._root

    def read_bytes(self, path: str) -> bytes:
        parts = split(path)
        with self._translate_errors(path, "file"), open_beneath(self._opener, self._root_fd, parts, READ_FILE) as file:
            _require_file(path, os.fstat(file))
            return read_all(file)

    def open_read(self, path: str) -> BinaryIO:
        """A file to read piece by piece, where it is too large to hold. The caller closes it."""
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
        """Write a file piece by piece. It takes its place when it is whole, or not at all."""
        parts = split(path)
        if not parts:
            raise not_a_file(path)
        with self._translate_errors(path, "file"), self._directory(parts[:-1], make=True) as directory:
            before = _lstat_or_none(parts[-1], directory)
            if before is not None:
                _require_file(path, before)
                _require_writable(parts[-1], directory)
            self._write(parts, directory, content, template=before)

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
            open_beneath(self._opener, self._root_fd, parts, LIST_DIRECTORY) as directory,
        ):
            return sorted(name for name in list_names(directory) if is_addressable((*parts, name)))

    def scan(self, path: str = ".") -> list[FileStat]:
        parts = split(path)
        found: list[FileStat] = []
        with (
            self._translate_errors(path, "directory"),
            open_beneath(self._opener, self._root_fd, parts, LIST_DIRECTORY) as directory,
            os.scandir(directory) as entries,
        ):
            for entry in entries:
                if is_addressable((*parts, entry.name)):
                    with suppress(FileNotFoundError):  # it went away meanwhile
                        found.append(_file_stat((*parts, entry.name), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda entry: entry.path)

    def mkdir(self, path: str) -> None:
        parts = split(path)
        with self._translate_errors(path, "directory"), self._directory(parts, make=True):
            pass  # opening it says what is wrong if something else is in its place

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
        """The present moment; costs the same however much there is."""
        return self._undo_log.take_snapshot()

    def restore(self, snapshot: object, /) -> None:
        """Put back what was changed through this object since then."""
        for parts, before in self._undo_log.changes_since(snapshot):
            with self._translate_errors(join(parts), "file"):
                self._restore_entry(parts, before)
        self._undo_log.discard_after(snapshot)

    @contextmanager
    def _directory(self, parts: Parts, *, make: bool = False) -> Generator[int]:
        """The directory at `parts`, held open to work on its entries."""
        try:
            descriptor = self._opener(self._root_fd, parts, TRAVERSE_DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
            self._make_directories(parts)
            descriptor = self._opener(self._root_fd, parts, TRAVERSE_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_directories(self, parts: Parts) -> None:
        for length in range(1, len(parts) + 1):
            with self._directory(parts[: length - 1]) as above:
                if _lstat_or_none(parts[length - 1], above) is None:
                    self._undo_log.record(parts[:length], above)
                    with suppress(FileExistsError):
                        os.mkdir(parts[length - 1], dir_fd=above)

    def _write(
        self,
        parts: Parts,
        directory: int,
        content: Iterable[bytes],
        *,
        template: os.stat_result | None,
        modified_ns: int | None = None,
    ) -> None:
        """Write beside the file and rename onto it, so that nobody sees half of it."""
        self._undo_log.record(parts, directory)
        temporary = f".wink-{os.urandom(8).hex()}.tmp"
        # Here the mode can only lose bits, to the umask: a private file is private from its first byte.
        mode = 0o666 if template is None else template.st_mode & 0o777
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, mode, dir_fd=directory)
        try:
            try:
                if template is not None:
                    _copy_owner_and_mode(file, template)
                for chunk in content:
                    write_all(file, chunk)
                if modified_ns is not None:
                    os.utime(file, ns=(modified_ns, modified_ns))
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
        with self._directory(parts[:-1]) as above:
            self._undo_log.record(parts, above)
            os.rmdir(parts[-1], dir_fd=above)

    def _remove_tree(self, top: Parts) -> None:
        """Files from the top down, then the directories from the bottom up. Holds no descriptor per level."""
        directories: list[Parts] = []
        waiting = [top]
        while waiting:
            here = waiting.pop()
            directories.append(here)
            with open_beneath(self._opener, self._root_fd, here, LIST_DIRECTORY) as directory:
                with os.scandir(directory) as entries:
                    kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                for name, is_directory in kinds:
                    if is_directory:
                        waiting.append((*here, name))
                    else:
                        self._unlink((*here, name), directory)
        for here in reversed(directories):
            self._remove_directory(here)

    def _restore_entry(self, parts: Parts, before: PreviousState) -> None:
        with self._directory(parts[:-1], make=True) as directory:
            present = _lstat_or_none(parts[-1], directory)
            if present is not None and not _is_replaceable(present, before):
                try:
                    self._remove_directory(parts) if stat.S_ISDIR(present.st_mode) else self._unlink(parts, directory)
                except OSError as error:
                    if error.errno == errno.ENOTEMPTY and isinstance(before, Absent):
                        return  # somebody else put something there, and it is theirs
                    raise
                present = None
            if isinstance(before, SavedFile):
                self._write(
                    parts,
                    directory,
                    before.content,
                    template=before.stat_result,
                    modified_ns=before.stat_result.st_mtime_ns,
                )
            elif isinstance(before, SavedDirectory) and present is None:
                self._undo_log.record(parts, directory)
                os.mkdir(parts[-1], before.mode, dir_fd=directory)
                with open_beneath(self._opener, directory, parts[-1:], LIST_DIRECTORY) as made:
                    os.fchmod(made, before.mode)
            elif isinstance(before, SavedLink):
                self._undo_log.record(parts, directory)
                os.symlink(before.target, parts[-1], dir_fd=directory)

    @contextmanager
    def _translate_errors(self, path: str, expected: Literal["file", "directory"]) -> Generator[None]:
        """Say what the operating system found wrong, in the words of `faults`."""
        try:
            yield
        except FilesystemError:
            raise
        except OSError as error:
            raise self._to_filesystem_error(error, path, expected) from error

    def _to_filesystem_error(
        self, error: OSError, path: str, expected: Literal["file", "directory"]
    ) -> FilesystemError:
        if error.errno == errno.ENOENT:
            return missing_file(path)
        if error.errno == errno.ENOTEMPTY:
            return directory_not_empty(path)
        if error.errno == errno.ENAMETOOLONG:
            return InvalidPathError(f"invalid path {path!r}: too long for this machine", path=path)
        if error.errno in {errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            return self._component_error(path, expected)
        return FilesystemError(f"{path!r}: {error.strerror}", path=path)

    def _component_error(self, path: str, expected: Literal["file", "directory"]) -> FilesystemError:
        """Which part of the path is not what it must be. For the message only: the refusal stands already."""
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
                return not_a_directory(path, component=join(parts[:length]), what=describe_mode(mode))
        return FilesystemError(f"{path!r} was changed by somebody else meanwhile; try again", path=path)


def _lstat_or_none(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _require_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise not_a_file(path, describe_mode(found.st_mode))


def _require_writable(name: str, directory: int) -> None:
    """A rename needs no right to write to the file that it replaces; we ask for it all the same."""
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))
    except OSError as error:
        if error.errno != errno.ETXTBSY:  # a running program: replacing it is exactly how to change it
            raise


def _copy_owner_and_mode(file: int, template: os.stat_result) -> None:
    with suppress(PermissionError):
        os.fchown(file, template.st_uid, template.st_gid)
    os.fchmod(file, template.st_mode & 0o777)  # as when the kernel writes to a file: setuid and setgid go


def _is_replaceable(current: os.stat_result, before: PreviousState) -> bool:
    """Whether `before` can be put in place of what is there without removing it first."""
    if isinstance(before, SavedFile):
        return stat.S_ISREG(current.st_mode)
    return isinstance(before, SavedDirectory) and stat.S_ISDIR(current.st_mode)


def _file_stat(parts: Parts, found: os.stat_result) -> FileStat:
    is_dir = stat.S_ISDIR(found.st_mode)
    is_file = stat.S_ISREG(found.st_mode)
    modified_at = datetime.fromtimestamp(found.st_mtime, UTC)
    return FileStat(join(parts), found.st_size if is_file else 0, is_dir, modified_at, special=not (is_dir or is_file))
