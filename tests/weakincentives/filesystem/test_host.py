from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weakincentives.errors import (
    FilesystemError,
    InvalidPathError,
    MissingFileError,
    NotADirectoryPathError,
    NotAFileError,
    WinkError,
)
from weakincentives.filesystem import HostFilesystem

# ── Links and special files ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["../outside/file", "dir/file", "nowhere", "link"])
def test_link_is_neither_read_nor_written_through(files, root, target, list_entries):
    (root / "link").symlink_to(target)
    before = list_entries(root.parent)

    with pytest.raises(NotAFileError, match="'link' is a symbolic link"):
        files.read_bytes("link")
    with pytest.raises(NotAFileError, match="'link' is a symbolic link"):
        files.write_text("link", "x")
    with pytest.raises(NotADirectoryPathError, match="'link' is a symbolic link"):
        files.list_dir("link")
    with pytest.raises(NotADirectoryPathError, match="'link' is a symbolic link"):
        files.mkdir("link")
    assert list_entries(root.parent) == before


@pytest.mark.parametrize("target", ["../outside", "dir", "/"])
def test_path_through_a_link_is_rejected(files, root, target, list_entries):
    (root / "link").symlink_to(target)
    before = list_entries(root.parent)

    for call in (
        lambda: files.read_bytes("link/file"),
        lambda: files.write_bytes("link/file", b"x"),
        lambda: files.write_bytes("link/new/file", b"x"),
        lambda: files.stat("link/file"),
        lambda: files.delete("link/file"),
        lambda: files.mkdir("link/made"),
        lambda: files.list_dir("link/dir"),
    ):
        with pytest.raises(NotADirectoryPathError, match=r"'link' in 'link/.*' is a symbolic link"):
            call()
    assert not files.exists("link/file")
    assert list_entries(root.parent) == before


def test_link_is_listed_and_can_be_deleted(files, root):
    (root / "link").symlink_to("../outside")

    assert files.list_dir() == ["dir", "link"]
    assert (files.exists("link"), files.is_file("link"), files.is_dir("link")) == (True, False, False)
    assert files.stat("link").special
    assert list(files.walk()) == [(".", ["dir"], []), ("dir", [], ["file"])]
    assert files.glob("**") == ["dir/file"]
    assert [match.path for match in files.grep("e")] == ["dir/file"]

    files.delete("link", recursive=True)
    assert files.list_dir() == ["dir"]
    assert (root.parent / "outside/file").read_text() == "secret"


def test_deleting_a_directory_does_not_follow_the_links_in_it(files, root):
    (root / "dir/link").symlink_to("../../outside")
    (root / "dir/sub").mkdir()
    (root / "dir/sub/up").symlink_to("..")

    files.delete("dir", recursive=True)

    assert files.list_dir() == []
    assert (root.parent / "outside/file").read_text() == "secret"


def test_special_files_are_rejected_without_blocking(files, root, monkeypatch):
    os.mkfifo(root / "fifo")
    monkeypatch.chdir(root)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name, what in (("fifo", "a FIFO"), ("socket", "a socket")):
            with pytest.raises(NotAFileError, match=f"'{name}' is {what}, not a file"):
                files.read_bytes(name)
            with pytest.raises(NotAFileError, match=f"'{name}' is {what}, not a file"):
                files.write_bytes(name, b"")
            assert files.stat(name).special
        assert files.grep("x") == []


def test_device_is_rejected():
    with pytest.raises(NotAFileError, match="a device"):
        HostFilesystem("/dev").read_bytes("null")


def test_root_may_be_a_link(root, opener):
    (root.parent / "alias").symlink_to("root")

    assert HostFilesystem(root.parent / "alias", opener=opener).read_text("dir/file") == "inside"


def test_root_descriptor_survives_a_rename_of_its_path(files, root):
    root.rename(root.parent / "moved")
    (root.parent / "root").symlink_to("outside")

    assert files.read_text("dir/file") == "inside"
    assert not files.exists("file")


def test_root_must_be_a_directory(root):
    for wrong in ("nothing", "dir/file"):
        with pytest.raises(FilesystemError, match=r"cannot open .* as the root"):
            HostFilesystem(root / wrong)


def test_unaddressable_names_are_not_listed_but_deleted(files, root):
    (root / "dir/back\\slash").write_text("x")
    (Path(os.fsdecode(os.fsencode(root) + b"/dir/\xff"))).write_text("x")

    assert files.list_dir("dir") == ["file"]
    assert files.glob("**") == ["dir/file"]
    with pytest.raises(FilesystemError, match="non-empty"):
        files.delete("dir")
    files.delete("dir", recursive=True)
    assert files.list_dir() == []


def test_tree_deeper_than_path_max_is_skipped_and_can_be_deleted(files, root):
    name = "d" * 200
    parent = os.open(root / "dir", os.O_RDONLY)
    for _ in range(25):
        os.mkdir(name, dir_fd=parent)
        child = os.open(name, os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    os.close(parent)

    assert files.glob("**") == ["dir/file"]
    with pytest.raises(InvalidPathError):
        files.list_dir("/".join(["dir", *[name] * 25]))
    files.delete("dir", recursive=True)
    assert files.list_dir() == []


# ── Races: concurrent renames cannot redirect an operation out of the root ────────────────────────────────────────────


# A separate process that atomically swaps two entries, so that neither is ever missing.
SWAP = """
import ctypes, os, sys
first, second = map(os.fsencode, sys.argv[1:])
libc, here, exchange = ctypes.CDLL(None), -100, 2
print("ready", flush=True)
while libc.renameat2(here, first, here, second, exchange) == 0:
    pass
"""


@contextlib.contextmanager
def swapping(root: Path):
    """Inside the block, `root/dir` alternates between a directory and a link to `outside`."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux can swap two entries in one step")
    (root / "trap").symlink_to("../outside")
    command = [sys.executable, "-c", SWAP, str(root / "dir"), str(root / "trap")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == "ready\n"
            yield
            assert swapper.poll() is None, "it stopped swapping"
        finally:
            swapper.kill()


def rounds(*, until=lambda: True):
    """Loop for a minimum time, then until enough was observed: a busy machine may run one process at a time."""
    start = time.monotonic()
    number = 0
    while (elapsed := time.monotonic() - start) < 0.4 or (elapsed < 30 and not until()):
        yield number
        number += 1


def test_race_fixture_catches_an_implementation_without_openat(root):
    seen = set()
    with swapping(root):
        for _ in rounds(until=lambda: "secret" in seen):
            if not (root / "dir").is_symlink():
                seen.add((root / "dir/file").read_text())

    assert "secret" in seen


def test_reads_never_leave_the_root_during_renames(files, root):
    seen = set()
    with swapping(root):
        for _ in rounds(until=lambda: "inside" in seen):
            with contextlib.suppress(FilesystemError):
                seen.add(files.read_text("dir/file"))
            with contextlib.suppress(FilesystemError):
                seen.add(files.stat("dir/file").size)
            with contextlib.suppress(FilesystemError):
                seen.update(match.line for match in files.grep("e"))
            seen.update(path for path in files.glob("**") if path.endswith("secret"))

    assert seen <= {"inside", 6}
    assert "inside" in seen


def test_writes_and_deletes_never_leave_the_root_during_renames(files, root, list_entries):
    (root.parent / "outside/precious").write_text("keep")
    outside = list_entries(root.parent / "outside")
    with swapping(root):
        for number in rounds():
            for call in (
                lambda: files.write_text("dir/file", "overwritten"),
                lambda: files.write_text("dir/new/deep", "new"),
                lambda: files.mkdir("dir/made"),
                lambda: files.delete("dir/precious"),
                lambda: files.delete("dir/new", recursive=True),
            ):
                with contextlib.suppress(FilesystemError):
                    call()
            if number % 50 == 0:
                assert list_entries(root.parent / "outside") == outside

    assert list_entries(root.parent / "outside") == outside


def test_restore_never_leaves_the_root_during_renames(files, root, list_entries):
    outside = list_entries(root.parent / "outside")
    with swapping(root):
        for _ in rounds():
            snapshot = files.snapshot()
            with contextlib.suppress(FilesystemError):
                files.write_text("dir/file", "changed")
            with contextlib.suppress(FilesystemError):
                files.delete("dir/file")
            with contextlib.suppress(FilesystemError):
                files.restore(snapshot)

    assert list_entries(root.parent / "outside") == outside


# ── Writes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_write_keeps_permissions(files, root):
    (root / "script.sh").write_text("old")
    for mode in (0o755, 0o600, 0o666):
        (root / "script.sh").chmod(mode)
        files.write_text("script.sh", "new")
        assert stat.S_IMODE((root / "script.sh").stat().st_mode) == mode


def test_new_file_has_the_mode_of_the_umask(files, root):
    before = os.umask(0o027)
    try:
        files.write_text("new/file", "x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((root / "new/file").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o750


def test_write_drops_setuid(files, root):
    (root / "tool").write_text("old")
    (root / "tool").chmod(0o4755)
    files.write_text("tool", "new")

    assert stat.S_IMODE((root / "tool").stat().st_mode) == 0o755


def test_writes_are_atomic(files, root):
    contents = {letter * 200_000 for letter in "ab"}
    files.write_text("file", "a" * 200_000)
    seen = set()
    stop = threading.Event()

    def look():
        while not stop.is_set():
            seen.add((root / "file").read_text())

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50):
        for content in contents:
            files.write_text("file", content)
    stop.set()
    thread.join()

    assert seen <= contents


def test_failed_write_leaves_no_temporary_file(files, root, list_entries):
    before = list_entries(root)

    with pytest.raises(TypeError):
        files.write_bytes("dir/file", "text")
    assert list_entries(root) == before


def test_permission_errors_are_reported(files, root, unprivileged):
    (root / "dir/file").chmod(0o400)
    with pytest.raises(FilesystemError, match="'dir/file': Permission denied"):
        files.write_text("dir/file", "x")
    (root / "dir").chmod(0o000)
    try:
        with pytest.raises(FilesystemError, match="'dir': Permission denied"):
            files.list_dir("dir")
    finally:
        (root / "dir").chmod(0o700)


def test_os_errors_are_translated_with_their_cause(files):
    with pytest.raises(MissingFileError) as caught:
        files.read_bytes("nothing")

    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.path == "nothing"


# ── Object ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_root_descriptor_is_closed_with_the_object(root):
    files = HostFilesystem(root)
    descriptor = files._root_fd
    del files
    gc.collect()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_repr_and_root(root):
    assert HostFilesystem(root).root == root
    assert repr(HostFilesystem(root)) == f"HostFilesystem({str(root)!r})"


def test_large_file_is_read_and_written_in_chunks(files, root):
    files.write_chunks("large", (b"x" * 1000 for _ in range(1000)))
    with files.open_read("large") as file:
        assert (file.read(3), file.seek(0, os.SEEK_END)) == (b"xxx", 1_000_000)


def test_interrupted_chunked_write_keeps_the_old_file(files, root, list_entries):
    before = list_entries(root)

    def content():
        yield b"some"
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        files.write_chunks("dir/file", content())
    assert list_entries(root) == before


def test_open_read_opens_only_files(files, root):
    (root / "link").symlink_to("dir/file")
    for path, kind in (("dir", NotAFileError), ("link", NotAFileError), ("nothing", MissingFileError)):
        with pytest.raises(kind):
            files.open_read(path)
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    with contextlib.suppress(NotAFileError):
        files.open_read("dir")
    assert (len(list(Path("/proc/self/fd").iterdir())) if before else 0) == before
