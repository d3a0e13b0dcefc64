from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError
from antwort.http.bodies import DEEPEST, check_depth

json_values = st.recursive(
    st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=300,
)


def depth(value) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.integers(0, 2 * DEEPEST))
def test_depth_is_what_python_thinks_it_is(value, around):
    body = b"[" * around + json.dumps(value).encode() + b"]" * around
    if depth(value) + around <= DEEPEST:
        check_depth(body)
    else:
        with pytest.raises(ApiError):
            check_depth(body)


@given(st.binary())
def test_any_bytes_have_a_depth(body):
    check_depth(body[: DEEPEST // 2] + b'"\\"' * 200 + body[: DEEPEST // 2])


def test_it_takes_no_longer_for_nastier_bodies():
    check_depth(b"{}" * 100 + b'"' + b'\\"' * 5_000_000)
    check_depth(b'{"[": "' + b"[" * 1_000_000 + b'"}')
