from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.lock import StoreLock, lock_holder

HOLDER_PROGRAM = """
import sys, time
from pathlib import Path
from antwort.storage.sqlite.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]), Path(sys.argv[2]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "blobs").mkdir()
    return tmp_path


@pytest.fixture
def other(directory):
    """A process that holds the lock."""
    command = [sys.executable, "-c", HOLDER_PROGRAM, str(directory / "antwort.db"), str(directory / "blobs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_lock_fails_with_the_holders_pid_and_a_remedy(directory, other):
    with pytest.raises(UnusableStore) as caught:
        StoreLock(directory / "antwort.db", directory / "blobs")

    assert str(directory / "antwort.db") in str(caught.value)
    assert f"process {other.pid}" in str(caught.value)
    assert "Stop that process" in str(caught.value)
    assert "storage.url" in str(caught.value)
    assert lock_holder(directory / "antwort.db") == f"another antwort (process {other.pid})"


def test_a_killed_process_leaves_no_lock(directory, other):
    other.kill()
    other.wait()

    assert lock_holder(directory / "antwort.db") is None
    StoreLock(directory / "antwort.db", directory / "blobs").release()


def test_a_symlink_to_the_database_shares_its_lock(directory, other):
    (directory / "link.db").symlink_to(directory / "antwort.db")
    (directory / "more").mkdir()

    with pytest.raises(UnusableStore, match="in use"):
        StoreLock(directory / "link.db", directory / "more")


def test_the_blob_directory_is_locked_too(directory, other):
    with pytest.raises(UnusableStore, match=r"blobs is in use .*storage\.blobs"):
        StoreLock(directory / "other.db", directory / "blobs")
    assert lock_holder(directory / "other.db") is None


def test_a_released_lock_can_be_acquired_again(directory):
    for _ in range(2):
        lock = StoreLock(directory / "antwort.db", directory / "blobs")
        assert lock_holder(directory / "antwort.db") == f"another antwort (process {os.getpid()})"
        lock.release()
        lock.release()
        assert lock_holder(directory / "antwort.db") is None
