"""The tar modules of client and server, which share no code, read the same archives."""

from __future__ import annotations

import io
import tarfile

import pytest

from antwort.net import tar as server_tar
from weakincentives.filesystem.tar import TarEntry, pack, unpack

FILES = {"short": b"", "d/" * 60 + "long": b"x" * 513, "ü" * 60: b"y" * 512, "name with\nline feed": b"z"}


def read_with_client(archive: bytes) -> list[tuple[str, str, bytes]]:
    return [(member.name.rstrip("/"), member.kind, b"".join(member.content)) for member in unpack([archive])]


def read_with_server(archive: bytes) -> list[tuple[str, str, bytes]]:
    file = io.BytesIO(archive)
    return [
        (member.name.rstrip("/"), member.kind, b"".join(server_tar.content(file, member.size)))
        for member in server_tar.members(file)
    ]


def written_by_client() -> bytes:
    files = [TarEntry(name, len(data), lambda data=data: io.BytesIO(data)) for name, data in FILES.items()]
    return b"".join(pack([TarEntry("folder"), *files]))


def written_by_server() -> bytes:
    files = [
        server_tar.header(name, "file", len(data), 0) + data + server_tar.padding(len(data))
        for name, data in FILES.items()
    ]
    return b"".join([server_tar.header("folder", "directory", 0, 0), *files, server_tar.END])


def written_by_tarfile(form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        written_by_client,
        written_by_server,
        lambda: written_by_tarfile(tarfile.PAX_FORMAT),
        lambda: written_by_tarfile(tarfile.GNU_FORMAT),
    ],
    ids=["client", "server", "pax", "gnu"],
)
def test_client_and_server_read_the_same_members(write):
    archive = write()
    expected = [("folder", "directory", b""), *((name, "file", data) for name, data in FILES.items())]

    assert read_with_client(archive) == expected
    assert read_with_server(archive) == expected


def test_client_and_server_reject_a_truncated_archive():
    archive = written_by_client()[:-1600]

    with pytest.raises(OSError, match="unexpected end"):
        read_with_client(archive)
    with pytest.raises(server_tar.InvalidArchive):
        read_with_server(archive)
