"""FileTree: safe names, links, listings, atomic writes."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.errors import BadPath, NotFound, TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.files import tree as files
from antwort.sandbox.files.tree import FileTree, Listing, _remove_empty_directories, is_safe_name, split_path


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "outside").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    tree = FileTree([os.open(root, os.O_RDONLY | os.O_DIRECTORY)], None)
    yield tree
    tree.close()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@given(st.text())
def test_split_path_refuses_or_returns_safe_components(path):
    try:
        names = split_path(path)
    except BadPath:
        return
    assert "/".join(names) == path.removesuffix("/")
    assert not {"", ".", ".."} & set(names)
    assert all(
        is_safe_name(name) and not set(name) & set("\0\n\r\x1b\u2028\u202e") and len(name.encode()) <= 255
        for name in names
    )


@pytest.mark.parametrize(
    "name", ["Screenshot at 9.41\N{NARROW NO-BREAK SPACE}AM.png", "a\N{NO-BREAK SPACE}b", "👨\u200d👩.txt"]
)
def test_unusual_spaces_and_joined_emoji_are_allowed(tree, name):
    tree.write(name, b"x")
    assert name in [entry.path for entry in tree.list().entries]


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/etc/passwd", "..", ".", "a/..", "a//b", "a/" * 65 + "a", "x" * 256, "é" * 128),
        *("a\\b", "a\0b", "a\nb", "\x1b[31m", "\ud800", "\u202ex"),
    ],
)
@pytest.mark.parametrize("operation", ["read", "write", "stat", "delete", "move"])
def test_unsafe_names_are_refused_by_every_operation(tree, path, operation):
    arguments = {"read": (9,), "write": (b"",), "move": ("x",)}.get(operation, ())
    with pytest.raises(BadPath):
        getattr(tree, operation)(path, *arguments)
    if operation == "move":
        tree.write("existing", b"")
        with pytest.raises(BadPath):
            tree.move("existing", path)


def test_write_read_list_move_delete(tree):
    tree.write("a/b/c.txt", b"data")
    assert tree.read("a/b/c.txt", 4) == b"data"
    assert [(entry.path, entry.kind, entry.size) for entry in tree.list().entries] == [
        ("a", "directory", 0),
        ("a/b", "directory", 0),
        ("a/b/c.txt", "file", 4),
    ]
    tree.move("a/b/c.txt", "d")
    tree.delete("a")
    assert [entry.path for entry in tree.list().entries] == ["d"]
    with pytest.raises(NotFound):
        tree.read("a/b/c.txt", 4)
    with pytest.raises(TooLarge):
        tree.read("d", 3)


@pytest.mark.parametrize("target", ["../outside", "..", "/etc", "/etc/passwd"])
def test_links_are_never_followed(tree, root, target):
    (root / "link").symlink_to(target)
    for path in ("link", "link/passwd", "link/outside"):
        with pytest.raises((BadPath, NotFound)):
            tree.read(path, 1000)
    for path in ("link/new", "link/outside"):
        with pytest.raises((BadPath, NotFound)):
            tree.write(path, b"x")
    with pytest.raises((BadPath, NotFound)):
        tree.delete("link/outside")
    with pytest.raises((BadPath, NotFound)):
        tree.list("link")
    assert tree.list().entries == []
    tree.write("link", b"mine")
    assert (root / "link").read_bytes() == b"mine"
    assert (root.parent / "outside").read_text() == "secret"


def test_deleting_a_link_keeps_its_target(tree, root):
    (root / "deep").mkdir()
    (root / "deep" / "link").symlink_to(root.parent)
    tree.delete("deep")
    assert (root.parent / "outside").read_text() == "secret"


def test_fifos_and_sockets_are_refused_without_blocking(tree, root):
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    for name in ("fifo", "socket"):
        with pytest.raises(BadPath):
            tree.read(name, 1)
        assert tree.stat(name).kind == "other"
    assert tree.list() == Listing([], has_more=False)


def test_a_write_replaces_the_directory_entry(tree, root):
    """A file that the code has open or hard-linked elsewhere keeps its content."""
    (root / "a").write_text("old")
    os.link(root / "a", root / "b")
    tree.write("a", b"new")
    assert (root / "b").read_text() == "old"
    with pytest.raises(BadPath):
        tree.write("a/b", b"x")
    (root / "directory").mkdir()
    (root / "directory/file").touch()
    with pytest.raises(BadPath):
        tree.write("directory", b"x")


def test_unsafe_names_are_not_listed(tree, root):
    for name in (b"\xff", b"a\nb", b"a\\b", b"\x1b[0m", "\u202ex".encode()):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).touch()
    (root / "good").touch()
    assert [entry.path for entry in tree.list().entries] == ["good"]


def pages(tree, limit: int, below: str = "") -> list[list[str]]:
    found: list[list[str]] = []
    after, more = "", True
    while more:
        listing = tree.list(below, limit=limit, after=after)
        found.append([entry.path for entry in listing.entries])
        after, more = found[-1][-1] if found[-1] else "", listing.has_more
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 30])
def test_listings_are_paged(tree, root, limit):
    for path in ("a/b/c", "a/b/d", "a.txt", "b/a", "link-is-none/x", "z"):
        tree.write(path, b"")
    (root / "link").symlink_to("a")
    (root / "odd\\name").touch()
    whole = ["a", "a/b", "a/b/c", "a/b/d", "a.txt", "b", "b/a", "link-is-none", "link-is-none/x", "z"]
    found = pages(tree, limit)
    assert [path for page in found for path in page] == whole
    assert all(len(page) == limit for page in found[:-1])
    assert [path for page in pages(tree, limit, "a") for path in page] == ["a/b", "a/b/c", "a/b/d"]


def test_a_page_with_long_paths_ends_early(tree, root, monkeypatch):
    monkeypatch.setattr(files, "_MAX_PATHS", 1_000)
    directory = root / ("d" * 200)
    directory.mkdir()
    for number in range(20):
        (directory / f"{number:0200}").touch()
    pages, after = [], ""
    while not pages or pages[-1].has_more:
        pages.append(tree.list(after=after))
        after = pages[-1].entries[-1].path
    assert max(len(page.entries) for page in pages) == 3
    assert [entry.path for page in pages for entry in page.entries] == [
        directory.name,
        *sorted(f"{directory.name}/{path.name}" for path in directory.iterdir()),
    ]


def test_a_listing_continues_after_a_path_that_was_deleted(tree):
    for name in "abcd":
        tree.write(name, b"")
    tree.delete("b")
    listing = tree.list(after="b")
    assert ([entry.path for entry in listing.entries], listing.has_more) == (["c", "d"], False)
    for name in "xyz":
        tree.write(f"e/{name}", b"")
    tree.delete("e")
    assert tree.list(after="e/y") == Listing([], has_more=False)


@pytest.mark.parametrize(
    "below, after", [("a", "b"), ("a", "ab"), ("", "../x"), ("", "/x"), ("a", "a/../b"), ("a", "a/")]
)
def test_after_must_be_a_path_below_the_directory(tree, below, after):
    tree.write("a/x", b"")
    with pytest.raises(BadPath):
        tree.list(below, after=after)


@given(st.lists(st.text("ab./", min_size=1, max_size=6), max_size=12), st.integers(1, 5))
def test_pages_of_any_size_add_up_to_the_whole_listing(paths, limit):
    with tempfile.TemporaryDirectory() as directory:
        tree = FileTree([os.open(directory, os.O_RDONLY | os.O_DIRECTORY)], None)
        for path in paths:
            with contextlib.suppress(BadPath, NotFound):
                tree.write(path, b"")
        whole = [entry.path for entry in tree.list().entries]
        assert len(set(whole)) == len(whole) == sum(len(d) + len(f) for _, d, f in os.walk(directory))
        assert [path for page in pages(tree, limit) for path in page] == whole
        tree.close()


def test_deep_trees_use_a_bounded_number_of_descriptors(tree, root):
    """Each level uses one descriptor while it is walked."""
    os.chdir(root)
    try:
        for _ in range(700):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir("/")
    assert len(tree.list().entries) <= 66
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TooLarge):
        tree.delete("d")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("remove", ["FileTree.delete", "quota.remove"])
def test_a_directory_with_many_names_is_removed_in_bounded_memory(tree, root, remove):
    (root / "many").mkdir()
    for number in range(12_000):
        (root / "many" / f"{'x' * 200}{number}").touch()
    tracemalloc.start()
    try:
        if remove == "quota.remove":
            quota.remove(root / "many")
        else:
            tree.delete("many")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # all names are 3 MB
    finally:
        tracemalloc.stop()
    assert list(root.iterdir()) == []


def test_after_close_reads_raise(tree):
    tree.close()
    with pytest.raises(NotFound):
        tree.read("x", 1)


# ── atomic writes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_replaced_on_commit(tree, root):
    tree.write("dir/a.txt", b"old")
    with tree.open_write("dir/a.txt", 0o755) as pending:
        pending.write(b"new")
        pending.write(b"er")
        assert [entry.path for entry in tree.list().entries] == ["dir", "dir/a.txt"]
        assert tree.read("dir/a.txt", 10) == b"old"
    assert tree.read("dir/a.txt", 10) == b"newer"
    assert (root / "dir" / "a.txt").stat().st_mode & 0o777 == 0o755
    assert len(list((root / "dir").iterdir())) == 1


def test_an_aborted_write_keeps_the_old_file(tree, root):
    tree.write("a.txt", b"old")
    pending = tree.open_write("a.txt")
    pending.write(b"half of the n")
    pending.close(commit=False)
    assert tree.read("a.txt", 10) == b"old"
    assert [path.name for path in root.iterdir()] == ["a.txt"]


def test_a_directory_with_files_is_not_replaced(tree, root):
    (root / "d" / "inner").mkdir(parents=True)
    (root / "d" / "file").touch()
    with pytest.raises(BadPath):
        tree.write("d", b"x")
    assert [path.name for path in root.iterdir()] == ["d"]


def test_directories_without_files_are_replaced(tree, root):
    (root / "dir/sub/deep").mkdir(parents=True)
    (root / "dir/other").mkdir()
    tree.write("dir", b"a file now")

    assert (root / "dir").read_bytes() == b"a file now"
    assert [path.name for path in root.iterdir()] == ["dir"]


def test_directories_with_anything_else_in_them_are_not_replaced(tree, root):
    (root / "dir/empty").mkdir(parents=True)
    (root / "dir/sub").mkdir()
    (root / "dir/sub/link").symlink_to("nowhere")
    with pytest.raises(BadPath, match="directory"):
        tree.write("dir", b"a file")

    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [
        *("dir", "dir/empty", "dir/sub", "dir/sub/link")
    ]


def test_directories_over_the_depth_limit_are_not_replaced(tree, root):
    deep = root
    for _ in range(80):
        deep = deep / "d"
        deep.mkdir()
    with pytest.raises(BadPath, match="directory"):
        tree.write("d", b"a file")
    descriptor = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="not empty"):  # code can add them after the check
            _remove_empty_directories("d", descriptor, 0)
    finally:
        os.close(descriptor)

    assert deep.is_dir()


def test_a_partial_file_replaced_by_the_code_is_not_followed(tree, root):
    pending = tree.open_write("a.txt")
    (root / pending.partial_name).unlink()
    with pytest.raises(NotFound):
        pending.close(commit=True)
    with tree.open_write("b.txt") as pending:
        (root / pending.partial_name).unlink()
        (root / pending.partial_name).symlink_to(root.parent / "outside")
    with pytest.raises(BadPath):
        tree.read("b.txt", 10)
    assert (root.parent / "outside").read_text() == "secret"
