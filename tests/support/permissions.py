"""Rights of other users, for permission tests run as root: without its capabilities, or as another user."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CAP_DAC_OVERRIDE = 1 << 1
CAP_DAC_READ_SEARCH = 1 << 2


@contextmanager
def without_dac_override() -> Iterator[None]:
    """Drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of this thread, if it is root."""
    if os.geteuid() != 0:
        yield
        return
    if not sys.platform.startswith("linux"):
        pytest.skip("dropping capabilities requires Linux")
    before = effective_capabilities()
    effective_capabilities(before & ~(CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH))
    try:
        yield
    finally:
        effective_capabilities(before)


@contextmanager
def running_as(user: int) -> Iterator[None]:
    """Run with the rights of this user and of the group with the same number."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([user])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def effective_capabilities(new=None):
    """Get, and optionally set, the first 32 effective capabilities of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    if new is not None:
        sets[0] = new
        assert libc.capset(header, sets) == 0
    return sets[0]
