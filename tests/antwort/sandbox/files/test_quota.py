"""Disk quota: hard links, sparse files, deep trees; and any tree can be removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.files.quota import MIN_FILE_COST, DiskUsage, Quota


def make_deep(top: Path, levels: int) -> None:
    """With descriptors, since the paths are too long."""
    directory = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 50, dir_fd=directory)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)


def test_empty_files_count_and_hard_links_do_not(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    assert quota.measure(tmp_path).files == 2
    (tmp_path / "d").mkdir()
    for i in range(5):
        os.link(tmp_path / "large", tmp_path / "d" / str(i))
    found = quota.measure(tmp_path)
    assert found.files == 3
    assert MIN_FILE_COST + 100_000 + found.directories <= found.size < 2 * 100_000
    assert found.directories >= MIN_FILE_COST


def test_a_sparse_file_counts_with_its_apparent_size(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert quota.measure(tmp_path).size >= 1 << 40


def test_measuring_stops_at_the_quota(tmp_path):
    for i in range(20):
        (tmp_path / str(i)).write_bytes(b"x" * 10_000)
    assert quota.measure(tmp_path, Quota(1 << 20, 20)).files == 20
    with pytest.raises(TooLarge, match="more than the limit of 19 files"):
        quota.measure(tmp_path, Quota(1 << 20, 19))
    with pytest.raises(TooLarge, match="more than the limit of 100000 bytes"):
        quota.measure(tmp_path, Quota(100_000, 20))


def test_links_are_not_followed(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "away").symlink_to("/usr")
    assert quota.measure(tmp_path) == DiskUsage(2 * MIN_FILE_COST, 2, 0)


def test_too_deep_or_too_long_is_over_quota_and_can_be_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, 3_000)
    with pytest.raises(TooLarge, match="a path longer than"):
        quota.measure(top)
    quota.remove(top)
    assert not top.exists()
    Path(top, *"d" * 70).mkdir(parents=True)
    with pytest.raises(TooLarge, match="nested directories"):
        quota.measure(top)


def test_unreadable_is_over_quota_and_can_be_removed(tmp_path):
    top = tmp_path / "top"
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "e" / "f").touch(0o000)
    (top / "d" / "e").chmod(0o000)
    (top / "d").chmod(0o500)
    if os.geteuid() != 0:  # root can read everything
        with pytest.raises(TooLarge, match="cannot be read"):
            quota.measure(top)
    quota.remove(top)
    assert not top.exists()


def test_a_process_that_writes_faster_than_its_directory_is_removed_does_not_hold_the_removal(tmp_path, monkeypatch):
    unlink = os.unlink

    def unlink_and_write(name, *, dir_fd):
        unlink(name, dir_fd=dir_fd)
        os.close(os.open(f"{name}x"[-8:], os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))

    (tmp_path / "top" / "a").mkdir(parents=True)
    (tmp_path / "top" / "a" / "file").touch()
    monkeypatch.setattr(os, "unlink", unlink_and_write)
    with pytest.raises(TimeoutError, match="a process writes"):
        quota.remove(tmp_path / "top", timeout=0.1)


def test_remove_tries_again_with_a_directory_to_which_a_process_has_written_meanwhile(tmp_path, monkeypatch):
    rmdir, written = os.rmdir, []

    def write_and_rmdir(name, *, dir_fd=None):
        if not written:
            written.append(name)
            os.close(os.open(f"{name}/late", os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))
        rmdir(name, dir_fd=dir_fd)

    (tmp_path / "top" / "a").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", write_and_rmdir)
    quota.remove(tmp_path / "top", timeout=60.0)
    assert written == ["a"]
    assert not (tmp_path / "top").exists()


def test_remove_follows_no_links(tmp_path):
    (tmp_path / "kept" / "d").mkdir(parents=True)
    (tmp_path / "kept").chmod(0o755)
    for name in ("link", "top/link", "top/d/link"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "kept")
    quota.remove(tmp_path / "link")
    quota.remove(tmp_path / "top")
    quota.remove(tmp_path / "never there")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "kept" / "d").is_dir()
