"""What several of these tests start from."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path

import pytest

from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.beneath import best_opener, open_in_one_call, open_walking


@pytest.fixture(params=[open_walking, open_in_one_call])
def opener(request):
    """Both routes, where the kernel has both."""
    if request.param is open_in_one_call and best_opener() is not open_in_one_call:
        pytest.skip("this kernel has no openat2")
    return request.param


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
    """Nothing is forbidden to root, unless root lays down the two capabilities that overrule permissions."""
    if os.geteuid() != 0:
        yield
        return
    if not sys.platform.startswith("linux"):
        pytest.skip("root cannot lay down its rights here")
    before = effective_capabilities()
    effective_capabilities(before & ~(CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH))
    yield
    effective_capabilities(before)


CAP_DAC_OVERRIDE = 1 << 1
CAP_DAC_READ_SEARCH = 1 << 2


def effective_capabilities(new=None):
    """The first 32 that this thread uses of those that it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    if new is not None:
        sets[0] = new
        assert libc.capset(header, sets) == 0
    return sets[0]
