from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.lock import StoreLock, holder

HOLDS = """
import sys, time
from pathlib import Path
from antwort.storage.sqlite.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]), Path(sys.argv[2]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "blobs").mkdir()
    return tmp_path


@pytest.fixture
def other(place):
    """A process that holds the lock."""
    command = [sys.executable, "-c", HOLDS, str(place / "antwort.db"), str(place / "blobs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_who_has_it_and_what_to_do(place, other):
    with pytest.raises(UnusableStore) as caught:
        StoreLock(place / "antwort.db", place / "blobs")

    assert str(place / "antwort.db") in str(caught.value)
    assert f"process {other.pid}" in str(caught.value)
    assert "Stop that one" in str(caught.value)
    assert "storage.url" in str(caught.value)
    assert holder(place / "antwort.db") == f"another antwort (process {other.pid})"


def test_a_killed_process_leaves_no_lock(place, other):
    other.kill()
    other.wait()

    assert holder(place / "antwort.db") is None
    StoreLock(place / "antwort.db", place / "blobs").release()


def test_another_way_to_the_same_file_is_the_same_store(place, other):
    (place / "link.db").symlink_to(place / "antwort.db")
    (place / "more").mkdir()

    with pytest.raises(UnusableStore, match="in use"):
        StoreLock(place / "link.db", place / "more")


def test_the_contents_of_files_are_not_shared_either(place, other):
    with pytest.raises(UnusableStore, match=r"blobs is in use .*storage\.blobs"):
        StoreLock(place / "other.db", place / "blobs")
    assert holder(place / "other.db") is None


def test_released_it_is_free_and_can_be_taken_again(place):
    for _ in range(2):
        lock = StoreLock(place / "antwort.db", place / "blobs")
        assert holder(place / "antwort.db") == f"another antwort (process {os.getpid()})"
        lock.release()
        lock.release()
        assert holder(place / "antwort.db") is None
