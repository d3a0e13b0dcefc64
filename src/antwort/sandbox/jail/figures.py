"""Converts open matplotlib figures to PNG images, as a notebook does. Does not import matplotlib itself."""

from __future__ import annotations

import io
import sys
from typing import Any, Final

Image = tuple[str, bytes]

PNG: Final = "image/png"
MAX_IMAGES: Final = 100
MAX_IMAGE_BYTES: Final = 16 << 20
"""All images of one call together: the server holds them in memory, for many calls at once."""


class FigureCollector:
    """Collects the images of each call, up to the limits of one reply."""

    def __init__(self) -> None:
        self._images: list[Image] = []
        self._bytes = 0
        self._left_out = 0
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            # `show()` collects at once, so that images keep the order in which they were shown.
            pyplot.__dict__["show"] = self._collect

    def take(self) -> tuple[list[Image], int]:
        """Images of all figures shown or still open, in order, and the number left out; closes the figures."""
        self._collect()
        images, left_out = self._images, self._left_out
        self._images, self._bytes, self._left_out = [], 0, 0
        return images, left_out

    def add_value(self, value: object) -> None:
        """Add the last expression if it has a PNG representation, such as a Pillow image."""
        to_png: Any = getattr(type(value), "_repr_png_", None)
        data = None if to_png is None else to_png(value)
        if isinstance(data, bytes):
            self._add(data)

    def discard(self) -> None:
        """Close every figure without an image; the code failed."""
        self._images, self._bytes, self._left_out = [], 0, 0
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.__dict__["close"]("all")

    def _collect(self, *_: object, **__: object) -> None:
        # Through sys.modules: the code may have imported pyplot itself, in a stack without it.
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            if len(self._images) < MAX_IMAGES:
                canvas = io.BytesIO()
                pyplot.figure(number).savefig(canvas, format="png", bbox_inches="tight")
                self._add(canvas.getvalue())
            else:
                self._left_out += 1  # not drawn: that takes long
        pyplot.close("all")

    def _add(self, data: bytes) -> None:
        if len(self._images) == MAX_IMAGES or self._bytes + len(data) > MAX_IMAGE_BYTES:
            self._left_out += 1
        else:
            self._images.append((PNG, data))
            self._bytes += len(data)


def left_out_note(left_out: int) -> str:
    """The note in the output about images that were left out."""
    return f"[{left_out} images were left out: the limit is {MAX_IMAGES} images and {MAX_IMAGE_BYTES} bytes per call]\n"
