"""Exceptions of the sandbox, grouped by whose fault they are.

    SandboxServerError
    ├── Unavailable            the host or the server: the request itself is valid
    │   ├── WeakHost           a protection is missing and was not waived
    │   ├── CannotStart        a zygote or container did not start
    │   └── AtCapacity         retry later (`retry_after`)
    └── Refused                the caller: the request is invalid
        ├── BadRequirement     not a package name with versions
        ├── BadPath            not a plain relative path
        ├── NotFound           no such session or file
        ├── TooLarge           over a limit of the server
        ├── Ended              the container has ended (`reason`)
        └── AlreadyUsed        a single-use server has had its session or run

A failure of the user's code is never an exception: it is a result. `antwort.net.errors` has those of the HTTP
primitives (`NetError`): bodies, archives and semaphores.
"""

from __future__ import annotations

from antwort.net import errors as net


class SandboxServerError(Exception):
    """Base class of the exceptions of this package."""


class Unavailable(SandboxServerError):
    """The host's or the server's fault."""


class WeakHost(Unavailable):
    """A protection is missing on this host and was not waived."""

    def __init__(self, missing: frozenset[str]) -> None:
        self.missing = missing
        names = ",".join(sorted(missing))
        super().__init__(
            f"this host lacks: {names}. Untrusted code would run with weaker isolation. "
            f"Run `antwort doctor` for details, or start with --allow-weaker-isolation={names}"
        )


class CannotStart(Unavailable):
    """A zygote or a container did not start."""


class AtCapacity(Unavailable, net.QueueFull):
    """No capacity: the queue is full, or waiting in it timed out."""


class Refused(SandboxServerError):
    """The caller's fault."""


class BadRequirement(Refused):
    """Not a package name with versions."""


class BadPath(Refused):
    """Not a plain relative path inside the container."""


class NotFound(Refused):
    """No such session or file."""


class TooLarge(Refused):
    """Over one of the server's limits."""


class Ended(Refused):
    """The container has ended and cannot be used again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the container has ended: {reason}. Create a new one")


class AlreadyUsed(Refused):
    """A server with `SANDBOX_SINGLE_TENANT` has had its one session or run."""

    def __init__(self) -> None:
        super().__init__("this sandbox is single-use and was used already; claim another pod")
