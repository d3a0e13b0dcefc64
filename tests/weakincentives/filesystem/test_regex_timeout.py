from __future__ import annotations

from contextlib import suppress

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import InMemoryFilesystem, base
from weakincentives.filesystem.regex_timeout import RegexTimeout, compile_pattern


def test_a_match_that_would_take_for_ever_is_given_up():
    with pytest.raises(FilesystemError, match="timed out"):
        RegexTimeout(0.1).matches(compile_pattern("(a|a)+b\\1"), "a" * 60, whole=False)


def test_patience_is_for_all_matches_together():
    patience = RegexTimeout(0.0)
    with pytest.raises(FilesystemError, match="timed out"):
        patience.matches(compile_pattern("(a|a)+b\\1"), "a" * 60, whole=True)
    assert patience.matches(compile_pattern("a"), "xax", whole=False)


@pytest.mark.parametrize("wrong", ["(", "[", "a{2,1}", "(?P<x>", "\\"])
def test_what_is_no_pattern_is_said_to_be_none(wrong: str):
    with pytest.raises(FilesystemError, match="not a valid regular expression"):
        compile_pattern(wrong)


@pytest.mark.parametrize("pattern", ["*a" * 25 + "b", "**/a/" * 15 + "b"])
def test_a_glob_cannot_hang_a_filesystem(pattern: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "RegexTimeout", lambda: RegexTimeout(0.2))
    files = InMemoryFilesystem()
    files.write_text("a" * 60, "")
    files.write_text("a/" * 40 + "c", "")
    with suppress(FilesystemError):  # an answer or a refusal, but soon
        assert files.glob(pattern) == []


def test_a_grep_cannot_hang_a_filesystem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "RegexTimeout", lambda: RegexTimeout(0.2))
    files = InMemoryFilesystem()
    files.write_text("long", "a" * 60 + "!")
    with suppress(FilesystemError):
        assert files.grep("^(a+)+$") == []
