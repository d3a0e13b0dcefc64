"""What several of these tests start from."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from permissions import rights_laid_down

from weakincentives.filesystem import HostFilesystem


@pytest.fixture
def root(tmp_path):
    """A root with something in it, and beside it what must not be reached."""
    (tmp_path / "root/dir").mkdir(parents=True)
    (tmp_path / "root/dir/file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    return tmp_path / "root"


@pytest.fixture
def files(root, opener):
    return HostFilesystem(root, opener=opener)


@pytest.fixture
def everything():
    return _everything


def _everything(path: Path):
    """All below a directory as the operating system sees it: kind, permissions and content."""
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
    """Nothing is forbidden to root, unless root lays down the rights that overrule permissions."""
    with rights_laid_down():
        yield
