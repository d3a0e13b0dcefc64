"""SessionPackages: sets are hard-linked atomically, cost only directories, and are removed on close."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antwort.sandbox.errors import Ended, TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.packages.cache import Lease, PackageCache
from antwort.sandbox.packages.session_packages import SessionPackagesRoot

A, B = "a" * 64, "b" * 64


def leased(cache: PackageCache, name: str, directories: int = 1) -> Lease:
    with cache.staging_directory() as staging:
        for i in range(directories):
            (staging / "out" / f"d{i}").mkdir(parents=True)
            (staging / "out" / f"d{i}" / "file.py").write_bytes(b"x" * 10_000)
        cache.put(name, staging / "out", quota.measure(staging / "out"))
    lease = cache.lease(name)
    assert lease is not None
    return lease


def test_a_set_is_hard_linked(tmp_path):
    cache = PackageCache(tmp_path, 1 << 20)
    session_packages = SessionPackagesRoot(cache).open()
    lease = leased(cache, A)
    name = session_packages.add(lease)
    assert os.listdir(session_packages.path) == [name]  # noqa: PTH208 - hidden names count
    linked, original = session_packages.path / name / "d0" / "file.py", lease.path / "d0" / "file.py"
    assert linked.samefile(original)
    assert linked.stat().st_mode & 0o777 == 0o444


def test_other_users_can_read_it_despite_the_umask(tmp_path):
    """If the server is root, containers run as other users."""
    before = os.umask(0o077)
    try:
        cache = PackageCache(tmp_path / "new", 1 << 20)
        parent = SessionPackagesRoot(cache)
        session_packages = parent.open()
        session_packages.add(leased(cache, A))
    finally:
        os.umask(before)
    closed = [path for path, info in quota.walk(tmp_path) if not info.st_mode & 0o004]
    assert closed == []
    parent.close()


def test_adding_a_set_twice_links_it_once(tmp_path):
    cache = PackageCache(tmp_path, 1 << 20)
    session_packages = SessionPackagesRoot(cache).open()
    first = session_packages.add(leased(cache, A))
    again = cache.lease(A)
    assert again is not None
    assert session_packages.add(again) == first


def test_sets_stay_leased_until_close(tmp_path):
    cache = PackageCache(tmp_path, 50_000)
    parent = SessionPackagesRoot(cache)
    session_packages = parent.open()
    session_packages.add(leased(cache, A, 2))
    with pytest.raises(TooLarge):
        leased(cache, B, 2)
    session_packages.close()
    leased(cache, B, 2).release()
    assert not (tmp_path / A).exists()
    assert not session_packages.path.exists()
    parent.close()
    assert [path.name for path in tmp_path.iterdir()] == [B]


def test_directories_count_in_the_cache(tmp_path):
    """Otherwise every container could multiply a set of many directories for free."""
    cache = PackageCache(tmp_path, 3_000_000)
    parent = SessionPackagesRoot(cache)
    lease = leased(cache, A, 100)
    cost = quota.measure(lease.path).directories
    opened = []

    def multiply() -> None:
        while again := cache.lease(A):
            opened.append(parent.open())
            opened[-1].add(again)

    with pytest.raises(TooLarge):
        multiply()
    assert len(opened) - 1 <= 3_000_000 // cost
    for session_packages in opened:
        session_packages.close()
    parent.open().add(lease)


def test_add_after_close_raises(tmp_path):
    cache = PackageCache(tmp_path, 40_000)
    session_packages = SessionPackagesRoot(cache).open()
    session_packages.close()
    with pytest.raises(Ended):
        session_packages.add(leased(cache, A))
    leased(cache, B, 2)  # the lease on A was released
    assert not (tmp_path / A).exists()


def test_directories_of_killed_servers_are_removed_and_those_of_running_ones_are_not(tmp_path):
    cache = PackageCache(tmp_path, 1 << 20)
    parent = SessionPackagesRoot(cache)
    kept = parent.open()
    left = Path(tmp_path, ".session-packages-left", "one")
    left.mkdir(parents=True)
    PackageCache(tmp_path, 1 << 20)
    assert kept.path.is_dir()
    assert not left.exists()
    parent.close()
