from __future__ import annotations

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import FilesystemError
from weakincentives.filesystem.tar import TarEntry, pack, unpack

NAMES = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=80)
PATHS = st.lists(NAMES, min_size=1, max_size=6).map("/".join)


def packed(files: dict[str, bytes]) -> bytes:
    items = [
        TarEntry(name, len(content), lambda content=content: io.BytesIO(content)) for name, content in files.items()
    ]
    return b"".join(pack(items))


def read(data: bytes, piece: int = 1 << 20) -> dict[str, tuple[str, bytes]]:
    pieces = (data[start : start + piece] for start in range(0, len(data), piece))
    return {member.name: (member.kind, b"".join(member.content)) for member in unpack(pieces)}


@given(st.dictionaries(PATHS, st.binary(max_size=2000), max_size=5), st.integers(1, 5000))
def test_round_trip_in_chunks_of_any_size(files, piece):
    assert read(packed(files), piece) == {name: ("file", content) for name, content in files.items()}


@given(st.dictionaries(PATHS.filter(lambda path: not path.endswith("/")), st.binary(max_size=600), max_size=4))
def test_tarfile_reads_the_archive(files):
    with tarfile.open(fileobj=io.BytesIO(packed(files))) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        assert {name: file.read() for name, file in found.items() if file} == files


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_reads_archives_of_tarfile(form):
    names = ["short", "d/" * 40 + "long", "ü" * 40]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        tar.addfile(directory("folder"))
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(b"x" * 700))

    expected = {"folder": ("directory", b""), **dict.fromkeys(names, ("file", b"x" * 700))}
    assert {name.rstrip("/"): value for name, value in read(buffer.getvalue()).items()} == expected


def directory(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def test_directories_are_packed():
    assert read(b"".join(pack([TarEntry("empty")]))) == {"empty/": ("directory", b"")}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE])
def test_other_member_types_are_reported(kind):
    info = tarfile.TarInfo("odd")
    info.type, info.linkname = kind, "/etc/passwd"
    data = info.tobuf(tarfile.PAX_FORMAT) + packed({"after": b"1"})

    assert read(data) == {"odd": ("other", b""), "after": ("file", b"1")}


def test_sparse_file_is_reported_as_other():
    info = tarfile.TarInfo("sparse")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "other"}

    assert read(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)) == {"sparse": ("other", b"")}


def test_unread_content_is_skipped():
    data = packed({"a": b"1" * 3000, "b": b"2"})

    assert [member.name for member in unpack([data])] == ["a", "b"]


def test_end_marker_is_optional():
    assert read(packed({"a": b"1"})[: 512 * 2]) == {"a": ("file", b"1")}
    assert read(b"") == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:700],
        lambda data: data[:100],
        lambda data: b"x" + data[1:],
        lambda data: data[:124] + b"\xff" * 12 + data[136:],
        lambda data: pax(b"999 path=x\n"),
        lambda data: pax(b"path=x\n"),
        lambda data: pax(b"11 size=abc\n"),
        lambda data: header(b"x", 10 << 20),
    ],
)
def test_malformed_archive_is_an_error(spoil):
    with pytest.raises(FilesystemError, match="invalid tar archive"):
        read(spoil(packed({"a": b"1" * 600})))


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


def pax(records: bytes) -> bytes:
    return header(b"x", len(records)) + records.ljust(512, b"\0") + packed({"a": b""})


@given(st.binary(max_size=3000))
def test_arbitrary_bytes_are_read_or_rejected(data):
    with suppress(FilesystemError):
        read(data)


@given(st.data())
def test_corrupted_archive_is_read_or_rejected(data):
    good = bytearray(packed({"a/b": b"1" * 600, "ü" * 60: b"2"}))
    for _ in range(data.draw(st.integers(1, 5))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FilesystemError):
        read(bytes(good))


def test_file_that_shrinks_while_packed_is_an_error():
    with pytest.raises(FilesystemError, match="shrank"):
        list(pack([TarEntry("a", 10, lambda: io.BytesIO(b"123"))]))


def test_on_packed_is_called_for_files():
    sizes: list[int] = []
    items = [TarEntry("dir"), TarEntry("a", 3, lambda: io.BytesIO(b"123")), TarEntry("b", 0, lambda: io.BytesIO(b""))]
    list(pack(items, sizes.append))

    assert sizes == [3, 0]
