from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from permissions import running_as

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


SERVER, OTHER = 10001, 10002


@pytest.fixture
def mounted():
    """A file behind a link, as Kubernetes mounts Secrets: it belongs to root, and `fsGroup` to the server's group."""
    with tempfile.TemporaryDirectory() as directory:  # not tmp_path, which other users may not enter
        Path(directory).chmod(0o755)
        file = Path(directory, "secret")
        file.write_bytes(b"one")
        Path(directory, "link").symlink_to("secret")
        yield PrivateFile(Path(directory, "link"))


def give(file: PrivateFile, owner: int, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(file.path, owner, SERVER)
        file.path.chmod(mode)


@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_a_file_of_root_that_the_group_of_the_server_may_read_is_read(mounted, mode):
    give(mounted, 0, mode)
    with running_as(SERVER):
        assert mounted.read() == b"one"


@pytest.mark.parametrize(
    "owner,mode", [(0, 0o444), (0, 0o460), (0, 0o450), (SERVER, 0o440), (OTHER, 0o440), (OTHER, 0o640)]
)
def test_a_file_of_another_user_or_with_further_rights_is_not_read(mounted, owner, mode):
    give(mounted, owner, mode)
    with running_as(SERVER), pytest.raises(PrivateFileError, match="chmod 600"):
        mounted.read()


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
