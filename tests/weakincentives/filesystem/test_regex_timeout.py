from __future__ import annotations

from contextlib import suppress

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import InMemoryFilesystem, base
from weakincentives.filesystem.regex_timeout import RegexTimeout, compile_pattern


def test_catastrophic_backtracking_times_out():
    with pytest.raises(FilesystemError, match="timed out"):
        RegexTimeout(0.1).matches(compile_pattern("(a|a)+b\\1"), "a" * 60, full=False)


def test_timeout_is_shared_by_all_matches():
    timeout = RegexTimeout(0.0)
    with pytest.raises(FilesystemError, match="timed out"):
        timeout.matches(compile_pattern("(a|a)+b\\1"), "a" * 60, full=True)
    assert timeout.matches(compile_pattern("a"), "xax", full=False)


@pytest.mark.parametrize("wrong", ["(", "[", "a{2,1}", "(?P<x>", "\\"])
def test_invalid_pattern_is_an_error(wrong: str):
    with pytest.raises(FilesystemError, match="not a valid regular expression"):
        compile_pattern(wrong)


@pytest.mark.parametrize("pattern", ["*a" * 25 + "b", "**/a/" * 15 + "b"])
def test_glob_times_out(pattern: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "RegexTimeout", lambda: RegexTimeout(0.2))
    files = InMemoryFilesystem()
    files.write_text("a" * 60, "")
    files.write_text("a/" * 40 + "c", "")
    with suppress(FilesystemError):  # a result or an error, within the timeout
        assert files.glob(pattern) == []


def test_grep_times_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "RegexTimeout", lambda: RegexTimeout(0.2))
    files = InMemoryFilesystem()
    files.write_text("long", "a" * 60 + "!")
    with suppress(FilesystemError):
        assert files.grep("^(a+)+$") == []
