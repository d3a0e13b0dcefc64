"""Sessions: containers that live on between requests, by unguessable ids."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from antwort.sandbox.container.call import OnOutput
from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import AtCapacity, Ended, NotFound
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.session_packages import SessionPackages
from antwort.sandbox.pool.pool import Pool

from .gate import Gate
from .settings import SandboxSettings

_logger = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 1.0
_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one request asks a session to do."""

    code: str
    seconds: float
    """For installation and run together."""
    echo: bool
    requirements: list[str]


@dataclass(slots=True)
class SandboxSession:
    """One container that lives on, and when it was last used."""

    id: str
    tenant: str
    container: Container
    packages: SessionPackages
    expires_after: int
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.monotonic)
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Calls run in order, also where one of them installs packages first."""
    installing: asyncio.Task[str] | None = None

    def interrupt(self) -> bool:
        """Stop what runs, or what is being installed for it; says whether there was anything."""
        if self.installing is not None:
            return self.installing.cancel()
        return self.container.interrupt()

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

    def __init__(self, pool: Pool, packages: PackageManager, settings: SandboxSettings) -> None:
        self._pool = pool
        self._packages = packages
        self._settings = settings
        self._live: dict[str, SandboxSession] = {}
        self._ended: dict[str, str] = {}
        self._tenants: Counter[str] = Counter()
        self._gate = Gate(settings.max_sessions, "sessions", queue=16, seconds=settings.queue_seconds)

    @property
    def count(self) -> int:
        return len(self._live)

    async def create(
        self, limits: ContainerLimits, *, tenant: str, expires_after: int, requirements: list[str], seconds: float
    ) -> SandboxSession:
        """A new one, with these packages in it; if they are not there in so many seconds there is none."""
        deadline = time.monotonic() + seconds
        if self._tenants[tenant] >= self._settings.max_sessions_per_tenant:
            message = f"at capacity ({self._tenants[tenant]} sessions of this tenant); end one first"
            raise AtCapacity(message, 5)
        self._tenants[tenant] += 1
        try:
            await self._gate.enter(tenant)
            try:
                container, annex = await self._furnished(limits, tenant, requirements, deadline)
            except BaseException:
                self._gate.leave()
                raise
        except BaseException:
            self._one_less(tenant)
            raise
        session = SandboxSession(f"sess_{secrets.token_hex(16)}", tenant, container, annex, expires_after)
        self._live[session.id] = session
        return session

    async def _furnished(
        self, limits: ContainerLimits, tenant: str, requirements: list[str], deadline: float
    ) -> tuple[Container, SessionPackages]:
        """A container with these packages, and with a place for more; both are kept until it is gone."""
        annex, packages = self._packages.open_session_packages(), None
        try:
            if requirements:
                left = max(0.001, deadline - time.monotonic())  # it may have waited for its place
                lease = await self._packages.install(requirements, seconds=left, tenant=tenant)
                annex.hold_lease(lease)
                packages = lease.path
            container = await self._pool.create(limits, tenant=tenant, packages=packages, session_packages=annex.path)
        except BaseException:
            self._packages.close_session_packages(annex)
            raise
        container.on_ended(lambda: self._packages.close_session_packages(annex))
        return container, annex

    async def execute(self, session: SandboxSession, order: Order, on_output: OnOutput | None = None) -> ExecReply:
        """Install what the call needs, then run it; its time counts for both."""
        try:
            return await self._executed(session, order, on_output)
        finally:
            if not session.container.alive:  # it frees its place at once, not at the next sweep
                await self._end(session, "ended")

    async def _executed(self, session: SandboxSession, order: Order, on_output: OnOutput | None) -> ExecReply:
        async with session.turn:
            deadline = time.monotonic() + order.seconds
            try:
                packages = await self._added(session, order) if order.requirements else None
            except InstallFailed as error:
                return _not_run("error", str(error), on_output)
            if packages is None and order.requirements:
                return _not_run("interrupted", "the installation of packages was interrupted", on_output)
            left = max(0.001, deadline - time.monotonic())
            return await session.container.execute(
                order.code, timeout=left, echo=order.echo, packages=packages, on_output=on_output
            )

    async def _added(self, session: SandboxSession, order: Order) -> str | None:
        """The name of the call's packages in the session's annex, or None if that was interrupted."""
        adding = self._packages.add_to_session(
            session.packages, order.requirements, seconds=order.seconds, tenant=session.tenant
        )
        session.installing = asyncio.create_task(adding)
        try:
            await asyncio.wait([session.installing])
            return None if session.installing.cancelled() else session.installing.result()
        finally:
            session.installing.cancel()
            session.installing = None

    def get(self, name: str) -> SandboxSession:
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

    def all(self) -> list[SandboxSession]:
        return list(self._live.values())

    async def destroy(self, name: str, reason: str = "destroyed") -> None:
        if name not in self._live:
            self.get(name)  # says why not
            return
        await self._end(self._live[name], reason)

    async def _end(self, session: SandboxSession, reason: str) -> None:
        """Whoever comes first ends it; to the others it is no news."""
        if self._live.pop(session.id, None) is None:
            return
        self._ended[session.id] = session.container.reason or reason
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
            for session in self.all():
                try:
                    await self._sweep(session)
                except Exception:  # one that cannot be ended must not keep all others for ever
                    _logger.exception("a session could not be swept")

    async def _sweep(self, session: SandboxSession) -> None:
        """Looked at only now: while others were ended it may have been used, or have gone."""
        if not session.container.alive:
            await self._end(session, "ended")
        elif not session.users and time.monotonic() - session.used > session.expires_after:
            await self._end(session, "expired")


def _not_run(status: Literal["error", "interrupted"], why: str, on_output: OnOutput | None) -> ExecReply:
    """The code was never started."""
    if on_output is not None:
        on_output("stderr", why)
    return ExecReply(status=status, exit_code=-1, stderr=why, output=[("stderr", why)])
