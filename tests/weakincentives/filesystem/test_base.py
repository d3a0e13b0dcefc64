from __future__ import annotations

import pytest

from weakincentives.errors import FilesystemError, MissingFileError
from weakincentives.filesystem import InMemoryFilesystem, base
from weakincentives.testing.filesystem import tree


class Flaky(InMemoryFilesystem):
    """Some of what is listed cannot be read, or is gone again."""

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


def test_a_search_goes_on_past_what_cannot_be_read(flaky):
    assert [match.path for match in flaky.grep("needle")] == ["a.txt", "z/c.txt"]
    assert flaky.glob("**/*.txt") == ["a.txt", "locked.txt", "z/c.txt"]


def test_what_was_asked_for_by_name_must_be_readable(flaky):
    with pytest.raises(FilesystemError):
        flaky.grep("needle", "locked.txt")
    with pytest.raises(MissingFileError):
        list(flaky.walk("locked"))


def test_a_glob_does_not_look_where_it_cannot_match():
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


def test_a_grep_stops_when_it_has_enough():
    files = InMemoryFilesystem()
    files.write_text("a", "x\n" * 10)

    assert len(files.grep("x", max_matches=3)) == 3
    assert files.grep("x", max_matches=0) == []


def test_a_huge_file_is_not_searched(monkeypatch):
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


def test_a_bad_expression_is_quoted():
    with pytest.raises(FilesystemError, match=r"'a\(' is not a valid regular expression: missing \)"):
        InMemoryFilesystem().grep("a(")


def test_what_the_suite_calls_a_tree_is_everything():
    files = InMemoryFilesystem()
    files.write_text("a/b", "c")

    assert tree(files) == {"a": None, "a/b": b"c"}
