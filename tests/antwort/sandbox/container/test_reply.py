"""An answer is believed only if every part of it is what it must be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.container import reply as answers
from antwort.sandbox.container.reply import Answer, Image

HEADER = {"call": "t", "status": "success", "exit_code": 0, "parts": []}
TEXT = (7 << 20) + 1

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def test_the_parts_come_back():
    header = HEADER | {"status": "error", "exit_code": 1, "parts": ["echo", "name", "message", "image/png"]}
    found = answers.read((header, [b"e", b"n", b"m", b"i"]), "t")
    assert found == Answer(
        status="error",
        exit_code=1,
        echo="e",
        error={"name": "n", "message": "m"},
        images=[Image("image/png", b"i")],
    )


def test_nothing_but_the_status_is_an_answer_too():
    assert answers.read((HEADER, []), "t") == Answer(status="success", exit_code=0, echo=None, error=None)


def test_what_was_left_out_is_told():
    found = answers.read((HEADER | {"left_out": 3, "parts": ["image/png"]}, [b"i"]), "t")
    assert found
    assert (found.left_out, len(found.images)) == (3, 1)


def test_bytes_that_are_no_text_become_marks():
    found = answers.read((HEADER | {"parts": ["echo"]}, [b"\xed\xa0\x80"]), "t")
    assert found
    assert found.echo is not None
    json.dumps(found.echo).encode()
    assert "\ufffd" in found.echo


@pytest.mark.parametrize(
    "header, blobs",
    [
        ({"call": "u"}, []),
        ({"call": None}, []),
        ({"status": "timeout"}, []),
        ({"status": ["success"]}, []),
        ({"status": {}}, []),
        ({"exit_code": -1}, []),
        ({"exit_code": 256}, []),
        ({"exit_code": True}, []),
        ({"exit_code": 1.0}, []),
        ({"left_out": -1}, []),
        ({"left_out": True}, []),
        ({"left_out": 10**300}, []),
        ({"left_out": [1]}, []),
        ({"parts": "echo"}, [b""] * 4),
        ({"parts": ["echo"]}, []),
        ({"parts": []}, [b"x"]),
        ({"parts": ["echo", "echo"]}, [b"", b""]),
        ({"parts": ["name"]}, [b""]),
        ({"parts": ["message"]}, [b""]),
        ({"parts": ["image/svg+xml"]}, [b""]),
        ({"parts": [["image/png"]]}, [b""]),
        ({"parts": ["image/png"] * 101}, [b""] * 101),
        ({"parts": ["echo"]}, [b"x" * TEXT]),
        ({"parts": ["image/png"] * 2}, [b"x" * (8 << 20), b"x" * ((8 << 20) + 1)]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_whatever_is_not_as_it_must_be_is_no_answer(header, blobs):
    assert answers.read((HEADER | header, blobs), "t") is None


@given(st.dictionaries(st.sampled_from(list(HEADER)), ANYTHING), st.lists(st.binary(max_size=9), max_size=3))
def test_no_header_makes_it_fail(header, blobs):
    found = answers.read((HEADER | header, blobs), "t")
    assert found is None or len(found.images) <= len(blobs)
