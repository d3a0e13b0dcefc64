"""Open matplotlib figures become PNG images, as in a notebook. Nothing here imports matplotlib: few need it."""

from __future__ import annotations

import io
import sys
from typing import Any, Final

Image = tuple[str, bytes]

PNG: Final = "image/png"
MOST_IMAGES: Final = 100
MOST_BYTES: Final = 16 << 20
"""Of all images of one call: the server holds them in memory, and many calls run at once."""


class FigureCollector:
    """The images of one call after the other, as many of each as one answer can carry."""

    def __init__(self) -> None:
        self._images: list[Image] = []
        self._bytes = 0
        self._left_out = 0
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            # `show()` collects at once, so that images come in the order in which they were shown.
            pyplot.__dict__["show"] = self._show

    def take(self) -> tuple[list[Image], int]:
        """Every figure shown or still open, in order, and how many were too many; all are closed and forgotten."""
        self._show()
        images, left_out = self._images, self._left_out
        self._images, self._bytes, self._left_out = [], 0, 0
        return images, left_out

    def add_value(self, value: object) -> None:
        """What draws itself (a Pillow image, say) as the last expression."""
        draw: Any = getattr(type(value), "_repr_png_", None)
        data = None if draw is None else draw(value)
        if isinstance(data, bytes):
            self._add(data)

    def discard(self) -> None:
        """Forget every figure; the code failed."""
        self._images, self._bytes, self._left_out = [], 0, 0
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.__dict__["close"]("all")

    def _show(self, *_: object, **__: object) -> None:
        # By sys.modules: code that imported pyplot itself, in a stack without it, is served as well.
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            if len(self._images) < MOST_IMAGES:
                canvas = io.BytesIO()
                pyplot.figure(number).savefig(canvas, format="png", bbox_inches="tight")
                self._add(canvas.getvalue())
            else:
                self._left_out += 1  # drawing takes long, and it would be for nothing
        pyplot.close("all")

    def _add(self, data: bytes) -> None:
        if len(self._images) == MOST_IMAGES or self._bytes + len(data) > MOST_BYTES:
            self._left_out += 1
        else:
            self._images.append((PNG, data))
            self._bytes += len(data)


def note(left_out: int) -> str:
    """What stands in the output for images that are not there."""
    return f"[{left_out} images were left out: an answer carries {MOST_IMAGES} images and {MOST_BYTES} bytes of them]\n"
