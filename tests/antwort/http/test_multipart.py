from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import anyio
import pytest
from fixtures_in_process_server import form
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from antwort.api.errors import ApiError
from antwort.config import Config
from antwort.http.multipart import receive_upload

BOUNDARY = b"----WebKitFormBoundary7MA4YWxkTrZu0gW"


def request_with(chunks: list[bytes], *, kind: str | None = None, disconnects: bool = False) -> Request:
    """A request whose body arrives in these chunks; with `disconnects` the client disconnects before the end."""
    left = list(chunks)
    app = SimpleNamespace(state=SimpleNamespace(services=SimpleNamespace(config=Config())))

    async def receive():
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or disconnects}
        return {"type": "http.disconnect"}

    kind = kind or f"multipart/form-data; boundary={BOUNDARY.decode()}"
    return Request({"type": "http", "headers": [(b"content-type", kind.encode())], "app": app}, receive)


def parse(request: Request, limit: int = 1_000_000) -> tuple[str | None, bytes, dict[str, str]]:
    async def receive_all():
        upload = await receive_upload(request, limit)
        content = b"".join([chunk async for chunk in upload.content()])
        return upload.filename, content, upload.fields

    with ThreadPoolExecutor(1) as thread:  # in a thread without an event loop
        return thread.submit(anyio.run, receive_all).result()


def parse_error(request: Request, limit: int = 1_000_000) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(request, limit)
    return caught.value


def split(body: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted({position % (len(body) + 1) for position in positions}), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


# Content that resembles the boundary is the hardest to parse.
contents = (
    st.lists(st.sampled_from([b"\r\n", b"--", BOUNDARY, b"\r\n--" + BOUNDARY[:-1], b"x", b"\0\xff"]), max_size=8)
    .map(b"".join)
    .filter(lambda content: b"\r\n--" + BOUNDARY not in b"\r\n" + content)
)


@given(contents, st.text(st.characters(codec="utf-8"), max_size=20), st.booleans(), st.lists(st.integers(0, 10_000)))
def test_a_form_may_be_split_anywhere(content, value, file_first, positions):
    value = value.replace("\r\n--" + BOUNDARY.decode(), "")
    parts = [("file", content, "a.txt"), ("purpose", value.encode())]
    body = form(*(parts if file_first else reversed(parts)), boundary=BOUNDARY)

    assert parse(request_with(split(body, positions))) == ("a.txt", content, {"purpose": value})


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=5))
def test_any_bytes_are_a_form_or_an_api_error(body, positions):
    with contextlib.suppress(ApiError):  # and nothing else is raised
        parse(request_with(split(body, positions)))


@given(st.integers(0, 10_000))
def test_a_truncated_form_is_an_error(position):
    body = form(("purpose", b"user_data"), ("file", b"hello" * 10, "a.txt"), boundary=BOUNDARY)
    truncated = body[: position % (len(body) - len(b"--\r\n"))]

    assert parse_error(request_with([truncated])).code == "invalid_form"


def test_a_disconnect_is_not_an_invalid_form():
    body = form(("file", b"hello" * 10, "a.txt"), boundary=BOUNDARY)
    with pytest.raises(ClientDisconnect):
        parse(request_with([body[:-20]], disconnects=True))


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=b"],
)
def test_other_content_types_are_rejected(kind):
    assert parse_error(request_with([b""], kind=kind or "text/plain")).code == "invalid_content_type"


def test_a_long_boundary_is_rejected():
    assert parse_error(request_with([b"x"], kind="multipart/form-data; boundary=" + "b" * 10_000)).status == 400


def test_the_file_size_limit():
    body = form(("file", b"x" * 1000, "a.txt"), boundary=BOUNDARY)

    assert len(parse(request_with(split(body, [100, 500])), 1000)[1]) == 1000
    assert parse_error(request_with(split(body, [100, 500])), 999).status == 413


def test_an_announced_length_above_the_limit_is_rejected_before_the_body():
    request = request_with([b""])
    request.scope["headers"].append((b"content-length", b"99999999999"))

    assert parse_error(request).status == 413


@pytest.mark.parametrize(
    "parts, message",
    [
        ([("file", b"x", "a"), ("file", b"y", "b")], "exactly one file"),
        ([("purpose", b"x" * 70_000)], "too long"),
        ([(f"field{number}", b"") for number in range(40)], "more than 32 parts"),
    ],
)
def test_forms_above_the_limits_are_rejected(parts, message):
    assert message in parse_error(request_with([form(*parts, boundary=BOUNDARY)])).message


def test_a_form_without_a_file():
    assert parse(request_with([form(("purpose", b"x"), boundary=BOUNDARY)])) == (None, b"", {"purpose": "x"})


def test_a_part_named_file_without_filename_is_a_field():
    assert parse(request_with([form(("file", b"x"), boundary=BOUNDARY)])) == (None, b"", {"file": "x"})
