from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError
from antwort.containers.paths import changes, path_for, relative_path
from antwort.containers.sandboxes.port import SandboxFile
from antwort.engine.stores import ContainerFileRecord, FileRecord


def known(identifier: str, path: str, size: int, modified: int) -> tuple[str, ContainerFileRecord]:
    record = ContainerFileRecord(
        id=identifier,
        container_id="cntr_1",
        path=path,
        bytes=size,
        created_at=1,
        source="user",
        modified=modified,
    )
    return path, record


def upload(name):
    return FileRecord(id="file-1", bytes=0, created_at=1, filename=name, purpose="user_data")


def test_changes_between_records_and_listing():
    before = dict(
        [known("same", "a", 1, 10), known("larger", "b", 1, 10), known("later", "c", 1, 10), known("gone", "d", 1, 1)]
    )
    there = [SandboxFile("a", 1, 10), SandboxFile("b", 2, 10), SandboxFile("c", 1, 11), SandboxFile("e", 0, 1)]
    found = changes(before, there)

    assert [file.path for file in found.written] == ["b", "c", "e"]
    assert found.removed_ids == ["gone"]
    assert changes({}, []).written == changes({}, []).removed_ids == []


@pytest.mark.parametrize(
    "name, path",
    [
        ("a.txt", "a.txt"),
        ("project/src/a.py", "project/src/a.py"),
        ("/mnt/data/a/b", "a/b"),
        ("./a", "a"),
        ("...", "..."),
        (" a\u00a0b ", " a\u00a0b "),
        ("👨\u200d👩.txt", "👨\u200d👩.txt"),
    ],
)
def test_a_valid_name_is_a_relative_path(name, path):
    assert relative_path(name, param="file") == path


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", ".", "..", "../a", "a/..", "/etc/passwd", "a//b", "a/", "/mnt/data/", "/mnt/data/../x", "././a/."),
        *("a\\b", "a\0b", "a\nb", "\u202ea", "a\u2028b", "\ud800", "x" * 256, "é" * 128, "/".join("x" * 65)),
    ],
)
def test_an_invalid_name_is_refused(name):
    with pytest.raises(ApiError) as error:
        relative_path(name, param="file")

    assert (error.value.status, error.value.param) == (400, "file")


@pytest.mark.parametrize(
    "name, taken, path",
    [
        ("a.csv", set(), "a.csv"),
        ("data/a.csv", set(), "data/a.csv"),
        ("data/a.csv", {"data/a.csv"}, "data/file-1-a.csv"),
        ("a.csv", {"a.csv", "file-1-a.csv"}, "file-1"),
        ("x" * 255, {"x" * 255}, "file-1"),
        ("../../etc/passwd", set(), "passwd"),
        ("C:\\tmp\\a.csv", set(), "C:tmpa.csv"),
        ("a\0b", set(), "ab"),
        ("..", set(), "file-1"),
        ("\n", set(), "file-1"),
    ],
)
def test_an_upload_keeps_its_name_if_valid_and_free(name, taken, path):
    assert path_for(upload(name), taken.__contains__) == path


@given(st.text(), st.sets(st.text(), max_size=3))
def test_the_path_of_an_upload_is_always_valid(name, taken):
    path = path_for(upload(name), taken.__contains__)

    assert relative_path(path, param="file") == path
    assert path not in taken or path == "file-1"
