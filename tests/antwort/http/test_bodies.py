from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from antwort.api.errors import ApiError
from antwort.api.requests import CreateResponse
from antwort.http.app import make_app
from antwort.http.bodies import MAX_DEPTH, MAX_INLINE_BYTES, MAX_OBJECTS, check_nesting, read_json

json_values = st.recursive(
    st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=300,
)


def depth(value) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.integers(0, 2 * MAX_DEPTH))
def test_the_depth_limit_counts_nesting_levels_as_json_does(value, outer):
    body = b"[" * outer + json.dumps(value).encode() + b"]" * outer
    if depth(value) + outer <= MAX_DEPTH:
        check_nesting(body)
    else:
        with pytest.raises(ApiError):
            check_nesting(body)


@given(st.binary())
def test_any_bytes_can_be_checked(body):
    check_nesting(body[: MAX_DEPTH // 2] + b'"\\"' * 200 + body[: MAX_DEPTH // 2])


def test_hostile_bodies_take_linear_time():
    check_nesting(b"{}" * 100 + b'"' + b'\\"' * 5_000_000)
    check_nesting(b'{"[": "' + b"[" * 1_000_000 + b'"}')


def test_objects_and_arrays_are_limited_and_strings_are_not_counted():
    check_nesting(b"[" + b"{}," * (MAX_OBJECTS - 2) + b"{}]")
    check_nesting(b'["' + b"{}," * MAX_OBJECTS + b'"]')
    with pytest.raises(ApiError, match="objects and arrays"):
        check_nesting(b"[" + b"{}," * MAX_OBJECTS + b"{}]")


@pytest.mark.anyio
async def test_the_loop_is_not_blocked_while_a_large_body_is_decoded(stage):
    items = [{"role": "user", "content": "x" * 100}] * (MAX_INLINE_BYTES // 100)
    ticks = [0]

    def tick() -> None:
        ticks[0] += 1

    async def receive():
        asyncio.get_running_loop().call_soon(tick)
        return {"type": "http.request", "body": json.dumps({"input": items}).encode()}

    app = make_app(stage.services)
    request = Request({"type": "http", "headers": [], "app": app}, receive)
    read = await read_json(request, CreateResponse)

    assert read.input == items
    assert ticks == [1]
