"""Sets are sealed, stay while they are leased, and make room for others in the order in which they were used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.packages.cache import PackageCache

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
SIZE = 100_000


def put(shelf: PackageCache, name: str, size: int = SIZE) -> None:
    with shelf.workshop() as place:
        out = place / "out"
        (out / "module").mkdir(parents=True)
        (out / "module" / "file.py").write_bytes(b"x" * size)
        shelf.put(name, out, quota.measure(out))


def names(shelf: PackageCache) -> str:
    return "".join(sorted(path.name[0] for path in shelf.directory.iterdir()))


def used(shelf: PackageCache, name: str, at: int) -> None:
    os.utime(shelf.directory / name, (at, at))


def test_what_is_put_there_can_be_leased_and_not_changed(tmp_path):
    shelf = PackageCache(tmp_path, 1 << 20)
    assert shelf.lease(A) is None
    put(shelf, A)
    lease = shelf.lease(A)
    assert lease is not None
    for path, info in quota.walk(lease.path):
        assert not stat.S_IMODE(info.st_mode) & 0o222, path
    assert stat.S_IMODE(lease.path.stat().st_mode) == 0o555
    assert names(shelf) == "a"
    lease.release()
    lease.release()


def test_only_files_and_directories_are_kept_and_no_mode_but_the_plain_ones(tmp_path):
    shelf = PackageCache(tmp_path, 1 << 20)
    with shelf.workshop() as place:
        out = place / "out"
        (out / "d").mkdir(parents=True)
        (out / "d" / "link").symlink_to("/etc")
        (out / "d" / "file-link").symlink_to("/etc/passwd")
        os.mkfifo(out / "d" / "fifo")
        for name, mode in (("program", 0o6777), ("text", 0o666)):
            (out / "d" / name).touch()
            (out / "d" / name).chmod(mode)
        shelf.put(A, out, quota.measure(out))
    found = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / A / "d").iterdir()}
    assert found == {"program": 0o555, "text": 0o444}


def test_the_longest_unused_goes_first_and_what_is_in_use_stays(tmp_path):
    shelf = PackageCache(tmp_path, 3 * SIZE + 50_000)
    for at, name in enumerate((A, B, C)):
        put(shelf, name)
        used(shelf, name, at)
    lease = shelf.lease(A)
    assert lease is not None
    used(shelf, A, 0)
    put(shelf, D)
    assert names(shelf) == "acd"
    lease.release()
    put(shelf, B)
    assert names(shelf) == "abd"  # letting go of A was the last use of it


def test_when_everything_is_in_use_nothing_more_is_taken(tmp_path):
    shelf = PackageCache(tmp_path, 2 * SIZE + 50_000)
    for name in (A, B):
        put(shelf, name)
    leases = [lease for name in (A, B, A) if (lease := shelf.lease(name))]
    for _ in range(2):
        with pytest.raises(TooLarge, match="no room among the server's packages"):
            put(shelf, C)
        leases.pop().release()  # A is still leased once
    leases.pop().release()
    put(shelf, C)
    assert names(shelf) in {"ac", "bc"}


def test_what_is_larger_than_all_of_it_drives_nothing_out_that_is_in_use(tmp_path):
    shelf = PackageCache(tmp_path, 2 * SIZE)
    put(shelf, A)
    lease = shelf.lease(A)
    with pytest.raises(TooLarge):
        put(shelf, B, 4 * SIZE)
    assert names(shelf) == "a"
    assert lease is not None
    lease.release()


def test_what_others_put_beside_counts_too(tmp_path):
    shelf = PackageCache(tmp_path, 2 * SIZE + 50_000)
    put(shelf, A)
    shelf.reserve(2 * SIZE)
    assert names(shelf) == ""
    with pytest.raises(TooLarge):
        put(shelf, B)
    shelf.give_back(2 * SIZE)
    put(shelf, B)
    assert names(shelf) == "b"


def test_a_second_server_sees_what_the_first_uses_and_what_it_takes(tmp_path):
    first, second = PackageCache(tmp_path, 2 * SIZE + 50_000), PackageCache(tmp_path, 2 * SIZE + 50_000)
    put(first, A)
    lease = first.lease(A)
    put(second, B)
    put(second, C)
    assert names(first) == "ac"
    assert first.lease(B) is None
    put(second, A)  # it is there already, and stays
    assert lease is not None
    lease.release()


def test_a_killed_server_holds_nothing_and_its_half_done_work_is_removed(tmp_path):
    put(PackageCache(tmp_path, 1 << 20), A)
    code = f"""
import os, pathlib, signal
from antwort.sandbox.packages.cache import PackageCache
cache = PackageCache(pathlib.Path({str(tmp_path)!r}), 1 << 20)
lease = cache.lease({A!r})
with cache.workshop() as place:
    directory = place / "out"
    for _ in range(40): directory.mkdir(mode=0o700); directory = directory / "deeper"
    print(place.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert (tmp_path / done.stdout.strip() / "out").is_dir()
    shelf = PackageCache(tmp_path, SIZE + 50_000)
    assert names(shelf) == "a"
    put(shelf, B)
    assert names(shelf) == "b"


def test_names_of_other_kinds_are_left_alone(tmp_path):
    (tmp_path / "the operator's own").mkdir()
    shelf = PackageCache(tmp_path, SIZE + 50_000)
    put(shelf, A)
    put(shelf, B)
    assert Path(tmp_path, "the operator's own").is_dir()
    assert not Path(tmp_path, A).exists()
