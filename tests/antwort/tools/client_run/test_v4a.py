from __future__ import annotations

import difflib

import pytest
from agents import apply_diff
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.client_run.v4a import MAX_DIFF, MAX_PATH, BadPatch, FilePatch, read_operation

OLD = "one\ntwo\nthree\n"
UPDATE = "@@\n one\n-two\n+TWO\n three\n"


def updated(diff: str, path: str = "a.txt") -> str:
    operation = read_operation("update_file", path, diff)
    assert operation.diff is not None
    return operation.diff


def created(diff: str) -> str:
    operation = read_operation("create_file", "a.txt", diff)
    assert operation.diff is not None
    return operation.diff


def problem(kind: str | None, path: str | None, diff: str | None) -> str:
    with pytest.raises(BadPatch) as caught:
        read_operation(kind, path, diff)
    return str(caught.value)


@pytest.mark.parametrize(
    "diff",
    [
        UPDATE,
        UPDATE.removesuffix("\n"),
        "-two\n+TWO\n",
        "@@ one\n-two\n+TWO",
        "@@ class A\n@@     def b(self):\n-two\n+TWO",
        "@@\n-two\n\n+TWO\n@@ three\n+four",
        "@@\n three\n+four\n*** End of File\n",
        "@@\r\n-two\r\n+TWO\r\n",
        "@@  indented anchor \n-two",
        "@@\n--- two\n+++ two",
        "+@@\n+*** End of File",
        " *** Begin Patch\n-two\n *** End Patch\n",
    ],
)
def test_a_valid_change_stays_as_it_is(diff):
    assert updated(diff) == diff


@pytest.mark.parametrize("diff", ["", "+one\n+two\n", "+one", "+\n+", "+@@ -1 +1 @@\n+*** End Patch\n", "+a\r\n+b\r\n"])
def test_a_valid_new_file_stays_as_it_is(diff):
    assert created(diff) == diff


def test_a_deletion_has_no_diff():
    assert read_operation("delete_file", " a.txt ", None) == FilePatch("delete_file", "a.txt")
    assert read_operation("delete_file", "a.txt", "-gone") == FilePatch("delete_file", "a.txt")


@pytest.mark.parametrize(
    "given, expected",
    [
        (f"```diff\n{UPDATE}```\n", UPDATE),
        (f"*** Begin Patch\n*** Update File: a.txt\n{UPDATE}*** End Patch\n", UPDATE),
        (f"\n*** Begin Patch\n*** Update File: ./a.txt\n{UPDATE}*** End Patch", UPDATE),
        (f"*** Update File: a.txt\n{UPDATE}", UPDATE),
        (f"*** Begin Patch\n{UPDATE}*** End Patch", UPDATE),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n", UPDATE),
        ("--- a.txt\t2026-01-01\n+++ a.txt\t2026-01-02\n@@ -1 +1 @@ def f(\n-two\n+TWO\n", "@@\n-two\n+TWO\n"),
        ("diff --git a/a.txt b/a.txt\nindex 1..2 100644\n--- a/a.txt\n+++ b/a.txt\n@@ -2 +2 @@\n-two\n", "@@\n-two\n"),
        ("@@\n-two\n\\ No newline at end of file\n+TWO\n\\ No newline at end of file\n", "@@\n-two\n+TWO\n"),
        ("-one\n@@\n\n\\ No newline at end of file", "-one\n@@\n\n"),
        ("@@class A:\n-two\n", "@@ class A:\n-two\n"),
        ("@@ \n-two\n", "@@\n-two\n"),
        ("@@\n-two\n*** End of File\n\n\n", "@@\n-two\n*** End of File\n"),
    ],
)
def test_wrappers_of_a_change_are_removed(given, expected):
    assert updated(given) == expected


@pytest.mark.parametrize(
    "given, expected",
    [
        ("```\n+one\n```", "+one\n"),
        ("*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch", "+one\n"),
        ("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n\\ No newline at end of file\n", "+one\n"),
    ],
)
def test_wrappers_of_a_new_file_are_removed(given, expected):
    assert created(given) == expected


def test_an_envelope_may_say_what_the_call_does_not():
    patch = "*** Begin Patch\n*** Update File: src/a.py\n-one\n+two\n*** End Patch\n"

    assert read_operation(None, None, patch) == FilePatch("update_file", "src/a.py", "-one\n+two\n")
    assert read_operation(None, None, "*** Delete File: a.py") == FilePatch("delete_file", "a.py")


@pytest.mark.parametrize(
    "diff, message",
    [
        ("one\n", "line 1 of the diff is 'one': it must begin with ' ' (context), '-' (removed), '+' (added) or '@@'"),
        ("@@\n-two\nthree", "line 3 of the diff is 'three': it must begin with"),
        ("", "the diff changes nothing"),
        ("@@\n one\n two", "the diff changes nothing"),
        ("@@", "line 1 of the diff is '@@': this hunk has no lines"),
        ("@@\n-two\n@@ three\n", "line 3 of the diff is '@@ three': this hunk has no lines"),
        ("*** End of File", "there must be lines of a hunk before it"),
        ("@@\n-a\n*** End of File\n@@\n-b", "'*** End of File' must be the last line"),
        ("-a\n*** Move to: b.txt", "a file cannot be renamed: create the new file, and delete the old one"),
        ("-a\n*** Nonsense", "the only such line is '*** End of File'"),
        ("*** Update File: a.txt\n-a\n*** Update File: b.txt\n-b", "make one call for each file"),
        ("*** Begin Patch\n-a\n*** Update File: a.txt\n*** End Patch", "must be the first line behind"),
        ("*** Update File: b.txt\n-a", "the diff says update_file 'b.txt', but the call says update_file 'a.txt'"),
        ("*** Add File: a.txt\n+a", "the diff says create_file 'a.txt', but the call says update_file 'a.txt'"),
        ("--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-a\n+b", "the diff is of 'a/b.txt', but the call is for 'a.txt'"),
        ("diff --git a/a.txt b/a.txt\n", "line 1 of the diff is 'diff --git"),
        ("x" * 200, f"line 1 of the diff is '{'x' * 80}…'"),
        ("+" * (MAX_DIFF + 1), f"more than {MAX_DIFF} characters"),
    ],
)
def test_a_broken_change_is_refused_with_the_line(diff, message):
    assert message in problem("update_file", "a.txt", diff)


@pytest.mark.parametrize("diff", ["one", "+one\n two\n", "+one\n\n+two", "@@\n+one", "+one\n@@ -1 +1 @@\n+two"])
def test_a_new_file_has_added_lines_only(diff):
    assert "in a new file every line must begin with '+'" in problem("create_file", "a.txt", diff)


@pytest.mark.parametrize(
    "kind, path, diff, message",
    [
        (None, "a", "-a", "'type' is missing"),
        ("rename_file", "a", "-a", "'type' is 'rename_file': it must be one of create_file, update_file, delete_file"),
        ("update_file", None, "-a", "'path' is missing"),
        ("update_file", "  ", "-a", "'path' is missing"),
        ("update_file", "a\nb", "-a", "'path' contains a control character"),
        ("update_file", "a" * (MAX_PATH + 1), "-a", "'path' has more than"),
        ("update_file", "a", None, "'diff' is missing"),
        ("create_file", "a", None, "'diff' is missing"),
    ],
)
def test_a_broken_operation_is_refused(kind, path, diff, message):
    assert message in problem(kind, path, diff)


texts = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6), max_size=8)


@given(texts, texts)
def test_the_diff_between_any_two_texts_is_valid_and_an_applier_makes_the_second_of_it(old, new):
    lines = [line if line[0] in " +-" else "@@" for line in difflib.unified_diff(old, new, n=99, lineterm="")][2:]
    if not lines:
        return
    diff = updated("\n".join(lines))

    before, after = "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new)
    if old:  # the other applier sees an empty file as one empty line
        assert apply_diff(before, diff) == after


LINES = [
    "@@", "@@ a", "@@a", "@@ -1 +1 @@", "", " ", " a", "-a", "+a", "+a\r", "a", "```", "--- a/f", "+++ b/f",
    "*** End of File", "*** Begin Patch", "*** End Patch", "*** Update File: f", "*** Add File: f",
    "\\ No newline at end of file",
]  # fmt: skip

diffs = st.lists(st.sampled_from(LINES), max_size=10).map("\n".join)


def outcome(kind: str, path: str, diff: str | None) -> FilePatch | str:
    """The operation, or why it is refused."""
    try:
        return read_operation(kind, path, diff)
    except BadPatch as refused:
        return str(refused)


def syntax_error(text: str, diff: str) -> str:
    """What is wrong with a diff, apart from context that is not in the text."""
    try:
        apply_diff(text, diff)
    except ValueError as error:
        is_context = str(error).startswith(("Invalid Context", "Invalid EOF Context", "Invalid Anchor"))
        return "" if is_context else str(error)
    return ""


@given(diffs, st.sampled_from(["create_file", "update_file", "delete_file"]))
def test_what_is_accepted_is_accepted_unchanged_again(diff, kind):
    read = outcome(kind, "f", diff)

    assert len(read) < 300 if isinstance(read, str) else outcome(kind, "f", read.diff) == read


@given(diffs)
def test_an_applier_finds_no_syntax_error_in_what_is_accepted(diff):
    read = outcome("update_file", "f", diff)

    assert isinstance(read, str) or syntax_error("a\n\n \nb\n", read.diff or "") == ""


@given(st.text(max_size=60), st.sampled_from(["create_file", "update_file"]))
def test_any_text_is_a_diff_or_a_bad_patch(text, kind):
    assert outcome(kind, text or "f", text)


@pytest.mark.parametrize("kind", ["create_file", "update_file"])
@pytest.mark.parametrize("line", ["", "@@", "+", "-a", "*** Add File: a", "```", "--- a", "index ", "@" * 99])
def test_hostile_diffs_of_the_maximum_size_are_read_once(line, kind):
    diff = (f"{line}\n" * (MAX_DIFF // (len(line) + 1)))[:MAX_DIFF]

    read = outcome(kind, "a", diff)
    assert len(read if isinstance(read, str) else read.diff or "") <= MAX_DIFF
