"""Fixtures: host directories with files inside and outside of the root."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from permissions import without_dac_override

from weakincentives.filesystem import HostFilesystem


@pytest.fixture
def root(tmp_path):
    """A root with a file, and a sibling directory that must not be accessible."""
    (tmp_path / "root/dir").mkdir(parents=True)
    (tmp_path / "root/dir/file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    return tmp_path / "root"


@pytest.fixture
def files(root, opener):
    return HostFilesystem(root, opener=opener)


@pytest.fixture
def list_entries():
    return _list_entries


def _list_entries(path: Path):
    """All entries below a directory: type, permissions and content."""
    found = {}
    for entry in sorted(path.rglob("*")):
        info = entry.lstat()
        content = None
        if stat.S_ISREG(info.st_mode):
            content = entry.read_bytes()
        elif stat.S_ISLNK(info.st_mode):
            content = str(entry.readlink())
        found[str(entry.relative_to(path))] = (stat.filemode(info.st_mode), content)
    return found


@pytest.fixture
def unprivileged():
    """Drop the capabilities with which root overrides file permissions."""
    with without_dac_override():
        yield
