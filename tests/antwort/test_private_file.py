from __future__ import annotations

import os
import stat
import threading

import pytest

from antwort.private_file import PrivateFile, PrivateFileError


@pytest.fixture
def file(tmp_path):
    return PrivateFile(tmp_path / "new" / "secret")


def write(file: PrivateFile, content: bytes) -> None:
    with file.locked():
        file.write(content)


def test_only_the_owner_may_access_the_file_and_its_new_directory(file):
    write(file, b"one")
    write(file, b"two")

    assert file.read() == b"two"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(entry.name for entry in file.path.parent.iterdir()) == [".secret.lock", "secret"]


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o640, 0o620, 0o601])
def test_a_file_that_other_users_may_access_is_not_read(file, mode):
    write(file, b"one")
    file.path.chmod(mode)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        file.read()


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(file, monkeypatch):
    write(file, b"one")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(file, b"two")
    assert file.read() == b"one"
    assert sorted(entry.name for entry in file.path.parent.iterdir()) == [".secret.lock", "secret"]


def test_the_lock_serializes_read_and_write(file):
    write(file, b"0")

    def add() -> None:
        with file.locked():
            file.write(str(int(file.read()) + 1).encode())

    threads = [threading.Thread(target=add) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert file.read() == b"16"
