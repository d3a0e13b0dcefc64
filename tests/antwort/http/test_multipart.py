from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import anyio
import pytest
from fixtures_in_process_server import multipart_body
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from antwort.api.errors import ApiError
from antwort.config import Config
from antwort.http.multipart import receive_upload

BOUNDARY = b"----WebKitFormBoundary7MA4YWxkTrZu0gW"


def sent(chunks: list[bytes], *, kind: str | None = None, gone: bool = False) -> Request:
    """A request whose body comes in these chunks; `gone` where its sender does not stay for the end of it."""
    waiting = list(chunks)
    app = SimpleNamespace(state=SimpleNamespace(services=SimpleNamespace(config=Config())))

    async def receive():
        if waiting:
            return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting) or gone}
        return {"type": "http.disconnect"}

    kind = kind or f"multipart/form-data; boundary={BOUNDARY.decode()}"
    return Request({"type": "http", "headers": [(b"content-type", kind.encode())], "app": app}, receive)


def taken(request: Request, limit: int = 1_000_000) -> tuple[str | None, bytes, dict[str, str]]:
    async def take():
        upload = await receive_upload(request, limit)
        content = b"".join([chunk async for chunk in upload.content()])
        return upload.filename, content, upload.fields

    with ThreadPoolExecutor(1) as thread:  # whatever loop other tests have left in this one
        return thread.submit(anyio.run, take).result()


def refusal(request: Request, limit: int = 1_000_000) -> ApiError:
    with pytest.raises(ApiError) as caught:
        taken(request, limit)
    return caught.value


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


# Content that looks like the end of itself is the nasty kind.
contents = (
    st.lists(st.sampled_from([b"\r\n", b"--", BOUNDARY, b"\r\n--" + BOUNDARY[:-1], b"x", b"\0\xff"]), max_size=8)
    .map(b"".join)
    .filter(lambda content: b"\r\n--" + BOUNDARY not in b"\r\n" + content)
)


@given(contents, st.text(st.characters(codec="utf-8"), max_size=20), st.booleans(), st.lists(st.integers(0, 10_000)))
def test_a_form_is_read_whole_wherever_it_is_cut(content, value, behind, places):
    value = value.replace("\r\n--" + BOUNDARY.decode(), "")
    parts = [("file", content, "a.txt"), ("purpose", value.encode())]
    body = multipart_body(*(parts if behind else reversed(parts)), boundary=BOUNDARY)

    assert taken(sent(cut(body, places))) == ("a.txt", content, {"purpose": value})


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=5))
def test_any_bytes_are_a_form_or_an_error(body, places):
    with contextlib.suppress(ApiError):  # and nothing else is raised
        taken(sent(cut(body, places)))


@given(st.integers(0, 10_000))
def test_a_form_that_breaks_off_is_an_error_wherever_it_does(place):
    body = multipart_body(("purpose", b"user_data"), ("file", b"hello" * 10, "a.txt"), boundary=BOUNDARY)
    short = body[: place % (len(body) - len(b"--\r\n"))]

    assert refusal(sent([short])).code == "invalid_form"


def test_a_sender_who_goes_is_no_error_of_the_forms():
    body = multipart_body(("file", b"hello" * 10, "a.txt"), boundary=BOUNDARY)
    with pytest.raises(ClientDisconnect):
        taken(sent([body[:-20]], gone=True))


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=b"],
)
def test_what_is_no_form_is_refused(kind):
    assert refusal(sent([b""], kind=kind or "text/plain")).code == "invalid_content_type"


def test_a_boundary_without_end_is_refused():
    assert refusal(sent([b"x"], kind="multipart/form-data; boundary=" + "b" * 10_000)).status == 400


def test_a_file_is_as_large_as_it_may_be_and_no_larger():
    body = multipart_body(("file", b"x" * 1000, "a.txt"), boundary=BOUNDARY)

    assert len(taken(sent(cut(body, [100, 500])), 1000)[1]) == 1000
    assert refusal(sent(cut(body, [100, 500])), 999).status == 413


def test_a_file_that_says_how_large_it_is_is_refused_before_it_comes():
    request = sent([b""])
    request.scope["headers"].append((b"content-length", b"99999999999"))

    assert refusal(request).status == 413


@pytest.mark.parametrize(
    "parts, told",
    [
        ([("file", b"x", "a"), ("file", b"y", "b")], "exactly one file"),
        ([("purpose", b"x" * 70_000)], "too long"),
        ([(f"field{number}", b"") for number in range(40)], "more than 32 parts"),
    ],
)
def test_what_is_too_much_is_refused(parts, told):
    assert told in refusal(sent([multipart_body(*parts, boundary=BOUNDARY)])).message


def test_a_form_without_a_file_has_none():
    assert taken(sent([multipart_body(("purpose", b"x"), boundary=BOUNDARY)])) == (None, b"", {"purpose": "x"})


def test_a_part_that_is_called_file_but_has_no_name_is_a_field():
    assert taken(sent([multipart_body(("file", b"x"), boundary=BOUNDARY)])) == (None, b"", {"file": "x"})
