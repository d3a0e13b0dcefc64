"""Errors of the shared HTTP and stream primitives. Each server maps them to the statuses of its own protocol.

NetError
├── QueueFull         a semaphore's queue is full, or the wait timed out (`retry_after`)
├── SizeLimitExceeded a request body or an archive header exceeds its limit (`limit`)
├── BodyTimeout       a request body stalled, or arrived below the minimum rate
├── InvalidArchive    not a complete tar archive, or one with unsupported members
└── EventTooLong      one server-sent event exceeds the reader's limit
"""

from __future__ import annotations


class NetError(Exception):
    """Root of the errors that `antwort.net` raises on purpose."""


class QueueFull(NetError):
    """All slots are in use and the queue is full, or the wait for a slot timed out."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class SizeLimitExceeded(NetError):
    """More bytes than `limit`."""

    def __init__(self, message: str, limit: int) -> None:
        self.limit = limit
        super().__init__(message)


class BodyTimeout(NetError):
    """The request body stalled, or arrived below the minimum rate."""


class InvalidArchive(NetError):
    """Not a complete tar archive, or one that uses an unsupported feature."""


class EventTooLong(NetError):
    """One server-sent event, or one of its lines, exceeds the limit."""
