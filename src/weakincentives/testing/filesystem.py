"""Conformance suite for `Filesystem` implementations. Needs no test framework.

pytest collects the tests from a subclass that creates an empty filesystem; with `unittest.TestCase` as a second base,
so does unittest.

    from weakincentives.testing import FilesystemConformance

    class TestMyFilesystem(FilesystemConformance):
        def make(self):
            return MyFilesystem()

Failures are `AssertionError`s with the actual and the expected value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar, cast
from unittest import SkipTest

from weakincentives.errors import (
    FilesystemError,
    InvalidPathError,
    MissingFileError,
    NotADirectoryPathError,
    NotAFileError,
)
from weakincentives.filesystem.protocol import FileStat, Filesystem, GrepMatch
from weakincentives.resources import Snapshotable

E = TypeVar("E", bound=Exception)

INVALID_PATHS = (
    *("..", "../x", "a/../../x", "./../x"),
    *("/", "/etc/passwd", "//x"),
    *("a\\b", "..\\x"),
    *("a\0b", "\0", "a/\0"),
    *("\udcff", "a/\ud800"),
    *("x" * 256, "é" * 128, "a/" + "x" * 256 + "/b", "x/" * 2048 + "x"),
)
"""Invalid paths, which every method must reject before it accesses the filesystem."""


class FilesystemConformance:
    """Subclass it and implement `make`, which returns a new, empty filesystem."""

    snapshots: bool = True
    """Whether `snapshot` and `restore` are tested; set it to False for a filesystem without them."""

    def make(self) -> Filesystem:
        """A new, empty filesystem; called at least once per test."""
        raise NotImplementedError("define make() so that it returns a new, empty Filesystem")

    # ── Reading and writing ───────────────────────────────────────────────────────────────────────────────────────────

    def test_is_a_filesystem(self) -> None:
        # By attribute: since Python 3.12, `isinstance` with a protocol ignores attributes from `__getattr__`.
        files = self.make()
        missing = [name for name in vars(Filesystem) if not name.startswith("_") and not hasattr(files, name)]
        check(not missing, f"make() returned {files!r}, which lacks methods of Filesystem: {', '.join(missing)}")

    def test_bytes_round_trip(self) -> None:
        files = self.make()
        for content in (b"", b"\0\xff\r\n", bytes(range(256)) * 1000):
            files.write_bytes("file.bin", content)
            equal(files.read_bytes("file.bin"), content)
            equal(files.read("file.bin"), content)
            files.write("other.bin", content)
            equal(files.read_bytes("other.bin"), content)

    def test_text_round_trip(self) -> None:
        files = self.make()
        for content in ("", "one\r\ntwo\rthree\n", "\ufeffgrüße 🎈 \u2028\x0c end"):
            files.write_text("file.txt", content)
            equal(files.read_text("file.txt"), content)
            equal(files.read_bytes("file.txt"), content.encode())

    def test_text_in_another_encoding(self) -> None:
        files = self.make()
        files.write_text("file.txt", "grüße", encoding="latin-1")
        equal(files.read_bytes("file.txt"), b"gr\xfc\xdfe")
        equal(files.read_text("file.txt", encoding="latin-1"), "grüße")

    def test_invalid_utf8_raises_unicode_decode_error(self) -> None:
        files = self.make()
        files.write_bytes("file.bin", b"\xff\xfe\xfa")
        raises(UnicodeDecodeError, lambda: files.read_text("file.bin"))

    def test_write_replaces_the_content(self) -> None:
        files = self.make()
        files.write_text("a", "long content")
        files.write_text("a", "short")
        equal(files.read_text("a"), "short")

    def test_write_creates_directories(self) -> None:
        files = self.make()
        files.write_text("one/two/three.txt", "3")
        equal(files.list_dir("one"), ["two"])
        equal(files.list_dir("one/two"), ["three.txt"])

    def test_write_copies_a_mutable_buffer(self) -> None:
        files = self.make()
        content = bytearray(b"before")
        files.write_bytes("a", cast("bytes", content))
        content[:] = b"after!"
        equal(files.read_bytes("a"), b"before")

    def test_read_errors(self) -> None:
        files = _with_files(self.make(), "dir/file")
        raises(MissingFileError, lambda: files.read_bytes("nothing"))
        raises(MissingFileError, lambda: files.read_bytes("dir/nothing"))
        raises(MissingFileError, lambda: files.read_bytes("nothing/at/all"))
        raises(NotAFileError, lambda: files.read_bytes("dir"))
        raises(NotAFileError, lambda: files.read_text("."))
        raises(NotADirectoryPathError, lambda: files.read_bytes("dir/file/below"))
        raises(NotADirectoryPathError, lambda: files.read_bytes("dir/file/far/below"))

    def test_write_errors(self) -> None:
        files = _with_files(self.make(), "dir/file")
        raises(NotAFileError, lambda: files.write_text("dir", "x"))
        raises(NotAFileError, lambda: files.write_text(".", "x"))
        raises(NotADirectoryPathError, lambda: files.write_text("dir/file/below", "x"))
        raises(NotADirectoryPathError, lambda: files.write_text("dir/file/far/below", "x"))
        equal(tree(files), {"dir": None, "dir/file": b"dir/file"})

    # ── Paths ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_every_method_rejects_invalid_paths(self) -> None:
        files = _with_files(self.make(), "a", "b/c")
        before = tree(files)
        for path in INVALID_PATHS:
            for call in _calls(files, path):
                error = raises(InvalidPathError, call)
                equal(error.path, path)
        equal(tree(files), before)

    def test_paths_are_normalised(self) -> None:
        files = _with_files(self.make(), "a/b")
        for path in ("a/b", "./a/b", "a//b", "a/./b", "a/b/", "a/x/../b", "x/../a/b"):
            equal(files.read_bytes(path), b"a/b")
            equal(files.stat(path).path, "a/b")

    def test_paths_of_the_root_are_normalised(self) -> None:
        files = _with_files(self.make(), "a")
        for path in (".", "", "./", "a/.."):
            equal(files.list_dir(path), ["a"])
            found = files.stat(path)
            equal((found.path, found.is_dir, found.is_file), (".", True, False))

    def test_unusual_names(self) -> None:
        files = self.make()
        names = [" ", "-rf", "...", ".hidden", "a b", "new\nline", "*", "[x]", "ünï-日本-🎈", "x" * 255, "é" * 127, "~"]
        for name in names:
            files.write_text(f"names/{name}", name)
        equal(files.list_dir("names"), sorted(names))
        for name in names:
            equal(files.read_text(f"names/{name}"), name)

    def test_deep_directories(self) -> None:
        files = _with_files(self.make(), "deep/" * 60 + "file")
        equal(files.glob("**"), ["deep/" * 60 + "file"])

    # ── Metadata ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_exists_is_file_and_is_dir(self) -> None:
        files = _with_files(self.make(), "dir/file")
        kinds = {
            path: (files.exists(path), files.is_file(path), files.is_dir(path))
            for path in (".", "dir", "dir/file", "nothing", "dir/nothing", "dir/file/below", "nothing/at/all")
        }
        directory, file, nothing = (True, False, True), (True, True, False), (False, False, False)
        expected = {".": directory, "dir": directory, "dir/file": file}
        equal(kinds, {path: expected.get(path, nothing) for path in kinds})

    def test_stat(self) -> None:
        files = self.make()
        files.write_text("dir/file", "grüße")
        found = files.stat("dir/file")
        check(abs(datetime.now(UTC) - found.modified_at) < timedelta(hours=1), f"modified at {found.modified_at}?")
        equal(found, FileStat("dir/file", 7, is_dir=False, modified_at=found.modified_at))
        found = files.stat("dir")
        equal(found, FileStat("dir", 0, is_dir=True, modified_at=found.modified_at))
        raises(MissingFileError, lambda: files.stat("nothing"))
        raises(NotADirectoryPathError, lambda: files.stat("dir/file/below"))

    def test_list_dir(self) -> None:
        files = _with_files(self.make(), "b", "a", "dir/c", "dir/sub/d", "B")
        equal(files.list_dir(), ["B", "a", "b", "dir"])
        equal(files.list_dir("dir"), ["c", "sub"])
        raises(MissingFileError, lambda: files.list_dir("nothing"))
        raises(NotADirectoryPathError, lambda: files.list_dir("a"))

    def test_empty_root(self) -> None:
        files = self.make()
        equal(files.list_dir(), [])
        equal(files.glob("**"), [])
        equal(files.grep("x"), [])
        equal([(path, len(directories), len(names)) for path, directories, names in files.walk()], [(".", 0, 0)])

    def test_walk(self) -> None:
        files = _with_files(self.make(), "z", "a/b/c", "a/y", "a/x", "m/n")
        everything: list[tuple[str, list[str], list[str]]] = [
            (".", ["a", "m"], ["z"]),
            ("a", ["b"], ["x", "y"]),
            ("a/b", [], ["c"]),
            ("m", [], ["n"]),
        ]
        equal(list(files.walk()), everything)
        equal(list(files.walk("a")), everything[1:3])
        raises(MissingFileError, lambda: list(files.walk("nothing")))
        raises(NotADirectoryPathError, lambda: list(files.walk("z")))

    def test_walk_skips_directories_that_the_caller_removes(self) -> None:
        visited: list[str] = []
        for path, directories, _ in _with_files(self.make(), "a/b/c", "m/n").walk():
            visited.append(path)
            if path == ".":
                directories.remove("a")
        equal(visited, [".", "m"])

    # ── Search ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_glob(self) -> None:
        files = _with_files(
            self.make(), "main.py", "README.md", ".env", "src/app.py", "src/lib/x.py", "src/lib/y.ts", "[x]"
        )
        expected = {
            "*": [".env", "README.md", "[x]", "main.py"],
            "*.py": ["main.py"],
            "**/*.py": ["main.py", "src/app.py", "src/lib/x.py"],
            "src/*.py": ["src/app.py"],
            "./src//*.py": ["src/app.py"],
            "src/**": ["src/app.py", "src/lib/x.py", "src/lib/y.ts"],
            "src/**/*.py": ["src/app.py", "src/lib/x.py"],
            "**/lib/**": ["src/lib/x.py", "src/lib/y.ts"],
            "**/?.{py,ts}": ["src/lib/x.py", "src/lib/y.ts"],
            "{main,src/app}.py": ["main.py", "src/app.py"],
            "**/[xy].py": ["src/lib/x.py"],
            "**/[!x].*": ["src/lib/y.ts"],
            "**/[w-y].py": ["src/lib/x.py"],
            "[[]x]": ["[x]"],
            "README.md": ["README.md"],
            "src": [],
            "nothing/*": [],
            "main.py/*": [],
        }
        equal({pattern: files.glob(pattern) for pattern in expected}, expected)

    def test_grep(self) -> None:
        files = self.make()
        files.write_text("a.txt", "one\nTwo\r\nthree two\n")
        files.write_text("src/b.py", "two = 2")
        files.write_bytes("binary", b"two\0")
        files.write_bytes("latin", b"two \xff")
        found = [GrepMatch("a.txt", 3, "three two"), GrepMatch("src/b.py", 1, "two = 2")]
        equal(files.grep("two"), found)
        equal(files.grep("two", "src"), found[1:])
        equal(files.grep("two", "a.txt"), found[:1])
        equal(files.grep("two", glob="*.py"), found[1:])
        equal(files.grep("two", glob="src/*"), found[1:])
        equal(files.grep("two", glob="*/*.txt"), [])
        equal(files.grep("two", max_matches=1), found[:1])
        equal(files.grep("^two$", ignore_case=True), [GrepMatch("a.txt", 2, "Two")])
        equal(files.grep(r"t[wh]\w+ t"), found[:1])
        raises(FilesystemError, lambda: files.grep("("))
        raises(MissingFileError, lambda: files.grep("two", "nothing"))

    # ── Create and delete ─────────────────────────────────────────────────────────────────────────────────────────────

    def test_mkdir(self) -> None:
        files = _with_files(self.make(), "file")
        files.mkdir("a/b")
        files.mkdir("a/b")
        files.mkdir(".")
        equal(tree(files), {"a": None, "a/b": None, "file": b"file"})
        raises(NotADirectoryPathError, lambda: files.mkdir("file"))
        raises(NotADirectoryPathError, lambda: files.mkdir("file/below"))

    def test_delete(self) -> None:
        files = _with_files(self.make(), "dir/a", "dir/b")
        files.delete("dir/a")
        equal(tree(files), {"dir": None, "dir/b": b"dir/b"})
        raises(MissingFileError, lambda: files.delete("dir/a"))
        raises(MissingFileError, lambda: files.delete("nothing", recursive=True))
        raises(NotADirectoryPathError, lambda: files.delete("dir/b/below"))
        raises(FilesystemError, lambda: files.delete("dir"))
        raises(FilesystemError, lambda: files.delete("."))
        raises(FilesystemError, lambda: files.delete("dir/..", recursive=True))
        files.delete("dir/b")
        equal(tree(files), {"dir": None})
        files.delete("dir")
        equal(tree(files), {})

    def test_delete_recursively(self) -> None:
        files = _with_files(self.make(), "keep/a", "dir/a", "dir/sub/b", "dir/sub/deep/c")
        files.mkdir("dir/empty")
        files.delete("dir", recursive=True)
        equal(tree(files), {"keep": None, "keep/a": b"keep/a"})
        files.delete("keep/a", recursive=True)
        equal(tree(files), {"keep": None})

    # ── Snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_restore_undoes_all_changes(self) -> None:
        files = _with_files(self.make(), "kept", "changed", "gone", "dir/gone", "dir/sub/gone")
        files.mkdir("empty")
        snapshotable = self._snapshotable(files)
        before = tree(files)
        snapshot = snapshotable.snapshot()
        for _ in range(2):
            files.write_text("changed", "1")
            files.write_text("changed", "2")
            files.write_text("new/deep/file", "3")
            files.delete("gone")
            files.write_text("gone/is/now/a/directory", "4")
            files.delete("dir", recursive=True)
            files.write_text("dir", "5")
            files.delete("empty")
            files.mkdir("made")
            snapshotable.restore(snapshot)
            equal(tree(files), before)

    def test_snapshots_are_independent(self) -> None:
        files = self.make()
        snapshotable = self._snapshotable(files)
        states: list[tuple[object, dict[str, bytes | None]]] = []
        for number in range(4):
            files.write_text("file", str(number))
            files.write_text(f"dir{number}/file", str(number))
            states.append((snapshotable.snapshot(), tree(files)))
        for number in (2, 0, 3, 1, 1, 3):
            snapshot, expected = states[number]
            snapshotable.restore(snapshot)
            equal(tree(files), expected)
            files.write_text("file", "again")
            files.delete("dir0", recursive=True)
        snapshotable.restore(states[3][0])
        equal(tree(files), states[3][1])

    def test_snapshot_of_another_filesystem_is_rejected(self) -> None:
        first, second = self.make(), self.make()
        snapshot = self._snapshotable(first).snapshot()
        raises(FilesystemError, lambda: self._snapshotable(second).restore(snapshot))
        raises(FilesystemError, lambda: self._snapshotable(second).restore(None))

    def _snapshotable(self, files: Filesystem) -> Snapshotable:
        if not self.snapshots:
            raise SkipTest("this filesystem has no snapshots")
        check(isinstance(files, Snapshotable), f"{files!r} has no snapshot() and restore(); set `snapshots = False`")
        return cast("Snapshotable", files)


def tree(files: Filesystem) -> dict[str, bytes | None]:
    """All paths with their content, None for directories."""
    found: dict[str, bytes | None] = {}
    for path, directories, names in files.walk():
        prefix = "" if path == "." else f"{path}/"
        found |= {prefix + name: None for name in directories}
        found |= {prefix + name: files.read_bytes(prefix + name) for name in names}
    return found


def check(condition: bool, message: str) -> None:  # noqa: FBT001 — the only argument that it can be
    """Raise `AssertionError` if the condition is false, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def equal(actual: object, expected: object) -> None:
    """Raise `AssertionError` if the values differ."""
    check(actual == expected, f"\n  got      {actual!r}\n  expected {expected!r}")


def raises(kind: type[E], call: Callable[[], object]) -> E:
    """The exception of type `kind` that the call must raise."""
    try:
        value = call()
    except kind as error:
        return error
    raise AssertionError(f"returned {value!r}, expected {kind.__name__}")


def _with_files(files: Filesystem, *paths: str) -> Filesystem:
    for path in paths:
        files.write_text(path, path)
    return files


def _calls(files: Filesystem, path: str) -> list[Callable[[], object]]:
    readers = (files.read_bytes, files.read_text, files.read, files.exists, files.is_file, files.is_dir, files.stat)
    others = (files.list_dir, files.glob, files.mkdir, files.delete)
    return [
        *(partial(method, path) for method in (*readers, *others)),
        lambda: files.write_bytes(path, b""),
        lambda: files.write_text(path, ""),
        lambda: files.write(path, b""),
        lambda: [*files.walk(path)],
        lambda: files.grep("x", path),
        lambda: files.delete(path, recursive=True),
    ]
