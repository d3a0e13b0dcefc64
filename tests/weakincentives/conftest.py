"""Fixtures that the tests of several client packages share."""

from __future__ import annotations

import pytest

from weakincentives.filesystem.openat import default_opener, open_by_components, open_with_openat2


@pytest.fixture(params=[open_by_components, open_with_openat2])
def opener(request):
    """Both path-resolution functions; `openat2` only where the kernel has it."""
    if request.param is open_with_openat2 and default_opener() is not open_with_openat2:
        pytest.skip("this kernel has no openat2")
    return request.param
