from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.storage.transfer.archive import (
    CHUNK_BYTES,
    HEADER,
    Content,
    DamagedExport,
    ExportReader,
    ExportWriter,
    TableRows,
    TransferError,
    verify,
)

TABLES = {"responses": ["key", "id", "body"], "files": ["key", "body"]}
ROWS = [[1, "resp_1", b'{"a":1}'], [2, None, b"\xff\0"], [3, "é\0\n", 2.5]]

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
)


def written(*rows, content=b"content of a file"):
    file = io.BytesIO()
    writer = ExportWriter(file, TABLES)
    writer.rows("responses", rows or ROWS)
    member = writer.content(len(content))
    member.write(content)
    assert member.end()
    writer.rows("files", [[1, b"{}"]])
    writer.end()
    return file.getvalue()


def read(data):
    return [
        b"".join(member.chunks) if isinstance(member, Content) else (member.table, member.rows)
        for member in ExportReader(io.BytesIO(data)).members()
    ]


def test_rows_and_contents_are_read_as_they_were_written():
    assert read(written()) == [("responses", ROWS), b"content of a file", ("files", [[1, b"{}"]])]


@given(st.lists(st.tuples(values, values, values).map(list), min_size=1))
def test_every_value_survives(rows):
    found = read(written(*rows))

    assert repr(found[0]) == repr(("responses", rows))  # with the types: 1 is not 1.0, and not True


def test_rows_are_written_in_members_of_bounded_size():
    rows = [[number, "x", b"x" * 100_000] for number in range(50)]
    with tarfile.open(fileobj=io.BytesIO(written(*rows))) as archive:
        sizes = [member.size for member in archive if member.name.startswith("responses/")]

    assert len(sizes) > 3
    assert max(sizes) < CHUNK_BYTES + 200_000


def test_a_content_that_disappeared_is_filled_and_has_no_row():
    file = io.BytesIO()
    writer = ExportWriter(file, TABLES)
    member = writer.content(3_000_000)
    member.write(b"half")
    assert not member.end()
    writer.end()

    [content] = read(file.getvalue())
    assert content == b"half" + bytes(3_000_000 - 4)


def test_a_content_longer_than_announced_is_an_error():
    member = ExportWriter(io.BytesIO(), TABLES).content(3)
    with pytest.raises(TransferError, match="longer than its record says"):
        member.write(b"1234")


def test_every_truncation_is_an_error():
    data = written()
    end = data.rindex(b'"rows"')  # the last byte that matters; padding follows
    for size in [*range(0, 2048, 61), *range(2048, end, 97), end]:
        with pytest.raises(DamagedExport, match="Nothing was imported"):
            verify(io.BytesIO(data[:size]))
    verify(io.BytesIO(data))


def test_every_altered_byte_of_names_sizes_and_contents_is_an_error():
    data = written()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    places = [
        place
        for member in members
        for place in (member.offset, member.offset + 130, *range(member.offset_data, member.offset_data + member.size))
    ]
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 0x01
        with pytest.raises((DamagedExport, TransferError)):
            verify(io.BytesIO(bytes(altered)))


def test_members_in_another_order_are_an_error():
    with tarfile.open(fileobj=io.BytesIO(written())) as archive:
        members = [(member.name, member.size, archive.extractfile(member)) for member in archive]
        contents = [(name, size, file.read()) for name, size, file in members if file is not None]
    swapped = [contents[0], contents[2], contents[1], *contents[3:]]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, size, content in swapped:
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(DamagedExport, match="altered"):
        verify(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("data", [b"", b"x" * 600, bytes(1024), b"\x1f\x8b" + bytes(600)])
def test_another_file_is_an_error(data):
    with pytest.raises(DamagedExport):
        ExportReader(io.BytesIO(data))


NESTED = b'{"format":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("header", [b"", b"[]", b'{"format":"1"}', b'{"format":1,"tables":{"\xff":[]}}', NESTED])
def test_a_header_that_cannot_be_decoded_is_an_error(header):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(HEADER)
        info.size = len(header)
        archive.addfile(info, io.BytesIO(header))
    with pytest.raises(DamagedExport, match="its header is not valid"):
        ExportReader(io.BytesIO(file.getvalue()))


def test_an_end_that_cannot_be_decoded_is_an_error():
    data = written()
    at = data.index(b'"sha256":"') + len(b'"sha256":"')
    with pytest.raises(DamagedExport, match="its end is not valid"):
        verify(io.BytesIO(data[:at] + b"\xff" + data[at + 1 :]))


def test_another_archive_is_an_error():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("other"), io.BytesIO())
    with pytest.raises(DamagedExport, match="does not begin with the header"):
        ExportReader(io.BytesIO(file.getvalue()))


def test_a_newer_format_is_an_error_that_says_what_to_install():
    data = written().replace(b'"format":1', b'"format":2')
    with pytest.raises(TransferError, match="Install the version of antwort that wrote it"):
        ExportReader(io.BytesIO(data))


def test_contents_are_skipped_if_they_are_not_read():
    assert [type(member) for member in ExportReader(io.BytesIO(written())).members()] == [TableRows, Content, TableRows]
