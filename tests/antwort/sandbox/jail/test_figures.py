"""FigureCollector: images up to the limits of one reply; the others are counted."""

from __future__ import annotations

import sys
import types

import pytest

from antwort.sandbox.jail import figures
from antwort.sandbox.jail.figures import MAX_IMAGE_BYTES, MAX_IMAGES, FigureCollector


class PngValue:
    def __init__(self, size: int) -> None:
        self.size = size

    def _repr_png_(self) -> bytes:
        return b"x" * self.size


@pytest.fixture
def pyplot(monkeypatch):
    """The functions of pyplot that the collector uses, without matplotlib."""
    module = types.ModuleType("matplotlib.pyplot")
    drawn: list[int] = []
    opened = list(range(MAX_IMAGES + 50))
    figure = types.SimpleNamespace(savefig=lambda canvas, **_: drawn.append(canvas.write(b"png")))
    module.__dict__.update(
        get_fignums=lambda: list(opened), figure=lambda _: figure, close=lambda _: opened.clear(), drawn=drawn
    )
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", module)
    return module


def test_a_value_with_a_png_representation_is_an_image():
    collector = FigureCollector()
    collector.add_value(PngValue(3))
    collector.add_value(3)
    assert collector.take() == ([(figures.PNG, b"xxx")], 0)
    assert collector.take() == ([], 0)


def test_images_that_do_not_fit_are_left_out_and_later_ones_that_fit_are_kept():
    collector = FigureCollector()
    for size in (10, MAX_IMAGE_BYTES, MAX_IMAGE_BYTES - 20, 11, 10):
        collector.add_value(PngValue(size))
    images, left_out = collector.take()
    assert [len(data) for _, data in images] == [10, MAX_IMAGE_BYTES - 20, 10]
    assert left_out == 2


def test_figures_over_the_limit_are_not_drawn(pyplot):
    collector = FigureCollector()
    images, left_out = collector.take()
    assert (len(images), left_out, len(pyplot.drawn)) == (MAX_IMAGES, 50, MAX_IMAGES)
    assert pyplot.get_fignums() == []


def test_discard_removes_all_images(pyplot):
    collector = FigureCollector()
    pyplot.show()
    collector.discard()
    assert collector.take() == ([], 0)
    assert "16777216 bytes" in figures.left_out_note(2)
