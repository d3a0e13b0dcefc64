"""Images are as many and as large as an answer can carry; what is left out is counted."""

from __future__ import annotations

import sys
import types

import pytest

from antwort.sandbox.jail import figures
from antwort.sandbox.jail.figures import MOST_BYTES, MOST_IMAGES, FigureCollector


class Drawn:
    def __init__(self, size: int) -> None:
        self.size = size

    def _repr_png_(self) -> bytes:
        return b"x" * self.size


@pytest.fixture
def pyplot(monkeypatch):
    """What the gallery asks of pyplot, without matplotlib."""
    module = types.ModuleType("matplotlib.pyplot")
    drawn: list[int] = []
    opened = list(range(MOST_IMAGES + 50))
    figure = types.SimpleNamespace(savefig=lambda canvas, **_: drawn.append(canvas.write(b"png")))
    module.__dict__.update(
        get_fignums=lambda: list(opened), figure=lambda _: figure, close=lambda _: opened.clear(), drawn=drawn
    )
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", module)
    return module


def test_a_value_that_draws_itself_is_an_image():
    gallery = FigureCollector()
    gallery.add_value(Drawn(3))
    gallery.add_value(3)
    assert gallery.take() == ([(figures.PNG, b"xxx")], 0)
    assert gallery.take() == ([], 0)


def test_what_does_not_fit_is_left_out_and_what_fits_after_it_is_not():
    gallery = FigureCollector()
    for size in (10, MOST_BYTES, MOST_BYTES - 20, 11, 10):
        gallery.add_value(Drawn(size))
    images, left_out = gallery.take()
    assert [len(data) for _, data in images] == [10, MOST_BYTES - 20, 10]
    assert left_out == 2


def test_too_many_figures_are_not_even_drawn(pyplot):
    gallery = FigureCollector()
    images, left_out = gallery.take()
    assert (len(images), left_out, len(pyplot.drawn)) == (MOST_IMAGES, 50, MOST_IMAGES)
    assert pyplot.get_fignums() == []


def test_after_a_failure_nothing_is_left(pyplot):
    gallery = FigureCollector()
    pyplot.show()
    gallery.discard()
    assert gallery.take() == ([], 0)
    assert "16777216 bytes" in figures.note(2)
