"""Sets appear in a running container's directory whole, cost only directories, and are gone with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antwort.sandbox.errors import Ended, TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.packages.cache import Lease, PackageCache
from antwort.sandbox.packages.session_packages import SessionPackagesRoot

A, B = "a" * 64, "b" * 64


def leased(shelf: PackageCache, name: str, directories: int = 1) -> Lease:
    with shelf.workshop() as place:
        for i in range(directories):
            (place / "out" / f"d{i}").mkdir(parents=True)
            (place / "out" / f"d{i}" / "file.py").write_bytes(b"x" * 10_000)
        shelf.put(name, place / "out", quota.measure(place / "out"))
    lease = shelf.lease(name)
    assert lease is not None
    return lease


def test_a_set_is_the_same_files_under_further_names(tmp_path):
    shelf = PackageCache(tmp_path, 1 << 20)
    annex = SessionPackagesRoot(shelf).open()
    lease = leased(shelf, A)
    name = annex.add(lease)
    assert os.listdir(annex.path) == [name]  # noqa: PTH208 - hidden names count
    there, here = annex.path / name / "d0" / "file.py", lease.path / "d0" / "file.py"
    assert there.samefile(here)
    assert there.stat().st_mode & 0o777 == 0o444


def test_others_can_read_it_whatever_the_umask(tmp_path):
    """As root, containers are other users."""
    before = os.umask(0o077)
    try:
        shelf = PackageCache(tmp_path / "new", 1 << 20)
        annexes = SessionPackagesRoot(shelf)
        annex = annexes.open()
        annex.add(leased(shelf, A))
    finally:
        os.umask(before)
    closed = [path for path, info in quota.walk(tmp_path) if not info.st_mode & 0o004]
    assert closed == []
    annexes.close()


def test_asked_for_twice_it_is_there_once(tmp_path):
    shelf = PackageCache(tmp_path, 1 << 20)
    annex = SessionPackagesRoot(shelf).open()
    first = annex.add(leased(shelf, A))
    again = shelf.lease(A)
    assert again is not None
    assert annex.add(again) == first


def test_what_is_in_an_annex_stays_on_the_shelf_until_that_is_closed(tmp_path):
    shelf = PackageCache(tmp_path, 50_000)
    annexes = SessionPackagesRoot(shelf)
    annex = annexes.open()
    annex.add(leased(shelf, A, 2))
    with pytest.raises(TooLarge):
        leased(shelf, B, 2)
    annex.close()
    leased(shelf, B, 2).release()
    assert not (tmp_path / A).exists()
    assert not annex.path.exists()
    annexes.close()
    assert [path.name for path in tmp_path.iterdir()] == [B]


def test_directories_are_counted_since_they_are_made_anew(tmp_path):
    """A set of nothing but directories would otherwise be multiplied by every container at no cost."""
    shelf = PackageCache(tmp_path, 3_000_000)
    annexes = SessionPackagesRoot(shelf)
    lease = leased(shelf, A, 100)
    taken = quota.measure(lease.path).directories
    opened = []

    def multiply() -> None:
        while again := shelf.lease(A):
            opened.append(annexes.open())
            opened[-1].add(again)

    with pytest.raises(TooLarge):
        multiply()
    assert len(opened) - 1 <= 3_000_000 // taken
    for annex in opened:
        annex.close()
    annexes.open().add(lease)


def test_nothing_is_put_into_one_that_is_closed(tmp_path):
    shelf = PackageCache(tmp_path, 40_000)
    annex = SessionPackagesRoot(shelf).open()
    annex.close()
    with pytest.raises(Ended):
        annex.add(leased(shelf, A))
    leased(shelf, B, 2)  # A was let go of
    assert not (tmp_path / A).exists()


def test_those_of_a_killed_server_are_swept_and_those_of_a_running_one_are_not(tmp_path):
    shelf = PackageCache(tmp_path, 1 << 20)
    annexes = SessionPackagesRoot(shelf)
    kept = annexes.open()
    left = Path(tmp_path, ".annexes-left", "one")
    left.mkdir(parents=True)
    PackageCache(tmp_path, 1 << 20)
    assert kept.path.is_dir()
    assert not left.exists()
    annexes.close()
