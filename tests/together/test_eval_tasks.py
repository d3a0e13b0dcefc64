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
    """The tasks, which are no part of what is installed."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("tasks.task")
    finally:
        sys.path.remove(str(BENCH))


def drawn(size: tuple[int, int] = (200, 150), *, empty: bool = False) -> bytes:
    picture = Image.new("RGB", size, "white")
    if not empty:
        ImageDraw.Draw(picture).line((0, 0, *size), fill="red")
        ImageDraw.Draw(picture).line((0, size[1], size[0], 0), fill="blue")
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize(
    "says, text, right",
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
def test_words_and_numbers_are_found_however_they_are_written(tasks, says, text, right):
    task = tasks.Task("t", "code", ("?",), says=(says,))
    assert (tasks.faults(task, text, None, {}) == []) is right


def test_a_typed_answer_has_to_be_that_one(tasks):
    task = tasks.Task("t", "typed", ("?",), gives=(1, 2))
    assert tasks.faults(task, "", (1, 2), {}) == []
    assert tasks.faults(task, "", (1, 3), {}) == ["gives (1, 3), not (1, 2)"]


@pytest.mark.parametrize(
    "data, fault",
    [
        (drawn(), []),
        (None, ["a.png: is not there"]),
        (b"text", ["a.png: is no picture"]),
        (drawn((50, 150)), ["a.png: is only 50 by 150"]),
        (drawn(empty=True), ["a.png: is empty"]),
    ],
)
def test_a_picture_has_to_show_something(tasks, data, fault):
    task = tasks.Task("t", "plots", ("?",), draws=("a.png",))
    assert tasks.faults(task, "", None, {"a.png": data}) == fault


def test_a_task_that_checks_nothing_is_none(tasks):
    with pytest.raises(ValueError, match="nothing is checked"):
        tasks.Task("t", "code", ("?",))


def test_there_are_forty_of_every_kind_with_names_of_their_own(tasks):
    sys.path.insert(0, str(BENCH))
    try:
        catalogue = importlib.import_module("tasks.catalogue").TASKS
    finally:
        sys.path.remove(str(BENCH))
    assert len({task.name for task in catalogue}) == len(catalogue) == 40
    assert {task.kind for task in catalogue} == set(tasks.Kind.__args__)
