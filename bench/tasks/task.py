"""Evaluation task: questions, input files, and the check of the answer."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image, ImageChops

Kind = Literal["code", "files", "plots", "steps", "typed", "repair", "shell", "mcp"]

_MIN_SIZE_PIXELS = 100
_MIN_COLOURED_PIXELS = 100
_MIN_COLOUR_SPREAD = 50  # axes and text are grey; drawn data has a colour
_NUMBER_RE = re.compile(r"-?\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Task:
    """One or several questions in one container, and the expected result.

    `expected_mentions` must be in the last answer: words verbatim, numbers in any notation. `expected_output` is the
    typed output of the last question. `expected_images` are files that must exist at the end and must not be blank;
    `expected_files` have this text then. `expected_calls` are tools that must have been called without an error.

    `files` are in the container at the start. `setup` are shell commands that run there before the first question.
    """

    name: str
    kind: Kind
    questions: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    setup: str = ""
    expected_mentions: tuple[str | float, ...] = ()
    expected_output: Any = None
    expected_images: tuple[str, ...] = ()
    expected_files: Mapping[str, str] = field(default_factory=dict[str, str])
    expected_calls: tuple[str, ...] = ()

    @property
    def result_paths(self) -> tuple[str, ...]:
        """The files that are checked."""
        return (*self.expected_images, *self.expected_files)

    def __post_init__(self) -> None:
        if not (self.expected_mentions or self.expected_output is not None or self.result_paths):
            raise ValueError(f"{self.name}: no expected result")


def find_errors(
    task: Task, text: str, output: object, files: Mapping[str, bytes | None], calls: Collection[str] = ()
) -> list[str]:
    """The errors of an answer; empty if it is right. `calls` are the names of the tools that were called."""
    errors = [
        f"does not mention {expected!r}" for expected in task.expected_mentions if not _is_mentioned(expected, text)
    ]
    if task.expected_output is not None and output != task.expected_output:
        errors.append(f"output is {output!r}, not {task.expected_output!r}")
    errors += [f"{path}: {error}" for path in task.expected_images if (error := _image_error(files.get(path)))]
    errors += [
        f"{path}: is {files.get(path)!r}"
        for path, expected in task.expected_files.items()
        if files.get(path) != expected.encode()
    ]
    return errors + [f"has not called {name}" for name in task.expected_calls if name not in calls]


def _is_mentioned(expected: str | float, text: str) -> bool:
    if isinstance(expected, str):
        return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", text, re.IGNORECASE) is not None
    tolerance = 0 if isinstance(expected, int) else 0.0051  # rounding to cents
    return any(abs(number - expected) <= tolerance for number in _numbers(text))


def _numbers(text: str) -> list[float]:
    return [float(match.group().replace(",", "").replace("_", "")) for match in _NUMBER_RE.finditer(text)]


def _image_error(data: bytes | None) -> str | None:
    if data is None:
        return "does not exist"
    try:
        with Image.open(io.BytesIO(data)) as image:
            red, green, blue = image.convert("RGB").split()
            spread = ImageChops.subtract(
                ImageChops.lighter(ImageChops.lighter(red, green), blue),
                ImageChops.darker(ImageChops.darker(red, green), blue),
            ).histogram()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # raised by Pillow for invalid images
        return "is not an image"
    if min(image.size) < _MIN_SIZE_PIXELS:
        return f"is only {image.size[0]} by {image.size[1]}"
    return "is blank" if sum(spread[_MIN_COLOUR_SPREAD:]) < _MIN_COLOURED_PIXELS else None
