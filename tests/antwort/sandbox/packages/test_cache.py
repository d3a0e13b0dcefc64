"""PackageCache: sets are read-only, stay while leased, and are evicted least recently used."""

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


def put(cache: PackageCache, name: str, size: int = SIZE) -> None:
    with cache.staging_directory() as staging:
        out = staging / "out"
        (out / "module").mkdir(parents=True)
        (out / "module" / "file.py").write_bytes(b"x" * size)
        cache.put(name, out, quota.measure(out))


def names(cache: PackageCache) -> str:
    return "".join(sorted(path.name[0] for path in cache.directory.iterdir()))


def set_last_used(cache: PackageCache, name: str, at: int) -> None:
    os.utime(cache.directory / name, (at, at))


def test_a_set_can_be_leased_and_is_read_only(tmp_path):
    cache = PackageCache(tmp_path, 1 << 20)
    assert cache.lease(A) is None
    put(cache, A)
    lease = cache.lease(A)
    assert lease is not None
    for path, info in quota.walk(lease.path):
        assert not stat.S_IMODE(info.st_mode) & 0o222, path
    assert stat.S_IMODE(lease.path.stat().st_mode) == 0o555
    assert names(cache) == "a"
    lease.release()
    lease.release()


def test_links_and_special_files_and_setuid_bits_are_removed(tmp_path):
    cache = PackageCache(tmp_path, 1 << 20)
    with cache.staging_directory() as staging:
        out = staging / "out"
        (out / "d").mkdir(parents=True)
        (out / "d" / "link").symlink_to("/etc")
        (out / "d" / "file-link").symlink_to("/etc/passwd")
        os.mkfifo(out / "d" / "fifo")
        for name, mode in (("program", 0o6777), ("text", 0o666)):
            (out / "d" / name).touch()
            (out / "d" / name).chmod(mode)
        cache.put(A, out, quota.measure(out))
    found = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / A / "d").iterdir()}
    assert found == {"program": 0o555, "text": 0o444}


def test_the_least_recently_used_set_is_evicted_and_leased_ones_stay(tmp_path):
    cache = PackageCache(tmp_path, 3 * SIZE + 50_000)
    for at, name in enumerate((A, B, C)):
        put(cache, name)
        set_last_used(cache, name, at)
    lease = cache.lease(A)
    assert lease is not None
    set_last_used(cache, A, 0)
    put(cache, D)
    assert names(cache) == "acd"
    lease.release()
    put(cache, B)
    assert names(cache) == "abd"  # releasing A updated its last use


def test_a_set_is_refused_when_all_others_are_leased(tmp_path):
    cache = PackageCache(tmp_path, 2 * SIZE + 50_000)
    for name in (A, B):
        put(cache, name)
    leases = [lease for name in (A, B, A) if (lease := cache.lease(name))]
    for _ in range(2):
        with pytest.raises(TooLarge, match="the package cache is full"):
            put(cache, C)
        leases.pop().release()  # A is still leased once
    leases.pop().release()
    put(cache, C)
    assert names(cache) in {"ac", "bc"}


def test_a_set_larger_than_the_cache_evicts_no_leased_set(tmp_path):
    cache = PackageCache(tmp_path, 2 * SIZE)
    put(cache, A)
    lease = cache.lease(A)
    with pytest.raises(TooLarge):
        put(cache, B, 4 * SIZE)
    assert names(cache) == "a"
    assert lease is not None
    lease.release()


def test_reserved_bytes_count(tmp_path):
    cache = PackageCache(tmp_path, 2 * SIZE + 50_000)
    put(cache, A)
    cache.reserve(2 * SIZE)
    assert names(cache) == ""
    with pytest.raises(TooLarge):
        put(cache, B)
    cache.unreserve(2 * SIZE)
    put(cache, B)
    assert names(cache) == "b"


def test_two_servers_share_leases_and_sizes(tmp_path):
    first, second = PackageCache(tmp_path, 2 * SIZE + 50_000), PackageCache(tmp_path, 2 * SIZE + 50_000)
    put(first, A)
    lease = first.lease(A)
    put(second, B)
    put(second, C)
    assert names(first) == "ac"
    assert first.lease(B) is None
    put(second, A)  # installed already, and stays
    assert lease is not None
    lease.release()


def test_locks_and_unfinished_directories_of_a_killed_server_are_released(tmp_path):
    put(PackageCache(tmp_path, 1 << 20), A)
    code = f"""
import os, pathlib, signal
from antwort.sandbox.packages.cache import PackageCache
cache = PackageCache(pathlib.Path({str(tmp_path)!r}), 1 << 20)
lease = cache.lease({A!r})
with cache.staging_directory() as staging:
    directory = staging / "out"
    for _ in range(40): directory.mkdir(mode=0o700); directory = directory / "deeper"
    print(staging.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert (tmp_path / done.stdout.strip() / "out").is_dir()
    cache = PackageCache(tmp_path, SIZE + 50_000)
    assert names(cache) == "a"
    put(cache, B)
    assert names(cache) == "b"


def test_other_directories_are_left_alone(tmp_path):
    (tmp_path / "the operator's own").mkdir()
    cache = PackageCache(tmp_path, SIZE + 50_000)
    put(cache, A)
    put(cache, B)
    assert Path(tmp_path, "the operator's own").is_dir()
    assert not Path(tmp_path, A).exists()
