"""What a task is, and when its answer is right."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image, ImageChops

Kind = Literal["code", "files", "plots", "steps", "typed", "repair"]

_LEAST_PIXELS = 100
_LEAST_DRAWN = 100
_GREY = 50  # axes and letters are grey, and what is drawn between them has a colour
_NUMBER = re.compile(r"-?\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Task:
    """One thing to ask, or several in one container, and what has to come of it.

    `says` has to be in the last answer: words as they are, numbers however they are written. `gives` is the answer,
    where that is typed. `draws` are pictures that have to be there at the end, with something on them.
    """

    name: str
    kind: Kind
    asks: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    says: tuple[str | float, ...] = ()
    gives: Any = None
    draws: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.says or self.gives is not None or self.draws):
            raise ValueError(f"{self.name}: nothing is checked")


def faults(task: Task, text: str, output: object, files: Mapping[str, bytes | None]) -> list[str]:
    """What is wrong with an answer, in words; nothing, if it is right."""
    wrong = [f"does not say {wanted!r}" for wanted in task.says if not _said(wanted, text)]
    if task.gives is not None and output != task.gives:
        wrong.append(f"gives {output!r}, not {task.gives!r}")
    wrong += [f"{path}: {fault}" for path in task.draws if (fault := _picture_fault(files.get(path)))]
    return wrong


def _said(wanted: str | float, text: str) -> bool:
    if isinstance(wanted, str):
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text, re.IGNORECASE) is not None
    tolerance = 0 if isinstance(wanted, int) else 0.0051  # what is left after rounding to cents
    return any(abs(number - wanted) <= tolerance for number in _numbers(text))


def _numbers(text: str) -> list[float]:
    return [float(match.group().replace(",", "").replace("_", "")) for match in _NUMBER.finditer(text)]


def _picture_fault(data: bytes | None) -> str | None:
    if data is None:
        return "is not there"
    try:
        with Image.open(io.BytesIO(data)) as picture:
            red, green, blue = picture.convert("RGB").split()
            spread = ImageChops.subtract(
                ImageChops.lighter(ImageChops.lighter(red, green), blue),
                ImageChops.darker(ImageChops.darker(red, green), blue),
            ).histogram()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # what Pillow says of broken ones
        return "is no picture"
    if min(picture.size) < _LEAST_PIXELS:
        return f"is only {picture.size[0]} by {picture.size[1]}"
    return "is empty" if sum(spread[_GREY:]) < _LEAST_DRAWN else None
