"""`FileIndex`: directories, mirrored flag, remote paths. No I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters.openai.containers.api import RemoteFile
from weakincentives.adapters.openai.containers.index import FileEntry, FileIndex
from weakincentives.errors import MissingFileError, NotADirectoryPathError, NotAFileError

NAMES = st.text(st.characters(exclude_characters="\0/\\", codec="utf-8"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..")
)


def listed(remote_path: str, file_id: str = "", size: int = 1, source: str = "user") -> RemoteFile:
    return RemoteFile(file_id or f"id-{remote_path}", remote_path, size, 0, source)


def index_of(*paths: str) -> FileIndex:
    index = FileIndex()
    for path in paths:
        index.put(FileEntry(path, index.remote_path_for(path), f"id-{path}", 1, 0, is_mirrored=True))
    return index


def test_directories_follow_from_paths_and_mkdir():
    index = index_of("a/b/c", "a/d", "e")
    index.make_directory("x/y")

    assert (index.names("."), index.names("a"), index.names("x")) == (["a", "e", "x"], ["b", "d"], ["y"])
    index.remove("a/b/c")
    assert index.names("a") == ["b", "d"]  # its directory stays
    index.remove_directory("a")
    assert index.names(".") == ["e", "x"]
    assert [index.topmost_missing(path) for path in ("e", "new", "x/y/z/file", "p/q/r")] == ["e", "new", "x/y/z", "p"]


def test_invalid_paths_raise():
    index = index_of("a/b")

    assert index.find("a") is None
    assert index.check_writable("a/./new") == "a/new"
    for path, kind in (("x", MissingFileError), ("a/b/c", NotADirectoryPathError), ("a/b/c/d", NotADirectoryPathError)):
        with pytest.raises(kind):
            index.find(path)
    with pytest.raises(NotAFileError):
        index.check_writable("a")
    with pytest.raises(NotADirectoryPathError):
        index.check_writable("a/b/c")


def test_refresh_keeps_mirrored_flag_of_unchanged_files():
    index = index_of("same", "changed", "resized", "gone")
    index.put(FileEntry("archived", "archived", None, 1, 0, is_mirrored=True))
    index.put(FileEntry("rewritten", "rewritten", None, 1, 0, is_mirrored=True))
    index.refresh(
        [
            listed("same"),
            listed("changed", "id-new"),
            listed("resized", size=2),
            listed("archived"),
            listed("rewritten", source="assistant"),
            listed("new/file"),
        ]
    )

    assert {entry.path: entry.is_mirrored for entry in index} == {
        "same": True,
        "changed": False,
        "resized": False,
        "archived": True,
        "rewritten": False,
        "new/file": False,
    }
    assert index.has_missing([listed("same")])
    assert not index.has_missing([listed("same"), listed("archived")])


def test_refresh_keeps_directories_unless_replaced_by_a_file():
    index = index_of("dir/file")
    index.make_directory("empty")
    index.make_directory("taken/below")
    index.remove("dir/file")
    index.refresh([listed("taken")])

    assert index.names(".") == ["dir", "empty", "taken"]
    assert index.created_directories == {"dir", "empty"}


@pytest.mark.parametrize("remote_path", ["../x", "a/../b", "a//b", "", ".", "a\\b", "x" * 300, "nul\0"])
def test_invalid_remote_paths_are_refused(remote_path):
    index = FileIndex()
    index.refresh([listed("fine"), listed(remote_path, "id-bad")])

    assert [entry.path for entry in index] == ["fine"]
    assert [name for name, _ in index.refused] == [remote_path]


def test_file_below_a_file_is_refused():
    index = FileIndex()
    index.refresh([listed("a/b"), listed("a")])

    assert [entry.path for entry in index] == ["a"]
    assert [name for name, _ in index.refused] == ["a/b"]


@given(st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), unique=True, max_size=8))
def test_remote_paths_are_unique_and_reversible(paths):
    index = FileIndex()
    kept = []
    for path in paths:
        if not index.is_directory(path) and not any(f"{path}/".startswith(f"{one}/") for one in kept):
            index.put(FileEntry(path, index.remote_path_for(path), None, 1, 0))
            kept.append(path)
    remote_paths = [entry.remote_path for entry in index]
    index.refresh([listed(remote_path) for remote_path in remote_paths])

    assert len(set(remote_paths)) == len(kept)
    assert sorted(entry.path for entry in index) == sorted(kept)
    assert all(
        len(part.encode()) <= 256 and part.isprintable()
        for remote_path in remote_paths
        for part in remote_path.split("/")
        if '"' in part
    )
    assert not any(character in remote_path for remote_path in remote_paths for character in '"\n\r\t\x7f\u2028\u202e')


def test_only_special_names_are_escaped():
    for name in (" ", "-rf", "a%20b", "日本 🎈", "👨\u200d👩", "x" * 255, "it's"):
        assert FileIndex().remote_path_for(f"d/{name}") == f"d/{name}"
    index = index_of('a"b', "a%22b", "a\nb")
    assert index.relocated() == {'a"b': "a%22b", "a%22b": "_a%22b", "a\nb": "a%0Ab"}
    long = FileIndex().remote_path_for("\n" * 255)
    assert len(long) <= 255
    assert long != FileIndex().remote_path_for("\n" * 254)
