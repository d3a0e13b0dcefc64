from __future__ import annotations

import pytest

from weakincentives.errors import FilesystemError, MissingFileError
from weakincentives.filesystem import InMemoryFilesystem, base
from weakincentives.testing.filesystem import tree


class Flaky(InMemoryFilesystem):
    """A filesystem in which some listed files are unreadable or missing."""

    refused = ("locked", "locked.txt")

    def read_bytes(self, path):
        if path in self.refused:
            raise FilesystemError("no", path=path)
        return super().read_bytes(path)

    def list_dir(self, path="."):
        if path in self.refused:
            raise MissingFileError("gone", path=path)
        return super().list_dir(path)


@pytest.fixture
def flaky():
    files = Flaky()
    for path in ("a.txt", "locked/b.txt", "locked.txt", "z/c.txt"):
        files.write_text(path, "needle")
    return files


def test_search_skips_unreadable_files(flaky):
    assert [match.path for match in flaky.grep("needle")] == ["a.txt", "z/c.txt"]
    assert flaky.glob("**/*.txt") == ["a.txt", "locked.txt", "z/c.txt"]


def test_search_in_an_unreadable_file_raises(flaky):
    with pytest.raises(FilesystemError):
        flaky.grep("needle", "locked.txt")
    with pytest.raises(MissingFileError):
        list(flaky.walk("locked"))


def test_glob_starts_at_its_literal_prefix():
    looked_at = []

    class Watched(InMemoryFilesystem):
        def list_dir(self, path="."):
            looked_at.append(path)
            return super().list_dir(path)

    files = Watched()
    files.write_text("src/a.py", "")
    files.write_text("node_modules/b.py", "")

    assert files.glob("src/**/*.py") == ["src/a.py"]
    assert looked_at == ["src"]


def test_grep_stops_at_max_matches():
    files = InMemoryFilesystem()
    files.write_text("a", "x\n" * 10)

    assert len(files.grep("x", max_matches=3)) == 3
    assert files.grep("x", max_matches=0) == []


def test_files_above_the_size_limit_are_not_searched(monkeypatch):
    monkeypatch.setattr(base, "MAX_SEARCHED_BYTES", 10)
    files = InMemoryFilesystem()
    files.write_text("huge", "needle" * 2)
    files.write_text("small", "needle")

    assert [match.path for match in files.grep("needle")] == ["small"]
    with pytest.raises(FilesystemError, match="too large"):
        files.grep("needle", "huge")


def test_lines_end_at_line_feeds_only():
    files = InMemoryFilesystem()
    files.write_text("a", "form\x0cfeed\u2028and\rmore\r\nneedle")

    (match,) = files.grep("needle")
    assert match.line_number == 2


def test_invalid_regular_expression_is_quoted_in_the_error():
    with pytest.raises(FilesystemError, match=r"'a\(' is not a valid regular expression: missing \)"):
        InMemoryFilesystem().grep("a(")


def test_tree_of_the_conformance_suite_contains_all_entries():
    files = InMemoryFilesystem()
    files.write_text("a/b", "c")

    assert tree(files) == {"a": None, "a/b": b"c"}
