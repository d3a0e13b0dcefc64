"""Single use of a server: with `SANDBOX_SINGLE_TENANT` it runs one session or one `/execute`, then refuses others."""

from __future__ import annotations

from antwort.sandbox.errors import AlreadyUsed


class SingleUse:
    """Whether the server was used. A use is never returned, whatever becomes of the session or the run."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self.used = False

    def claim(self) -> None:
        """Record a use before its container is created; `AlreadyUsed` for every one after the first."""
        if self._enabled and self.used:
            raise AlreadyUsed
        self.used = True
