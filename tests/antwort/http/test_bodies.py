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
from antwort.http.bodies import AT_ONCE, DEEPEST, MOST, check_shape, read_json

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
        check_shape(body)
    else:
        with pytest.raises(ApiError):
            check_shape(body)


@given(st.binary())
def test_any_bytes_have_a_depth(body):
    check_shape(body[: DEEPEST // 2] + b'"\\"' * 200 + body[: DEEPEST // 2])


def test_it_takes_no_longer_for_nastier_bodies():
    check_shape(b"{}" * 100 + b'"' + b'\\"' * 5_000_000)
    check_shape(b'{"[": "' + b"[" * 1_000_000 + b'"}')


def test_it_has_only_so_many_objects_and_arrays_and_strings_do_not_count():
    check_shape(b"[" + b"{}," * (MOST - 2) + b"{}]")
    check_shape(b'["' + b"{}," * MOST + b'"]')
    with pytest.raises(ApiError, match="objects and arrays"):
        check_shape(b"[" + b"{}," * MOST + b"{}]")


@pytest.mark.anyio
async def test_others_go_on_while_a_large_body_is_read(server):
    items = [{"role": "user", "content": "x" * 100}] * (AT_ONCE // 100)
    turns = [0]

    def turn() -> None:
        turns[0] += 1

    async def receive():
        asyncio.get_running_loop().call_soon(turn)
        return {"type": "http.request", "body": json.dumps({"input": items}).encode()}

    app = make_app(server.services)
    asked = Request({"type": "http", "headers": [], "app": app}, receive)
    read = await read_json(asked, CreateResponse)

    assert read.input == items
    assert turns == [1]
