"""Fixtures for tests of the host filesystem: both ways to open a path beneath a root."""

from __future__ import annotations

import pytest

from weakincentives.filesystem.beneath import best_opener, open_in_one_call, open_walking


@pytest.fixture(params=[open_walking, open_in_one_call])
def opener(request):
    """Both routes, where the kernel has both."""
    if request.param is open_in_one_call and best_opener() is not open_in_one_call:
        pytest.skip("this kernel has no openat2")
    return request.param
