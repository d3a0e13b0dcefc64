"""Open WebSockets of the process: their number for each tenant, and the notice that the server stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from antwort.api.errors import ApiError


@dataclass
class OpenWebSockets:
    """The open WebSockets. `on_stop` of each one is called when the server begins to stop."""

    max_per_tenant: int = 100
    stopping: bool = False
    _tenants: Counter[str] = field(default_factory=Counter[str])
    _callbacks: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])

    @property
    def count(self) -> int:
        return self._tenants.total()

    @contextmanager
    def admit(self, tenant: str) -> Generator[None]:
        """Count a connection; `ApiError` 429 if the tenant has too many."""
        if self._tenants[tenant] >= self.max_per_tenant:
            message = f"Too many WebSockets: {self.max_per_tenant} may be open at a time."
            raise ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=1)
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    @contextmanager
    def notify(self, on_stop: Callable[[], None]) -> Generator[None]:
        """Inside of this, `on_stop` is called when the server begins to stop."""
        self._callbacks.add(on_stop)
        try:
            yield
        finally:
            self._callbacks.discard(on_stop)

    def stop(self) -> None:
        """The server begins to stop: connections close when their responses have ended."""
        self.stopping = True
        for on_stop in list(self._callbacks):
            on_stop()
