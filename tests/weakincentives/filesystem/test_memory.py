from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.resources import Snapshotable


class Ticking:
    """A clock that moves a second whenever it is read."""

    def __init__(self):
        self.time = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self):
        self.time += timedelta(seconds=1)
        return self.time

    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        pass


def seconds(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_it_can_be_rolled_back():
    assert isinstance(InMemoryFilesystem(), Snapshotable)


def test_a_snapshot_and_the_write_after_it_do_not_depend_on_how_much_there_is():
    files = InMemoryFilesystem()
    for number in range(20_000):
        files.write_bytes(f"dir{number % 200}/file{number}", b"x")

    def a_tool_call():
        snapshot = files.snapshot()
        files.write_bytes("dir7/file7", b"y")
        files.restore(snapshot)

    copying_everything = min(seconds(lambda: {f"x{number}": number for number in range(20_000)}) for _ in range(5))
    assert min(seconds(a_tool_call) for _ in range(20)) < copying_everything / 5


def test_writes_without_a_snapshot_copy_nothing():
    def fill(count):
        files = InMemoryFilesystem()
        for number in range(count):
            files.write_bytes(f"file{number}", b"x")

    small = min(seconds(lambda: fill(1_000)) for _ in range(5))
    assert min(seconds(lambda: fill(10_000)) for _ in range(3)) < 40 * small


def test_times_come_from_the_clock():
    clock = Ticking()
    files = InMemoryFilesystem(clock=clock)
    files.write_text("dir/file", "1")
    first = files.stat("dir/file").modified_at
    files.write_text("dir/file", "2")

    assert files.stat("dir/file").modified_at > first
    assert files.stat("dir").modified_at >= files.stat("dir/file").modified_at


def test_only_its_own_snapshots_are_taken_back():
    with pytest.raises(FilesystemError, match="another filesystem"):
        InMemoryFilesystem().restore(InMemoryFilesystem().snapshot())
