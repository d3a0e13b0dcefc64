"""A container's files, reached from outside by one directory descriptor.

The code inside can change the tree at any moment, so nothing is decided on a path string: every step is a descriptor,
no step follows a link, and whatever is neither file nor directory is refused.
"""

from __future__ import annotations

import contextlib
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

MOST_LISTED: Final = 10_000
_LONGEST_NAME: Final = 255
_DEEPEST: Final = 64
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_BLOCKING: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO must not wait for its other end

_UNFINISHED: Final = ".antwort-unfinished-"

Kind = Literal["file", "directory", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory, as it was when it was looked at."""

    path: str
    kind: Kind
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found, and whether there is more behind it."""

    entries: list[Entry]
    has_more: bool


def is_plain(name: str) -> bool:
    """A name that means the same everywhere: one component, no tricks, going in as coming out."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False  # bytes that are not text
    return (
        0 < length <= _LONGEST_NAME
        and name not in {".", ".."}
        and "\\" not in name
        and "/" not in name
        and (name.isprintable() or not any(map(_misleads, name)))
    )


def _misleads(character: str) -> bool:
    """Control characters, line ends and what turns the direction of writing; odd spaces and joined emoji are names."""
    kind = unicodedata.category(character)
    return (kind.startswith("C") and character != "\N{ZERO WIDTH JOINER}") or kind in {"Zl", "Zp"}


def parts(path: str) -> list[str]:
    """A relative path's components, or `BadPath`."""
    names = path.split("/")
    if path.endswith("/"):
        names = names[:-1]
    bad = next((name for name in names if not is_plain(name)), None)
    if bad is not None or not names or len(names) > _DEEPEST:
        message = f"{path!r} is not a plain relative path: no '..', no leading '/', no backslash or control character"
        raise BadPath(message)
    return names


class Draft:
    """A file on its way in, under a name that is never listed: it takes its place when it is whole, or is gone.

    Left as a context manager it does the one or the other. To be closed either way.
    """

    def __init__(self, tree: FileTree, path: str, directory: int, part: str, name: str, descriptor: int) -> None:
        self.path = path
        self.directory = directory
        self.part = part
        self.name = name
        self._tree = tree
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Add to it; a full quota is `TooLarge`."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                raise _refused(error, self.path) from error

    def close(self, *, whole: bool) -> None:
        """Put it in its place, or remove it."""
        try:
            if whole:
                self._tree.settle(self)
        except BaseException:
            whole = False
            raise
        finally:
            if not whole:
                self._tree.drop(self)
            os.close(self._descriptor)
            os.close(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(whole=kind is None)


class FileTree:
    """The directory `/mnt/data` of one container."""

    def __init__(self, places: list[int], uid: int | None) -> None:
        self._places = places
        self._uid = uid
        # A number of a descriptor that is closed may at once be another container's: look and use it in one step.
        self._closing = threading.Lock()

    def _open_root(self) -> int:
        with self._closing:
            if not self._places:
                message = "the container has ended"
                raise NotFound(message)
            return _duplicate(self._places[0])

    def close(self) -> None:
        with self._closing:
            while self._places:
                os.close(self._places.pop())

    def open_read(self, path: str) -> tuple[int, int]:
        """A descriptor of a regular file, and its size."""
        *above, name = parts(path)
        with self._as_owner(), self._walk(above) as directory:
            descriptor = _open(name, os.O_RDONLY | _NO_BLOCKING, directory, path)
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            message = f"{path!r} is not a regular file"
            raise BadPath(message)
        return descriptor, info.st_size

    def draft(self, path: str, mode: int = 0o644) -> Draft:
        """A new file, to be written; directories above are made, what is there stays until it is whole."""
        *above, name = parts(path)
        with self._as_owner():
            directory = self._open_directory(above, make=True)
            part = _UNFINISHED + secrets.token_hex(16)
            try:
                descriptor = _open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_BLOCKING, directory, path, mode)
            except BaseException:
                os.close(directory)
                raise
        return Draft(self, path, directory, part, name, descriptor)

    def settle(self, draft: Draft) -> None:
        """Put a draft in its place. A rename: what stands there may be a link, a FIFO or a file open elsewhere.

        Directories without a file in them give way: whoever is shown files alone could never remove them.
        """
        with self._as_owner():
            try:
                try:
                    os.rename(draft.part, draft.name, src_dir_fd=draft.directory, dst_dir_fd=draft.directory)
                except IsADirectoryError:
                    if not _is_hollow(draft.name, draft.directory, 0):
                        raise
                    _remove_hollow(draft.name, draft.directory, 0)
                    os.rename(draft.part, draft.name, src_dir_fd=draft.directory, dst_dir_fd=draft.directory)
            except OSError as error:
                raise _refused(error, draft.path) from error

    def drop(self, draft: Draft) -> None:
        """Remove a draft, if the code has not done so."""
        with self._as_owner(), contextlib.suppress(OSError):
            os.unlink(draft.part, dir_fd=draft.directory)

    def make_directory(self, path: str) -> None:
        with self._as_owner(), self._walk(parts(path), make=True):
            pass

    def read(self, path: str, limit: int) -> bytes:
        descriptor, size = self.open_read(path)
        with os.fdopen(descriptor, "rb") as file:
            if size > limit:
                message = f"{path!r} has {size} bytes, more than the {limit} allowed here"
                raise TooLarge(message)
            return file.read(limit)

    def write(self, path: str, data: bytes) -> None:
        with self.draft(path) as draft:
            draft.write(data)

    def stat(self, path: str) -> Entry:
        *above, name = parts(path)
        with self._as_owner(), self._walk(above) as directory:
            return _entry(path.rstrip("/"), _stat(name, directory, path))

    def list(self, below: str = "", *, limit: int = MOST_LISTED, after: str = "") -> Listing:
        """Files and directories below, in order, a directory before what is in it; links and odd names are left out.

        At most `limit` of them, and only what comes behind the path `after`: the last one listed asks for the rest.
        """
        prefix = f"{'/'.join(parts(below))}/" if below else ""
        if after and not after.startswith(prefix):
            raise BadPath(f"{after!r} is not below {below!r}: ask for what comes behind a path that was listed")
        behind = parts(after.removeprefix(prefix)) if after else []
        found: list[Entry] = []
        with self._as_owner():
            start = self._open_directory(parts(below)) if below else self._open_root()
            has_more = _fill(found, start, prefix, behind, limit)
        return Listing(found, has_more)

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        *above, name = parts(path)
        with self._as_owner(), self._walk(above) as directory:
            if stat.S_ISDIR(_stat(name, directory, path).st_mode):
                _remove_below(name, directory, 0)
            else:
                self._unlink(name, directory, path, must_exist=True)

    def move(self, source: str, target: str) -> None:
        """Rename within the tree; what stands at the target is replaced if it is a file."""
        *above, name = parts(source)
        *above_target, new_name = parts(target)
        with self._as_owner(), self._walk(above) as old, self._walk(above_target, make=True) as new:
            try:
                os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
            except FileNotFoundError:
                raise NotFound(f"no file {source!r}") from None
            except OSError as error:
                raise BadPath(f"cannot move {source!r} to {target!r}: {error.strerror}") from error

    def usage(self) -> int:
        """Bytes taken by the container's files, here and in its other writable places."""
        with self._closing:
            taken = [os.statvfs(place) for place in self._places]
        return sum((info.f_blocks - info.f_bfree) * info.f_frsize for info in taken)

    @contextlib.contextmanager
    def _as_owner(self) -> Generator[None]:
        """As root, touch the tree as its owner: root's own powers over files are switched off meanwhile.

        The file-system identity is each thread's own, and the kernel drops the capabilities that override
        permissions together with it.
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

    @contextlib.contextmanager
    def _walk(self, names: list[str], *, make: bool = False) -> Generator[int]:
        directory = self._open_directory(names, make=make)
        try:
            yield directory
        finally:
            os.close(directory)

    def _open_directory(self, names: list[str], *, make: bool = False) -> int:
        directory = self._open_root()
        for name in names:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=directory)
                below = _open(name, _DIRECTORY, directory, "/".join(names))
            except OSError as error:
                raise _refused(error, "/".join(names)) from error
            finally:
                os.close(directory)
            directory = below
        return directory

    @staticmethod
    def _unlink(name: str, directory: int, path: str, *, must_exist: bool = False) -> None:
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            if must_exist:
                raise NotFound(f"no file {path!r}") from None
        except OSError as error:
            raise BadPath(f"{path!r}: {error.strerror}") from error


def _refused(error: OSError, path: str) -> Exception:
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no file {path!r}")
    if error.errno in {28, 122}:  # ENOSPC, EDQUOT
        return TooLarge(f"no room for {path!r}: the container's disk or file quota is full")
    return BadPath(f"{path!r}: {error.strerror}")


def _open(name: str, flags: int, directory: int, path: str, mode: int = 0) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=directory)
    except OSError as error:
        raise _refused(error, path) from error


def _duplicate(descriptor: int) -> int:
    # Through openat rather than dup: a duplicate would share its reading position with every other listing.
    return os.open(".", _DIRECTORY, dir_fd=descriptor)


def _stat(name: str, directory: int, path: str) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        raise _refused(error, path) from error


def _entry(path: str, info: os.stat_result) -> Entry:
    kind: Kind = "file" if stat.S_ISREG(info.st_mode) else "directory" if stat.S_ISDIR(info.st_mode) else "other"
    return Entry(path, kind, info.st_size if kind == "file" else 0, info.st_mtime)


def _fill(found: list[Entry], directory: int, prefix: str, after: list[str], limit: int, depth: int = 0) -> bool:
    """Add what comes behind `after`, up to the limit; answers whether there is more. Closes the directory."""
    try:
        taken = limit - len(found) + 2  # one to know that there is more, and one that is `after` itself
        names = _names(directory, after[0] if after else "", taken)
        for name in names:
            if len(found) >= limit:
                return True
            past = not after or name != after[0]
            try:
                entry = _entry(prefix + name, os.stat(name, dir_fd=directory, follow_symlinks=False))
                descend = entry.kind == "directory" and depth < _DEEPEST
                below = os.open(name, _DIRECTORY, dir_fd=directory) if descend else -1
            except OSError:
                continue  # gone or replaced since it was listed
            if past and entry.kind != "other":
                found.append(entry)
            if below >= 0 and _fill(found, below, f"{entry.path}/", [] if past else after[1:], limit, depth + 1):
                return True
        return len(names) == taken
    finally:
        os.close(directory)


def _names(directory: int, start: str, most: int) -> list[str]:
    """The first so many names of files and directories, from `start` on, in order.

    However many there are, no more than that is kept. Names come from hostile code: odd ones are not handed on.
    """
    with os.scandir(directory) as items:
        return heapq.nsmallest(
            most,
            (
                item.name
                for item in items
                if item.name >= start
                and is_plain(item.name)
                and not item.name.startswith(_UNFINISHED)
                and (item.is_file(follow_symlinks=False) or item.is_dir(follow_symlinks=False))
            ),
        )


def _is_hollow(name: str, parent: int, depth: int) -> bool:
    """Whether there is nothing in a directory but directories."""
    if depth > _DEEPEST:
        return False
    directory = _open(name, _DIRECTORY, parent, name)
    try:
        with os.scandir(directory) as entries:
            return all(
                one.is_dir(follow_symlinks=False) and _is_hollow(one.name, directory, depth + 1) for one in entries
            )
    finally:
        os.close(directory)


def _remove_hollow(name: str, parent: int, depth: int) -> None:
    """Remove it, from the bottom up. What code has put into it meanwhile, or how deep, makes that fail, and stays."""
    directory = _open(name, _DIRECTORY, parent, name)
    try:
        for child in os.listdir(directory) if depth <= _DEEPEST else ():  # noqa: PTH208 - a descriptor has no pathlib
            _remove_hollow(child, directory, depth + 1)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def _remove_below(name: str, parent: int, depth: int) -> None:
    if depth > 2 * _DEEPEST:  # each level holds a descriptor
        message = "the directory is too deep to remove; end the container instead"
        raise TooLarge(message)
    directory = _open(name, _DIRECTORY, parent, name)
    try:
        for child in os.listdir(directory):  # noqa: PTH208 - a descriptor has no pathlib
            try:
                os.unlink(child, dir_fd=directory)
            except IsADirectoryError:
                _remove_below(child, directory, depth + 1)
    except OSError as error:
        raise _refused(error, name) from error
    finally:
        os.close(directory)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return  # gone already
    except OSError as error:  # the code fills it as fast as we empty it
        raise _refused(error, name) from error
