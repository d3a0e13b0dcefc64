from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import ContractError
from weakincentives.runtime.slices import (
    Append,
    Clear,
    Replace,
    SliceView,
    append_event,
    apply,
    replace_latest,
    upsert_by,
)


@dataclass(frozen=True)
class Score:
    name: str
    points: int

    def key(self) -> str:
        return self.name


def test_view_is_unchanged_by_appends_to_derived_views():
    root = SliceView([1, 2])
    one = root.appended(3)
    other = root.appended(4)

    assert (root.all(), one.all(), other.all()) == ((1, 2), (1, 2, 3), (1, 2, 4))
    assert one.appended(5).all() == (1, 2, 3, 5)
    assert other.latest() == 4
    assert SliceView[int]().latest() is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_append_to_any_view_behaves_like_a_tuple(steps: list[tuple[int, int]]):
    views: list[SliceView[int]] = [SliceView()]
    models: list[tuple[int, ...]] = [()]
    for choice, item in steps:
        at = choice % len(views)
        views.append(views[at].appended(item))
        models.append((*models[at], item))

    assert [view.all() for view in views] == models
    assert [list(view) for view in views] == [list(model) for model in models]
    assert [len(view) for view in views] == [len(model) for model in models]


def test_append_shares_the_buffer():
    view = SliceView[int]()
    for item in range(1000):
        view = view.appended(item)

    assert view._buffer is view.appended(1)._buffer
    assert view.since(998) == (998, 999)


def test_slice_operations():
    view = SliceView([1])

    assert apply(view, None) is view
    assert apply(view, Append(2)).all() == (1, 2)
    assert apply(view, Replace((7, 8))).all() == (7, 8)
    assert apply(view, Clear()).all() == ()


def test_built_in_reducers():
    view = SliceView([Score("a", 1), Score("b", 2)])

    assert apply(view, append_event(view, Score("a", 3))).all() == (Score("a", 1), Score("b", 2), Score("a", 3))
    assert apply(view, replace_latest(view, Score("c", 1))).all() == (Score("c", 1),)
    by_name = upsert_by(Score.key)
    assert apply(view, by_name(view, Score("a", 9))).all() == (Score("a", 9), Score("b", 2))
    assert apply(view, by_name(view, Score("c", 9))).all() == (Score("a", 1), Score("b", 2), Score("c", 9))


@pytest.mark.parametrize("start", [-1, 3])
def test_contract_requires_a_start_within_the_slice(start):
    with pytest.raises(ContractError, match="start is an index of the slice"):
        SliceView([1, 2]).since(start)
