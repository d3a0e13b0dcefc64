"""Whether contracts are checked. Asked once, when something is decorated, and never again."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

VARIABLE = "WEAKINCENTIVES_DBC"

_chosen: ContextVar[bool | None] = ContextVar("weakincentives_dbc", default=None)


def is_checking() -> bool:
    """Whether what is decorated now will be checked: as `checking` says, else as the environment does."""
    chosen = _chosen.get()
    return os.environ.get(VARIABLE, "0") not in {"", "0"} if chosen is None else chosen


@contextmanager
def checking(*, on: bool = True) -> Generator[None]:
    """Switch contracts on, or off, for everything that is decorated inside the `with` block.

    What was decorated before stays as it is; what is decorated inside stays checked after the block.
    """
    token = _chosen.set(on)
    try:
        yield
    finally:
        _chosen.reset(token)
