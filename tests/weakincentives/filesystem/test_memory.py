from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.resources import Snapshotable


class TickingClock:
    """A clock that advances a second at each read."""

    def __init__(self):
        self.time = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self):
        self.time += timedelta(seconds=1)
        return self.time

    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        pass


def allocated(action):
    """Peak memory of an action above the baseline; copies count."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_is_snapshotable():
    assert isinstance(InMemoryFilesystem(), Snapshotable)


def test_cost_of_snapshot_and_next_write_is_independent_of_size():
    files = InMemoryFilesystem()
    for number in range(20_000):
        files.write_bytes(f"dir{number % 200}/file{number}", b"x")

    def a_tool_call():
        snapshot = files.snapshot()
        files.write_bytes("dir7/file7", b"y")
        files.restore(snapshot)

    copying_all_names = allocated(lambda: dict.fromkeys(range(20_000)))
    assert allocated(a_tool_call) < copying_all_names / 5


def test_writes_without_a_snapshot_copy_no_directories():
    files = InMemoryFilesystem()
    for number in range(20_000):
        files.write_bytes(f"file{number}", b"x")

    copying_all_names = allocated(lambda: dict.fromkeys(range(20_000)))
    assert allocated(lambda: files.write_bytes("file7", b"y")) < copying_all_names / 5


def test_modification_times_come_from_the_clock():
    clock = TickingClock()
    files = InMemoryFilesystem(clock=clock)
    files.write_text("dir/file", "1")
    first = files.stat("dir/file").modified_at
    files.write_text("dir/file", "2")

    assert files.stat("dir/file").modified_at > first
    assert files.stat("dir").modified_at >= files.stat("dir/file").modified_at


def test_snapshot_of_another_filesystem_is_rejected():
    with pytest.raises(FilesystemError, match="another filesystem"):
        InMemoryFilesystem().restore(InMemoryFilesystem().snapshot())
