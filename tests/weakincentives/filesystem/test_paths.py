from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weakincentives.errors import InvalidPathError
from weakincentives.filesystem.paths import VfsPath, is_addressable, join, normalise, split
from weakincentives.testing.filesystem import INVALID_PATHS

# Special characters are frequent, others occasional.
texts = st.lists(
    st.sampled_from(["..", ".", "/", "//", "a", "b c", "é", "\\", "\0", "\udcff", "x" * 200]) | st.text()
).map("".join)


@given(texts)
@example("a/../..")
@example("/..")
def test_split_rejects_a_path_or_keeps_it_below_the_root(path):
    try:
        parts = split(path)
    except InvalidPathError:
        return

    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(parts)
    assert not any(character in part for part in parts for character in "/\\\0")
    assert all(len(part.encode()) <= 255 for part in parts)


@given(texts)
def test_normal_form_is_idempotent(path):
    try:
        normal = normalise(path)
    except InvalidPathError:
        return

    assert normalise(normal) == normal
    assert join(split(normal)) == normal
    assert split(normal) == split(path)


@given(st.lists(st.sampled_from(["a", "b", "..", "."]), max_size=12))
def test_dot_components(parts):
    depth = 0
    leaves = False
    for part in parts:
        depth += {"..": -1, ".": 0}.get(part, 1)
        leaves = leaves or depth < 0

    if leaves:
        with pytest.raises(InvalidPathError, match="leaves the root"):
            split("/".join(parts))
    else:
        assert len(split("/".join(parts))) == depth


@pytest.mark.parametrize("path", INVALID_PATHS)
def test_error_message_has_reason_and_example(path):
    with pytest.raises(InvalidPathError, match=r"(?s)^invalid path .*: .* such as 'src/main.py'") as caught:
        split(path)

    assert len(str(caught.value)) < 300


def test_maximum_path_length_is_that_of_the_kernel():
    longest = "/".join(["x" * 255] * 15 + ["y" * 255])

    assert len(longest) == 4095
    assert len(split(longest)) == 16
    with pytest.raises(InvalidPathError, match="longer than 4095 bytes"):
        split("a/" + longest)


def test_is_addressable():
    assert is_addressable(("a", "b c", "é"))
    assert is_addressable(())
    assert not is_addressable(("a\\b",))
    assert not is_addressable(("\udcff",))
    assert not is_addressable(("x" * 255,) * 17)


@pytest.mark.parametrize(
    "given_path, text, segments",
    [
        (("workspace", "sunfish"), "workspace/sunfish", ("workspace", "sunfish")),
        (["a"], "a", ("a",)),
        ("workspace/sunfish", "workspace/sunfish", ("workspace", "sunfish")),
        ("/workspace/./sunfish/", "workspace/sunfish", ("workspace", "sunfish")),
        (".", ".", ()),
        ("/", ".", ()),
        ((), ".", ()),
    ],
)
def test_vfs_path_is_text_with_segments(given_path, text, segments):
    path = VfsPath(given_path)

    assert path == text
    assert isinstance(path, str)
    assert path.segments == segments
    assert VfsPath(path) == VfsPath(path.segments) == path


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "..",
        "../x",
        "a/../b",
        "/../x",
        "a\\b",
        "a\0",
        "x" * 256,
        ("..",),
        ("a", ""),
        ("a/b",),
        (".",),
        ("a", "..", "b"),
    ],
)
def test_vfs_path_cannot_leave_the_workspace(wrong):
    with pytest.raises(InvalidPathError):
        VfsPath(wrong)


def test_vfs_path_can_be_copied_and_pickled():
    path = VfsPath(("a", "b"))

    for same in (copy.deepcopy(path), pickle.loads(pickle.dumps(path))):  # noqa: S301 - our own bytes
        assert type(same) is VfsPath
        assert same.segments == ("a", "b")
