from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters.openai.native_tools.v4a import PatchError, create, update

CODE = """\
class Tea:
    def brew(self):
        heat(80)
        wait(3)

    def pour(self):
        heat(20)
        wait(3)
"""


def test_new_file():
    patched = create("+# Tea\n+\n+Green.\n")

    assert (patched.text, patched.added, patched.removed) == ("# Tea\n\nGreen.\n", 3, 0)


@pytest.mark.parametrize("diff", ["+a\n+b", "+a\n+b\n", "+a\r\n+b\r\n", "+a\n+b\n+"])
def test_new_file_ends_with_one_line_break(diff):
    assert create(diff).text == "a\nb\n"


def test_empty_new_file():
    assert create("").text == ""


def test_new_file_line_without_plus_is_refused():
    with pytest.raises(PatchError, match="line 2 of the diff is 'b'"):
        create("+a\nb")


def test_lines_are_added_and_removed_between_context():
    done = update(CODE, "@@\n     def brew(self):\n-        heat(80)\n+        heat(90)\n+        stir()\n")

    assert done.text == CODE.replace("heat(80)\n", "heat(90)\n        stir()\n")
    assert (done.added, done.removed) == (2, 1)


def test_anchor_selects_one_of_two_matches():
    diff = "@@     def pour(self):\n         heat(20)\n-        wait(3)\n+        wait(1)"

    assert update(CODE, diff).text == CODE[:-8] + "wait(1)\n"


def test_several_anchors_are_applied_in_order():
    text = "def a():\n    x = 1\ndef b():\n    x = 1\nclass C:\n    def b():\n        x = 1\n"
    done = update(text, "@@ class C:\n@@     def b():\n-        x = 1\n+        x = 2")

    assert done.text == text[:-2] + "2\n"


def test_anchor_repeated_as_first_context_line():
    assert update("a\nb\nc\n", "@@ b\n b\n-c\n+d").text == "a\nb\nd\n"


def test_next_hunk_is_searched_below_the_last():
    diff = "@@\n-        wait(3)\n+        wait(4)\n@@\n-        wait(3)\n+        wait(5)\n"

    assert update(CODE, diff).text == CODE.replace("wait(3)", "wait(4)", 1).replace("wait(3)", "wait(5)")


def test_consecutive_hunks_with_the_same_anchor():
    text = "class Tea:\n    heat = 80\n    wait = 3\n"
    diff = "@@ class Tea:\n-    heat = 80\n+    heat = 90\n@@ class Tea:\n-    wait = 3\n+    wait = 4\n"

    assert update(text, diff).text == "class Tea:\n    heat = 90\n    wait = 4\n"


def test_repeated_anchor_line_below_is_not_used():
    text = "class A:\n  def f():\n    a = 1\n    b = 1\nclass B:\n  def f():\n    c = 1\n"
    diff = "@@   def f():\n-    a = 1\n+    a = 2\n@@   def f():\n-    b = 1\n+    b = 2\n"

    assert update(text, diff).text == text.replace("a = 1", "a = 2").replace("b = 1", "b = 2")


def test_white_space_differences_are_ignored_and_kept():
    text = "def f():  \n\treturn 1\n"

    assert update(text, " def f():\n-    return 1\n+\treturn 2").text == "def f():  \n\treturn 2\n"


def test_exact_match_is_preferred():
    text = "  x\ny\nx\nz\n"

    assert update(text, "-x\n+w").text == "  x\ny\nw\nz\n"


def test_line_endings_are_kept():
    assert update("a\r\nb\r\n", " a\n-b\n+c\n+d").text == "a\r\nc\r\nd\r\n"
    assert update("a\nb", "-b\n+c").text == "a\nc"


def test_hunk_without_context_appends():
    assert update("a\nb\n", "+c").text == "a\nb\nc\n"
    assert update("a\nb\n", "@@ a\n+c").text == "a\nc\nb\n"
    assert update("", "+a\n+b").text == "a\nb\n"


def test_end_of_file_marker():
    text = "x\ny\nx\n"

    assert update(text, "-x\n+z\n*** End of File").text == "x\ny\nz\n"
    assert update(text, "@@ x\n+z\n*** End of File\n").text == "x\ny\nx\nz\n"


def test_all_lines_can_be_removed():
    assert update("a\nb\n", "-a\n-b").text == ""


def test_unified_diff_line_numbers_are_ignored():
    assert update("a\nb\n", "@@ -100,2 +100,2 @@ def f\n a\n-b\n+c").text == "a\nc\n"


@pytest.mark.parametrize(
    "diff, expected",
    [
        ("@@\n-nowhere", "these lines are not in the file"),
        ("@@ nowhere\n-    pass", "'nowhere' of '@@' is not in the file"),
        ("*** Begin Patch\n-x", "line 1 of the diff is"),
        ("", "changes nothing"),
        (" class Tea:", "changes nothing"),
        ("@@\n-" + "\n-".join("abcdef"), "a\nb\nc\n…"),
    ],
)
def test_mismatch_error_names_the_reason(diff, expected):
    with pytest.raises(PatchError, match=expected.replace("…", ".")):
        update(CODE, diff)


LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6), min_size=1, max_size=8)


@given(before=LINES, after=LINES)
def test_whole_file_can_be_replaced(before, after):
    text = "\n".join(before) + "\n"
    diff = "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])

    assert update(text, diff).text == "\n".join(after) + "\n"
