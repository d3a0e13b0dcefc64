"""The evaluation tasks of bench/tasks: checks of answers, and the catalogue."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def tasks():
    """The module of the tasks, which is not installed."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("tasks.task")
    finally:
        sys.path.remove(str(BENCH))


def make_image(size: tuple[int, int] = (200, 150), *, is_blank: bool = False) -> bytes:
    image = Image.new("RGB", size, "white")
    if not is_blank:
        ImageDraw.Draw(image).line((0, 0, *size), fill="red")
        ImageDraw.Draw(image).line((0, size[1], size[0], 0), fill="blue")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize(
    "expected, text, is_right",
    [
        (1628, "It is 1,628 days.", True),
        (1628, "It is 1628.0 days.", True),
        (1628, "It is 16280 days.", False),
        (1628, "I do not know.", False),
        (8.5, "about 8.50", True),
        (8.5, "about 8.52", False),
        ("Dov", "The oldest is dov.", True),
        ("Dov", "The oldest is Dovid.", False),
        ("20dbd335", "It begins with `20dbd335`.", True),
    ],
)
def test_mentions_are_found_in_any_notation(tasks, expected, text, is_right):
    task = tasks.Task("t", "code", ("?",), expected_mentions=(expected,))
    assert (tasks.find_errors(task, text, None, {}) == []) is is_right


def test_a_typed_output_must_be_equal(tasks):
    task = tasks.Task("t", "typed", ("?",), expected_output=(1, 2))
    assert tasks.find_errors(task, "", (1, 2), {}) == []
    assert tasks.find_errors(task, "", (1, 3), {}) == ["output is (1, 3), not (1, 2)"]


@pytest.mark.parametrize(
    "data, errors",
    [
        (make_image(), []),
        (None, ["a.png: does not exist"]),
        (b"text", ["a.png: is not an image"]),
        (make_image((50, 150)), ["a.png: is only 50 by 150"]),
        (make_image(is_blank=True), ["a.png: is blank"]),
    ],
)
def test_an_image_must_exist_and_not_be_blank(tasks, data, errors):
    task = tasks.Task("t", "plots", ("?",), expected_images=("a.png",))
    assert tasks.find_errors(task, "", None, {"a.png": data}) == errors


def test_a_task_without_expected_result_is_rejected(tasks):
    with pytest.raises(ValueError, match="no expected result"):
        tasks.Task("t", "code", ("?",))


def test_a_file_must_have_the_expected_text(tasks):
    task = tasks.Task("t", "shell", ("?",), expected_files={"a.txt": "color\n"})
    assert tasks.find_errors(task, "", None, {"a.txt": b"color\n"}) == []
    assert tasks.find_errors(task, "", None, {"a.txt": b"colour\n"}) == ["a.txt: is b'colour\\n'"]
    assert tasks.find_errors(task, "Done.", None, {"a.txt": None}) == ["a.txt: is None"]


def test_expected_tools_must_have_been_called(tasks):
    task = tasks.Task("t", "mcp", ("?",), expected_mentions=(82,), expected_calls=("find", "total"))
    assert tasks.find_errors(task, "It is 82.", None, {}, {"find", "total"}) == []
    assert tasks.find_errors(task, "It is 82.", None, {}, {"find"}) == ["has not called total"]


def test_there_are_fifty_tasks_of_all_kinds_with_unique_names(tasks):
    sys.path.insert(0, str(BENCH))
    try:
        catalogue = importlib.import_module("tasks.catalogue").TASKS
    finally:
        sys.path.remove(str(BENCH))
    assert len({task.name for task in catalogue}) == len(catalogue) == 50
    assert {task.kind for task in catalogue} == set(tasks.Kind.__args__)
