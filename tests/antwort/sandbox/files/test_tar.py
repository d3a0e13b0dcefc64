"""Headers of archives: what common writers write is read, and what is meant to hurt costs nothing."""

from __future__ import annotations

import io
import tarfile
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.errors import BadPath, TooLarge
from antwort.sandbox.files import tar

LONG = "/".join(["directory-with-a-long-name"] * 8) + "/ä.txt"


def read(data: bytes) -> list[tuple[str, str, bytes]]:
    file = io.BytesIO(data)
    return [(m.name, m.kind, b"".join(tar.content(file, m.size))) for m in tar.members(file)]


def header(name: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def pax(*records: bytes) -> bytes:
    data = b"".join(records)
    return header("x", len(data), b"x") + data + b"\0" * (-len(data) % 512)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_is_written_in_any_format_is_read(form):
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w", format=form) as archive:
        for name, data in (("a", b"1"), ("d/b", b"x" * 512), ("d/c", b""), (LONG, b"y" * 1000)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o700
            archive.addfile(member, io.BytesIO(data))
        directory = tarfile.TarInfo("e")
        directory.type = tarfile.DIRTYPE
        archive.addfile(directory)
    seen = read(sent.getvalue())
    files = [("a", "file", b"1"), ("d/b", "file", b"x" * 512), ("d/c", "file", b""), (LONG, "file", b"y" * 1000)]
    assert [(name.rstrip("/"), kind, data) for name, kind, data in seen] == [*files, ("e", "directory", b"")]
    assert next(tar.members(io.BytesIO(sent.getvalue()))).executable


@given(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=120),
    st.sampled_from(["file", "directory"]),
    st.integers(0, 1 << 40),
    st.one_of(st.integers(-(1 << 33), 1 << 40), st.floats(-1e9, 1e12)),
)
def test_a_header_says_to_others_what_it_was_given(name, kind, size, modified):
    size = size if kind == "file" else 0
    written = tar.header(name, kind, size, modified)
    with tarfile.open(fileobj=io.BytesIO(written + tar.END), mode="r:", encoding="utf-8") as archive:
        member = archive.next()
    assert member is not None
    assert (member.name, member.isdir(), member.size, member.mtime) == (name, kind == "directory", size, int(modified))
    assert len(written) % 512 == 0
    ours = next(tar.members(io.BytesIO(written)))
    assert (ours.name.rstrip("/"), ours.kind, ours.size) == (name.rstrip("/"), kind, size)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"V"])
def test_whatever_else_there_is_is_something_else(kind):
    assert next(tar.members(io.BytesIO(header("x", 0, kind)))).kind == "other"


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_is_not_taken_into_memory_before_its_length_is_known_to_be_harmless(kind):
    with pytest.raises(TooLarge):
        read(header("x", 1 << 40, kind))


def test_a_chain_of_headers_takes_no_stack_and_digits_no_time():
    begun = time.monotonic()
    assert read(pax(b"10 path=a\n") * 3000 + header("x", 0, b"0")) == [("a", "file", b"")]
    with pytest.raises(BadPath):
        read(pax(b"1" * tar.LARGEST_EXTENSION))
    assert time.monotonic() - begun < 5


BAD = {
    "nothing": b"",
    "noise": b"noise" * 200,
    "cut in a header": header("a", 0, b"0")[:100],
    "cut in a file": header("a", 600, b"0") + b"x" * 512,
    "cut in the padding": header("a", 100, b"0") + b"x" * 100,
    "a wrong sum": b"b" + header("a", 0, b"0")[1:],
    "a record that is longer than it says": pax(b"9 path=a\n"),
    "a record of no length": pax(b"0 path=a\n"),
    "a record without an end": pax(b"99 path=a\n"),
    "a sparse file": pax(b"22 GNU.sparse.major=1\n", b"22 GNU.sparse.minor=0\n") + header("a", 0, b"0"),
    "one path for all": header("x", 10, b"g") + b"10 path=a\n" + b"\0" * 502,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_broken_is_refused(data):
    with pytest.raises(BadPath):
        read(data)


def test_a_size_below_nothing_is_refused():
    block = bytearray(header("a", 0, b"0"))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(BadPath):
        read(bytes(block))


@given(st.binary(max_size=2000))
def test_no_bytes_make_it_fail_in_any_other_way(data):
    for whole in (data, header("x", len(data), b"x") + data + b"\0" * (-len(data) % 512) + header("y", 0, b"0")):
        try:
            read(whole)
        except (BadPath, TooLarge):
            continue


def test_memory_is_bounded_whatever_the_headers_say():
    tracemalloc.start()
    try:
        for data in (pax(b"10 path=a\n") * 2000, header("a", 1 << 40, b"0") + b"x" * 1000):
            with pytest.raises(BadPath):
                read(data + b"x")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
