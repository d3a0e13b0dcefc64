"""What is left of an archive that breaks off, and what is in one that is packed."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from antwort.net.errors import InvalidArchive
from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files.archive import pack, unpack
from antwort.sandbox.files.tree import FileTree


@pytest.fixture
def tree(tmp_path):
    opened = FileTree([os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)], None)
    yield opened
    opened.close()


def test_of_an_archive_that_breaks_off_only_whole_members_are_left(tree, tmp_path):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, size in (("a", 10), ("b", 5000)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(b"n" * size))
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(InvalidArchive, match="truncated"):
        unpack(tree, io.BytesIO(whole.getvalue()[:3000]), "", limit=1 << 20)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"n" * 10, "b": b"old"}


FILES = {
    "a": b"1",
    "block": b"x" * 512,
    "d/empty": b"",
    "d/large": b"y" * 3_000_000,
    "d/日本語 🎈": b"z",
    "n" * 200: b"n",
}


def packed(tree: FileTree, below: str = "", *, limit: int = 1 << 30) -> tuple[int, bytes]:
    sink = io.BytesIO()
    return pack(tree, sink, below, limit=limit), sink.getvalue()


def test_everything_is_packed_so_that_others_can_read_it(tree, tmp_path):
    for name, content in FILES.items():
        tree.write(name, content)
    tree.make_directory("d/hollow")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    os.utime(tmp_path / "a", (1, 1_700_000_000))
    os.utime(tmp_path / "block", (1, -5))
    count, data = packed(tree)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        members = {member.name: member for member in archive}
        files = {name: archive.extractfile(name) for name, member in members.items() if member.isfile()}
        assert {name: file.read() for name, file in files.items() if file is not None} == FILES

    assert {name for name, member in members.items() if member.isdir()} == {"d", "d/hollow"}
    assert count == len(FILES) + 2 == len(members)
    assert [members[name].mtime for name in ("a", "block")] == [1_700_000_000, -5]
    assert (members["a"].mode, members["d"].mode, len(data) % 512) == (0o644, 0o755, 0)


def test_what_is_packed_below_a_directory_is_named_from_there(tree):
    tree.write("d/e/f", b"1")
    tree.write("other", b"2")
    with tarfile.open(fileobj=io.BytesIO(packed(tree, "d")[1])) as archive:
        assert archive.getnames() == ["e", "e/f"]


def test_more_than_the_limit_is_not_packed(tree):
    tree.write("a", b"1" * 600)
    tree.write("b", b"2" * 600)
    assert packed(tree, limit=1200)[0] == 2
    with pytest.raises(TooLarge, match="1199 bytes"):
        packed(tree, limit=1199)


class _Cutting(io.BytesIO):
    """Cuts a file as soon as its first piece has come."""

    def __init__(self, path: os.PathLike[str]) -> None:
        super().__init__()
        self._path = path

    def write(self, data, /) -> int:
        if len(data) >= 1 << 20:
            os.truncate(self._path, 0)
        return super().write(data)


def test_a_file_that_is_cut_meanwhile_is_as_long_as_was_said(tree, tmp_path):
    tree.write("cut", b"x" * (3 << 20))
    tree.write("whole", b"y")
    sink = _Cutting(tmp_path / "cut")
    pack(tree, sink, "", limit=1 << 30)
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as archive:
        cut, whole = (archive.extractfile(name) for name in ("cut", "whole"))
        assert cut is not None
        assert whole is not None
        assert cut.read() == b"x" * (1 << 20) + bytes(2 << 20)
        assert whole.read() == b"y"
