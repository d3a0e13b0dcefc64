"""Open matplotlib figures become PNG images, as in a notebook. Nothing here imports matplotlib: few need it."""

from __future__ import annotations

import io
import sys
from typing import Any, Final

Image = tuple[str, bytes]

PNG: Final = "image/png"
MOST_IMAGES: Final = 100
MOST_BYTES: Final = 48 << 20
_shown: list[Image] = []


def prepare() -> None:
    """`show()` collects at once, so that images come in the order in which they were shown."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.__dict__["show"] = _show


def collect() -> list[Image]:
    """Every figure shown or still open, in order; all are closed."""
    images = [*_shown, *_render_open()]
    _shown.clear()
    return images[:MOST_IMAGES]


def affordable(images: list[Image]) -> list[Image]:
    """The first of them, as many as one answer can carry."""
    fitting: list[Image] = []
    room = MOST_BYTES
    for mime, data in images[:MOST_IMAGES]:
        room -= len(data)
        if room < 0:
            sys.stderr.write(f"[an image of {len(data)} bytes was left out: too large]\n")
            break
        fitting.append((mime, data))
    return fitting


def discard() -> None:
    """Forget every figure; the code failed."""
    _shown.clear()
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.__dict__["close"]("all")


def from_value(value: object) -> list[Image]:
    """What draws itself (a Pillow image, say) as the last expression."""
    draw: Any = getattr(type(value), "_repr_png_", None)
    if draw is None:
        return []
    data = draw(value)
    return [(PNG, data)] if isinstance(data, bytes) else []


def _show(*_: object, **__: object) -> None:
    if len(_shown) < MOST_IMAGES:
        _shown.extend(_render_open())


def _render_open() -> list[Image]:
    # By sys.modules: code that imported pyplot itself, in a stack without it, is served as well.
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    images: list[Image] = []
    for number in pyplot.get_fignums():
        canvas = io.BytesIO()
        pyplot.figure(number).savefig(canvas, format="png", bbox_inches="tight")
        images.append((PNG, canvas.getvalue()))
    pyplot.close("all")
    return images
