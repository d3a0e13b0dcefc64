"""What ends with the tests of this process. `atexit` is too late: a process of xdist may be killed before."""

from __future__ import annotations

from contextlib import ExitStack

SESSION = ExitStack()
"""Closed by the hook of `conftest.py`."""
