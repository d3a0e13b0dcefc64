from __future__ import annotations

import errno
import os
import stat

import pytest

from weakincentives.filesystem import openat
from weakincentives.filesystem.openat import (
    LIST_DIR,
    READ_FILE,
    TRAVERSE,
    describe_mode,
    list_names,
    open_beneath,
    open_dir,
    read_all,
    write_all,
)


@pytest.fixture
def anchor(tmp_path):
    (tmp_path / "root/dir/sub").mkdir(parents=True)
    (tmp_path / "root/dir/file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    with open_dir(str(tmp_path / "root")) as descriptor:
        yield descriptor


def read(opener, anchor, *parts):
    with open_beneath(anchor, parts, READ_FILE, opener) as file:
        return read_all(file)


def open_descriptors():
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - numbers, not paths


def test_opens_paths_beneath_the_directory(opener, anchor):
    assert read(opener, anchor, "dir", "file") == b"inside"
    with open_beneath(anchor, (), LIST_DIR, opener) as directory:
        assert list_names(directory) == ["dir"]
    with open_beneath(anchor, ("dir",), TRAVERSE, opener) as directory:
        assert read(opener, directory, "file") == b"inside"


@pytest.mark.parametrize(
    "link, target, way",
    [
        ("dir/link", "file", ("dir", "link")),
        ("dir/link", "../../outside/file", ("dir", "link")),
        ("link", "dir", ("link", "file")),
        ("link", "../outside", ("link", "file")),
        ("link", "/", ("link", "etc", "passwd")),
        ("link", ".", ("link", "dir", "file")),
        ("dir/link", "/proc/self/root", ("dir", "link", "etc", "passwd")),
    ],
)
def test_no_link_is_followed(opener, anchor, tmp_path, link, target, way):
    (tmp_path / "root" / link).symlink_to(target)

    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number below says which
        read(opener, anchor, *way)
    assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}


@pytest.mark.parametrize(
    "parts, code",
    [(("nothing",), errno.ENOENT), (("dir", "nothing", "x"), errno.ENOENT), (("dir", "file", "x"), errno.ENOTDIR)],
)
def test_both_openers_raise_the_same_errors(opener, anchor, parts, code):
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number below says which
        read(opener, anchor, *parts)
    assert caught.value.errno == code


def test_fifo_does_not_block(opener, anchor, tmp_path):
    os.mkfifo(tmp_path / "root/fifo")

    with open_beneath(anchor, ("fifo",), READ_FILE, opener) as file:
        assert stat.S_ISFIFO(os.fstat(file).st_mode)


def test_no_descriptor_leaks(opener, anchor, tmp_path):
    (tmp_path / "root/link").symlink_to("dir")
    before = open_descriptors()
    for parts in [("dir", "file"), ("nothing", "x"), ("dir", "sub", "nothing"), ("link", "x"), ()]:
        try:
            os.close(opener(anchor, parts, TRAVERSE if not parts else READ_FILE))
        except OSError:
            continue

    assert open_descriptors() == before


def test_descriptors_are_not_inherited(opener, anchor):
    with open_beneath(anchor, ("dir",), LIST_DIR, opener) as directory:
        assert not os.get_inheritable(directory)


def test_tree_deeper_than_path_max(opener, anchor):
    parts = ("d" * 250,) * 20
    for length in range(1, len(parts) + 1):
        with open_beneath(anchor, parts[: length - 1], TRAVERSE, opener) as above:
            os.mkdir(parts[0], dir_fd=above)

    with open_beneath(anchor, parts, LIST_DIR, opener) as directory:
        assert list_names(directory) == []


def test_default_opener_is_cached_and_falls_back_on_an_old_kernel(monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(openat, "open_with_openat2", refuse)
    openat.default_opener.cache_clear()
    try:
        assert openat.default_opener() is openat.open_by_components
    finally:
        openat.default_opener.cache_clear()


def test_write_all_writes_all_bytes(tmp_path):
    content = os.urandom(300_000)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        write_all(writing, content[:65_536])
        assert read_all(reading, 1_000) == content[:1_000]
    finally:
        os.close(reading)
        os.close(writing)
    with (tmp_path / "file").open("wb") as file:
        write_all(file.fileno(), content)
    with (tmp_path / "file").open("rb") as file:
        assert read_all(file.fileno()) == content


@pytest.mark.parametrize(
    "mode, words",
    [
        (stat.S_IFREG, "a file"),
        (stat.S_IFDIR, "a directory"),
        (stat.S_IFLNK, "a symbolic link (links are never followed)"),
        (stat.S_IFIFO, "a FIFO"),
        (stat.S_IFSOCK, "a socket"),
        (stat.S_IFCHR, "a device"),
        (0, "a special file"),
    ],
)
def test_describe_mode(mode, words):
    assert describe_mode(mode) == words
