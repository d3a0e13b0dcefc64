"""What can go wrong, and whose fault it is.

    SandboxError
    ├── Unavailable            the host or the server: nothing the caller sent is wrong
    │   ├── WeakHost           a protection is missing and was not waived
    │   ├── CannotStart        a zygote or container did not come up
    │   └── AtCapacity         come back later (`retry_after`)
    └── Refused                the caller: the request cannot be served as it is
        ├── BadRequirement     not a plain package name with versions
        ├── BadPath            a name that leaves the container, or is no name
        ├── NotFound           no such session or file
        ├── TooLarge           over a limit of the server
        └── Ended              the container has ended (`reason`)

What the user's code does wrong is never an exception: it is a result. `antwort.net.errors` has those of the HTTP
primitives (`NetError`): bodies, archives and semaphores.
"""

from __future__ import annotations

from antwort.net import errors as net


class SandboxError(Exception):
    """Root of everything that this package raises on purpose."""


class Unavailable(SandboxError):
    """The host's or the server's fault."""


class WeakHost(Unavailable):
    """A protection is missing here and running without it was not allowed."""

    def __init__(self, missing: frozenset[str]) -> None:
        self.missing = missing
        names = ",".join(sorted(missing))
        super().__init__(
            f"this host lacks: {names}. Untrusted code would be less contained than promised. "
            f"Run `antwort doctor` for what that means, or start with --allow-weaker-isolation={names}"
        )


class CannotStart(Unavailable):
    """A zygote or a container did not come up."""


class AtCapacity(Unavailable, net.AtCapacity):
    """Everything is in use and the queue is full, or waiting took too long."""


class Refused(SandboxError):
    """The caller's fault."""


class BadRequirement(Refused):
    """Not a plain package name with versions."""


class BadPath(Refused):
    """A name that would leave the container, or is no name."""


class NotFound(Refused):
    """No such session or file."""


class TooLarge(Refused):
    """Over one of the server's limits."""


class Ended(Refused):
    """The container has ended and cannot be used again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the container has ended: {reason}. Create a new one")
