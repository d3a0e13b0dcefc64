"""tar headers: archives of common writers are read; hostile archives cost neither memory nor time."""

from __future__ import annotations

import io
import tarfile
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net import tar
from antwort.net.errors import InvalidArchive, SizeLimitExceeded

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
def test_ustar_gnu_and_pax_archives_are_read(form):
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
def test_tarfile_reads_our_headers(name, kind, size, modified):
    size = size if kind == "file" else 0
    written = tar.header(name, kind, size, modified)
    with tarfile.open(fileobj=io.BytesIO(written + tar.END), mode="r:", encoding="utf-8") as archive:
        member = archive.next()
    assert member is not None
    assert (member.name, member.isdir(), member.size, member.mtime) == (name, kind == "directory", size, int(modified))
    assert len(written) % 512 == 0
    member_read = next(tar.members(io.BytesIO(written)))
    assert (member_read.name.rstrip("/"), member_read.kind, member_read.size) == (name.rstrip("/"), kind, size)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"V"])
def test_links_devices_and_unknown_types_are_of_kind_other(kind):
    assert next(tar.members(io.BytesIO(header("x", 0, kind)))).kind == "other"


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_the_size_of_an_extension_header_is_checked_before_it_is_read(kind):
    with pytest.raises(SizeLimitExceeded):
        read(header("x", 1 << 40, kind))


def test_a_chain_of_extension_headers_needs_no_recursion_and_long_digits_no_quadratic_time():
    begun = time.monotonic()
    assert read(pax(b"10 path=a\n") * 3000 + header("x", 0, b"0")) == [("a", "file", b"")]
    with pytest.raises(InvalidArchive):
        read(pax(b"1" * tar.MAX_EXTENSION_BYTES))
    assert time.monotonic() - begun < 5


BAD = {
    "empty": b"",
    "noise": b"noise" * 200,
    "truncated header": header("a", 0, b"0")[:100],
    "truncated content": header("a", 600, b"0") + b"x" * 512,
    "truncated padding": header("a", 100, b"0") + b"x" * 100,
    "wrong checksum": b"b" + header("a", 0, b"0")[1:],
    "PAX record longer than announced": pax(b"9 path=a\n"),
    "PAX record of length zero": pax(b"0 path=a\n"),
    "PAX record beyond the header": pax(b"99 path=a\n"),
    "sparse file": pax(b"22 GNU.sparse.major=1\n", b"22 GNU.sparse.minor=0\n") + header("a", 0, b"0"),
    "global path": header("x", 10, b"g") + b"10 path=a\n" + b"\0" * 502,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_an_invalid_archive_is_rejected(data):
    with pytest.raises(InvalidArchive):
        read(data)


def test_a_negative_size_is_rejected():
    block = bytearray(header("a", 0, b"0"))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(InvalidArchive):
        read(bytes(block))


@pytest.mark.parametrize(
    "position, field, message",
    [(124, b"9" * 11, "invalid numeric field in tar header"), (156, b"0", "header checksum mismatch")],
)
def test_the_error_names_the_cause(position, field, message):
    block = bytearray(header("a", 0, b"5"))
    block[position : position + len(field)] = field
    if position == 124:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(InvalidArchive, match=message):
        read(bytes(block))


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_rejected(data):
    for whole in (data, header("x", len(data), b"x") + data + b"\0" * (-len(data) % 512) + header("y", 0, b"0")):
        try:
            read(whole)
        except (InvalidArchive, SizeLimitExceeded):
            continue


def test_memory_is_bounded_whatever_size_the_headers_announce():
    tracemalloc.start()
    try:
        for data in (pax(b"10 path=a\n") * 2000, header("a", 1 << 40, b"0") + b"x" * 1000):
            with pytest.raises(InvalidArchive):
                read(data + b"x")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
