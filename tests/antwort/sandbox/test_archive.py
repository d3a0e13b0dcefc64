"""What is left of an archive that breaks off."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from antwort.sandbox.archive import unpack
from antwort.sandbox.errors import BadPath
from antwort.sandbox.files import Tree


def test_of_an_archive_that_breaks_off_only_whole_members_are_left(tmp_path):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, size in (("a", 10), ("b", 5000)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(b"n" * size))
    (tmp_path / "b").write_bytes(b"old")
    tree = Tree([os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)], None)
    try:
        with pytest.raises(BadPath, match="too early"):
            unpack(tree, io.BytesIO(whole.getvalue()[:3000]), "", limit=1 << 20)
    finally:
        tree.close()

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"n" * 10, "b": b"old"}
