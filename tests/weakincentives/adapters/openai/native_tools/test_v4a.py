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


def test_a_new_file_is_its_lines_without_the_plus():
    made = create("+# Tea\n+\n+Green.\n")

    assert (made.text, made.added, made.removed) == ("# Tea\n\nGreen.\n", 3, 0)


@pytest.mark.parametrize("diff", ["+a\n+b", "+a\n+b\n", "+a\r\n+b\r\n", "+a\n+b\n+"])
def test_a_new_file_ends_with_one_line_break_however_the_diff_ends(diff):
    assert create(diff).text == "a\nb\n"


def test_a_new_file_may_be_empty():
    assert create("").text == ""


def test_a_line_without_a_plus_is_no_part_of_a_new_file():
    with pytest.raises(PatchError, match="line 2 of the diff is 'b'"):
        create("+a\nb")


def test_lines_come_and_go_between_lines_that_stay():
    done = update(CODE, "@@\n     def brew(self):\n-        heat(80)\n+        heat(90)\n+        stir()\n")

    assert done.text == CODE.replace("heat(80)\n", "heat(90)\n        stir()\n")
    assert (done.added, done.removed) == (2, 1)


def test_an_anchor_says_which_of_two_places_is_meant():
    diff = "@@     def pour(self):\n         heat(20)\n-        wait(3)\n+        wait(1)"

    assert update(CODE, diff).text == CODE[:-8] + "wait(1)\n"


def test_anchors_narrow_it_down_one_after_the_other():
    text = "def a():\n    x = 1\ndef b():\n    x = 1\nclass C:\n    def b():\n        x = 1\n"
    done = update(text, "@@ class C:\n@@     def b():\n-        x = 1\n+        x = 2")

    assert done.text == text[:-2] + "2\n"


def test_an_anchor_may_be_repeated_as_the_first_line():
    assert update("a\nb\nc\n", "@@ b\n b\n-c\n+d").text == "a\nb\nd\n"


def test_hunks_follow_one_another_and_the_next_is_looked_for_below_the_last():
    diff = "@@\n-        wait(3)\n+        wait(4)\n@@\n-        wait(3)\n+        wait(5)\n"

    assert update(CODE, diff).text == CODE.replace("wait(3)", "wait(4)", 1).replace("wait(3)", "wait(5)")


def test_hunks_may_name_the_same_class_one_after_the_other():
    text = "class Tea:\n    heat = 80\n    wait = 3\n"
    diff = "@@ class Tea:\n-    heat = 80\n+    heat = 90\n@@ class Tea:\n-    wait = 3\n+    wait = 4\n"

    assert update(text, diff).text == "class Tea:\n    heat = 90\n    wait = 4\n"


def test_a_line_that_comes_again_below_does_not_lead_away():
    text = "class A:\n  def f():\n    a = 1\n    b = 1\nclass B:\n  def f():\n    c = 1\n"
    diff = "@@   def f():\n-    a = 1\n+    a = 2\n@@   def f():\n-    b = 1\n+    b = 2\n"

    assert update(text, diff).text == text.replace("a = 1", "a = 2").replace("b = 1", "b = 2")


def test_white_space_at_the_ends_is_forgiven_and_the_files_own_is_kept():
    text = "def f():  \n\treturn 1\n"

    assert update(text, " def f():\n-    return 1\n+\treturn 2").text == "def f():  \n\treturn 2\n"


def test_an_exact_match_wins_over_a_forgiving_one_above_it():
    text = "  x\ny\nx\nz\n"

    assert update(text, "-x\n+w").text == "  x\ny\nw\nz\n"


def test_line_endings_stay_what_they_are():
    assert update("a\r\nb\r\n", " a\n-b\n+c\n+d").text == "a\r\nc\r\nd\r\n"
    assert update("a\nb", "-b\n+c").text == "a\nc"


def test_lines_can_be_added_where_nothing_else_is_said():
    assert update("a\nb\n", "+c").text == "a\nb\nc\n"
    assert update("a\nb\n", "@@ a\n+c").text == "a\nc\nb\n"
    assert update("", "+a\n+b").text == "a\nb\n"


def test_the_end_of_the_file_can_be_meant():
    text = "x\ny\nx\n"

    assert update(text, "-x\n+z\n*** End of File").text == "x\ny\nz\n"
    assert update(text, "@@ x\n+z\n*** End of File\n").text == "x\ny\nx\nz\n"


def test_everything_can_go():
    assert update("a\nb\n", "-a\n-b").text == ""


def test_numbers_of_the_other_kind_of_diff_are_not_believed():
    assert update("a\nb\n", "@@ -100,2 +100,2 @@ def f\n a\n-b\n+c").text == "a\nc\n"


@pytest.mark.parametrize(
    "diff, told",
    [
        ("@@\n-nowhere", "these lines are not in the file"),
        ("@@ nowhere\n-    pass", "'nowhere' of '@@' is not in the file"),
        ("*** Begin Patch\n-x", "line 1 of the diff is"),
        ("", "changes nothing"),
        (" class Tea:", "changes nothing"),
        ("@@\n-" + "\n-".join("abcdef"), "a\nb\nc\n…"),
    ],
)
def test_a_diff_that_does_not_fit_says_why(diff, told):
    with pytest.raises(PatchError, match=told.replace("…", ".")):
        update(CODE, diff)


LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6), min_size=1, max_size=8)


@given(before=LINES, after=LINES)
def test_a_whole_file_can_be_written_anew(before, after):
    text = "\n".join(before) + "\n"
    diff = "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])

    assert update(text, diff).text == "\n".join(after) + "\n"
