"""ExecReply: frames from hostile code are validated, and the report has the fields of the protocol."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.container import reply as replies
from antwort.sandbox.container.reply import ExecReply, FigureImage

HEADER = {"call": "t", "status": "success", "exit_code": 0, "parts": []}
TOO_LONG = (7 << 20) + 1

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def test_all_parts_of_a_frame_are_parsed():
    header = HEADER | {"status": "error", "exit_code": 1, "parts": ["result", "name", "message", "image/png"]}
    reply = replies.parse((header, [b"r", b"n", b"m", b"i"]), "t")
    assert reply == ExecReply(
        status="error",
        exit_code=1,
        result="r",
        error={"name": "n", "message": "m"},
        images=[FigureImage("image/png", b"i")],
    )


def test_a_status_alone_is_a_valid_reply():
    assert replies.parse((HEADER, []), "t") == ExecReply(status="success", exit_code=0)


def test_the_number_of_images_left_out_is_parsed():
    reply = replies.parse((HEADER | {"images_left_out": 3, "parts": ["image/png"]}, [b"i"]), "t")
    assert reply
    assert (reply.images_left_out, len(reply.images)) == (3, 1)


def test_invalid_utf8_is_replaced():
    reply = replies.parse((HEADER | {"parts": ["result"]}, [b"\xed\xa0\x80"]), "t")
    assert reply
    assert reply.result is not None
    json.dumps(reply.result).encode()
    assert "\ufffd" in reply.result


@pytest.mark.parametrize(
    "header, blobs",
    [
        ({"call": "u"}, []),
        ({"call": None}, []),
        ({"status": "timeout"}, []),
        ({"status": "ended"}, []),
        ({"status": ["success"]}, []),
        ({"status": {}}, []),
        ({"exit_code": -1}, []),
        ({"exit_code": 256}, []),
        ({"exit_code": True}, []),
        ({"exit_code": 1.0}, []),
        ({"images_left_out": -1}, []),
        ({"images_left_out": True}, []),
        ({"images_left_out": 10**300}, []),
        ({"images_left_out": [1]}, []),
        ({"parts": "result"}, [b""] * 6),
        ({"parts": ["result"]}, []),
        ({"parts": []}, [b"x"]),
        ({"parts": ["result", "result"]}, [b"", b""]),
        ({"parts": ["name"]}, [b""]),
        ({"parts": ["message"]}, [b""]),
        ({"parts": ["image/svg+xml"]}, [b""]),
        ({"parts": [["image/png"]]}, [b""]),
        ({"parts": ["image/png"] * 101}, [b""] * 101),
        ({"parts": ["result"]}, [b"x" * TOO_LONG]),
        ({"parts": ["image/png"] * 2}, [b"x" * (8 << 20), b"x" * ((8 << 20) + 1)]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_frame_is_rejected(header, blobs):
    assert replies.parse((HEADER | header, blobs), "t") is None


@given(st.dictionaries(st.sampled_from(list(HEADER)), ANY_JSON), st.lists(st.binary(max_size=9), max_size=3))
def test_parse_never_raises(header, blobs):
    reply = replies.parse((HEADER | header, blobs), "t")
    assert reply is None or len(reply.images) <= len(blobs)


def test_the_report_has_the_fields_of_the_protocol():
    reply = ExecReply(
        status="success",
        exit_code=0,
        stdout="o",
        output=[("stdout", "o")],
        result="2",
        images=[FigureImage("image/png", b"i")],
        execution_time_ms=7,
    )
    assert reply.report() == {
        "status": "success",
        "exit_code": 0,
        "stdout": "o",
        "stderr": "",
        "output": [{"stream": "stdout", "text": "o"}],
        "result": "2",
        "error": None,
        "images": [{"mime": "image/png", "data": "aQ=="}],
        "images_left_out": 0,
        "execution_time_ms": 7,
        "reason": None,
        "cut_bytes": 0,
    }
