"""Sessions: containers that live on between requests, by unguessable ids."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from antwort.sandbox.call import Outcome
from antwort.sandbox.container import Container
from antwort.sandbox.errors import AtCapacity, Ended, NotFound
from antwort.sandbox.limits import Limits
from antwort.sandbox.packages import Packages
from antwort.sandbox.pool import Pool

from .gate import Gate
from .settings import Settings

_SWEEP_SECONDS: Final = 1.0
_REMEMBERED: Final = 1_000


@dataclass(slots=True)
class Session:
    """One container that lives on, and when it was last used."""

    id: str
    tenant: str
    container: Container
    expires_after: int
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.monotonic)
    users: int = 0

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": "running" if self.container.alive else "ended",
            "reason": self.container.reason,
            "created_at": int(self.created),
            "expires_after_seconds": self.expires_after,
            "memory_bytes": self.container.limits.memory_bytes,
            "disk_bytes": self.container.limits.disk_bytes,
            "calls": self.container.calls,
        }


class Sessions:
    """The sessions of this server. Ended ones are remembered for a while, to say why."""

    def __init__(self, pool: Pool, packages: Packages, settings: Settings) -> None:
        self._pool = pool
        self._packages = packages
        self._settings = settings
        self._live: dict[str, Session] = {}
        self._ended: dict[str, str] = {}
        self._tenants: Counter[str] = Counter()
        self._gate = Gate(settings.max_sessions, "sessions", queue=16, seconds=settings.queue_seconds)

    @property
    def count(self) -> int:
        return len(self._live)

    async def create(self, limits: Limits, *, tenant: str, expires_after: int, requirements: list[str]) -> Session:
        if self._tenants[tenant] >= self._settings.max_sessions_per_tenant:
            message = f"at capacity ({self._tenants[tenant]} sessions of this tenant); end one first"
            raise AtCapacity(message, 5)
        self._tenants[tenant] += 1
        try:
            await self._gate.enter()
            try:
                installed = await self._packages.install(requirements, seconds=300) if requirements else None
                container = await self._pool.create(limits, tenant=tenant, packages=installed)
            except BaseException:
                self._gate.leave()
                raise
        except BaseException:
            self._one_less(tenant)
            raise
        session = Session(f"sess_{secrets.token_hex(16)}", tenant, container, expires_after)
        self._live[session.id] = session
        return session

    def get(self, name: str) -> Session:
        session = self._live.get(name)
        if session is None:
            if name in self._ended:
                raise Ended(self._ended[name])
            raise NotFound("no such session")
        session.used = time.monotonic()
        return session

    @contextlib.contextmanager
    def using(self, name: str):  # noqa: ANN201 - a context manager of Session
        """The session, kept from expiring meanwhile."""
        session = self.get(name)
        if not session.container.alive:
            raise Ended(session.container.reason or "unknown")
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            session.used = time.monotonic()

    def all(self) -> list[Session]:
        return list(self._live.values())

    async def destroy(self, name: str, reason: str = "destroyed") -> None:
        session = self._live.pop(name, None)
        if session is None:
            self.get(name)
            return
        self._ended[name] = session.container.reason or reason
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        try:
            await session.container.end(reason)
        finally:
            self._one_less(session.tenant)
            self._gate.leave()

    def _one_less(self, tenant: str) -> None:
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]  # anybody can name a new one, so they must not pile up

    async def sweep(self) -> None:
        """End sessions that were idle for too long, and let go of those that have ended by themselves."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for session in self.all():
                if not session.container.alive:
                    await self.destroy(session.id, session.container.reason or "ended")
                elif not session.users and now - session.used > session.expires_after:
                    await self.destroy(session.id, "expired")


def report(outcome: Outcome) -> dict[str, Any]:
    """An outcome for the wire."""
    return {
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "output": [{"stream": name, "text": text} for name, text in outcome.output],
        "result": outcome.echo,
        "error": outcome.error,
        "images": [{"mime": i.mime, "data": base64.b64encode(i.data).decode()} for i in outcome.images],
        "execution_time_ms": int(outcome.seconds * 1000),
        "reason": outcome.reason,
        "cut_bytes": outcome.cut_bytes,
    }
