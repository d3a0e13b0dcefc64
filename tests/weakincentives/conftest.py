"""Fixtures that the tests of several client packages share."""

from __future__ import annotations

import pytest

from weakincentives.filesystem.openat import best_opener, open_in_one_call, open_walking


@pytest.fixture(params=[open_walking, open_in_one_call])
def opener(request):
    """Both path-resolution functions; `openat2` only where the kernel has it."""
    if request.param is open_in_one_call and best_opener() is not open_in_one_call:
        pytest.skip("this kernel has no openat2")
    return request.param
