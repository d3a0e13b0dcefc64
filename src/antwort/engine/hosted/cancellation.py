"""Cancellations that leak from the code of providers: their own cancelled tasks and scopes, not that of the response.

`CancelledError` is no `Exception`. Without this, a provider that awaits a task of its own which was cancelled would
end the response, and a call in a task would end without a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class LeakedCancellation(Exception):
    """Code of a provider raised `CancelledError`, and the task that runs it is not cancelled."""


@contextmanager
def raise_leaked() -> Generator[None]:
    """Raise `LeakedCancellation` in place of a `CancelledError` that does not cancel the current task."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise LeakedCancellation("a provider raised CancelledError, but nothing was cancelled") from error
