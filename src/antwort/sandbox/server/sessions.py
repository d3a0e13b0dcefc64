"""Sandbox sessions: containers that persist between requests, with unguessable ids, expiry and per-tenant limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from antwort.net.fair_semaphore import FairSemaphore
from antwort.sandbox.container.call import OnOutput
from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import AtCapacity, Ended, NotFound
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.session_packages import SessionPackages
from antwort.sandbox.pool.pool import Pool

from .settings import SandboxSettings

_logger = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 1.0
_MAX_ENDED: Final = 1_000
_MAX_QUEUE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExecRequest:
    """One execution in a session."""

    code: str
    seconds: float
    """Time-out of the installation and the run together."""
    echo: bool
    requirements: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCommandRequest:
    """One shell command in a session."""

    command: str
    seconds: float


@dataclass(slots=True)
class SandboxSession:
    """A container that persists between requests."""

    id: str
    tenant: str
    container: Container
    packages: SessionPackages
    expires_after: int
    created_at: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.monotonic)
    users: int = 0
    """Requests in progress; a session with any does not expire."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by one execution at a time, including the installation of its packages."""
    installation: asyncio.Task[str] | None = None

    def interrupt(self) -> bool:
        """Stop the running code, or the installation of its packages; False if there is neither."""
        if self.installation is not None:
            return self.installation.cancel()
        return self.container.interrupt()

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": "running" if self.container.alive else "ended",
            "reason": self.container.reason,
            "created_at": int(self.created_at),
            "expires_after_seconds": self.expires_after,
            "memory_bytes": self.container.limits.memory_bytes,
            "disk_bytes": self.container.limits.disk_bytes,
            "calls": self.container.calls,
        }


class Sessions:
    """All sessions of the server. The reasons of the last 1,000 ended ones are kept for the error message."""

    def __init__(self, pool: Pool, packages: PackageManager, settings: SandboxSettings) -> None:
        self._pool = pool
        self._packages = packages
        self._settings = settings
        self._live: dict[str, SandboxSession] = {}
        self._ended: dict[str, str] = {}
        self._tenants: Counter[str] = Counter()
        self._slots = FairSemaphore(
            settings.max_sessions, "sessions", max_queue=_MAX_QUEUE, wait_timeout=settings.queue_seconds
        )

    @property
    def count(self) -> int:
        return len(self._live)

    async def create(
        self, limits: ContainerLimits, *, tenant: str, expires_after: int, requirements: list[str], seconds: float
    ) -> SandboxSession:
        """Create a session with these packages; fails if it is not ready within `seconds`."""
        deadline = time.monotonic() + seconds
        if self._tenants[tenant] >= self._settings.max_sessions_per_tenant:
            raise AtCapacity(f"at capacity ({self._tenants[tenant]} sessions of this tenant); end one first", 5)
        self._tenants[tenant] += 1
        try:
            await self._slots.acquire(tenant)
            try:
                container, session_packages = await self._create_container(limits, tenant, requirements, deadline)
            except BaseException:
                self._slots.release()
                raise
        except BaseException:
            self._release_tenant(tenant)
            raise
        session = SandboxSession(f"sess_{secrets.token_hex(16)}", tenant, container, session_packages, expires_after)
        self._live[session.id] = session
        return session

    async def _create_container(
        self, limits: ContainerLimits, tenant: str, requirements: list[str], deadline: float
    ) -> tuple[Container, SessionPackages]:
        """A container and the package directory for later installations; the packages are kept until it has ended."""
        session_packages, packages = self._packages.open_session_packages(), None
        try:
            if requirements:
                left = max(0.001, deadline - time.monotonic())  # it may have waited for a slot
                lease = await self._packages.install(requirements, seconds=left, tenant=tenant)
                session_packages.hold_lease(lease)
                packages = lease.path
            container = await self._pool.create(
                limits, tenant=tenant, packages=packages, session_packages=session_packages.path
            )
        except BaseException:
            self._packages.close_session_packages(session_packages)
            raise
        container.on_ended(lambda: self._packages.close_session_packages(session_packages))
        return container, session_packages

    async def execute(
        self,
        session: SandboxSession,
        request: SessionExecRequest | SessionCommandRequest,
        on_output: OnOutput | None = None,
    ) -> ExecReply:
        """Run a command; or install the packages of the request, then run its code: the time-out covers both."""
        try:
            if isinstance(request, SessionCommandRequest):
                async with session.lock:
                    return await session.container.run_command(
                        request.command, timeout=request.seconds, on_output=on_output
                    )
            return await self._install_and_run(session, request, on_output)
        finally:
            if not session.container.alive:  # free its slot now instead of at the next sweep
                await self._end(session, "ended")

    async def _install_and_run(
        self, session: SandboxSession, request: SessionExecRequest, on_output: OnOutput | None
    ) -> ExecReply:
        async with session.lock:
            deadline = time.monotonic() + request.seconds
            try:
                packages = await self._install(session, request) if request.requirements else None
            except InstallFailed as error:
                return _not_run("error", str(error), on_output)
            if packages is None and request.requirements:
                return _not_run("interrupted", "the installation of packages was interrupted", on_output)
            left = max(0.001, deadline - time.monotonic())
            return await session.container.execute(
                request.code, timeout=left, echo=request.echo, packages=packages, on_output=on_output
            )

    async def _install(self, session: SandboxSession, request: SessionExecRequest) -> str | None:
        """The name of the package set in the session's package directory; None if the installation was interrupted."""
        adding = self._packages.add_to_session(
            session.packages, request.requirements, seconds=request.seconds, tenant=session.tenant
        )
        session.installation = asyncio.create_task(adding)
        try:
            await asyncio.wait([session.installation])
            return None if session.installation.cancelled() else session.installation.result()
        finally:
            session.installation.cancel()
            session.installation = None

    def get(self, session_id: str) -> SandboxSession:
        """The session; `Ended` with the reason, or `NotFound`."""
        session = self._live.get(session_id)
        if session is None:
            if session_id in self._ended:
                raise Ended(self._ended[session_id])
            raise NotFound("no such session")
        session.last_used = time.monotonic()
        return session

    @contextlib.contextmanager
    def using(self, session_id: str) -> Generator[SandboxSession]:
        """The session, which does not expire during the block."""
        session = self.get(session_id)
        if not session.container.alive:
            raise Ended(session.container.reason or "unknown")
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            session.last_used = time.monotonic()

    def all(self) -> list[SandboxSession]:
        return list(self._live.values())

    async def destroy(self, session_id: str, reason: str = "destroyed") -> None:
        """End the session; `Ended` or `NotFound` if there is none."""
        if session_id not in self._live:
            self.get(session_id)  # raises
            return
        await self._end(self._live[session_id], reason)

    async def _end(self, session: SandboxSession, reason: str) -> None:
        """End the session and free its slot. Only the first of several concurrent calls has an effect."""
        if self._live.pop(session.id, None) is None:
            return
        self._ended[session.id] = session.container.reason or reason
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        try:
            await session.container.end(reason)
        finally:
            self._release_tenant(session.tenant)
            self._slots.release()

    def _release_tenant(self, tenant: str) -> None:
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]  # tenant names are arbitrary, so unused counters must not accumulate

    async def sweep(self) -> None:
        """Every second, end expired sessions and remove those whose container has ended."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for session in self.all():
                try:
                    await self._sweep(session)
                except Exception:  # a session that cannot be ended must not stop the expiry of the others
                    _logger.exception("a session could not be ended")

    async def _sweep(self, session: SandboxSession) -> None:
        # Checked here and not before the loop: a session may be used or end while others are being ended.
        if not session.container.alive:
            await self._end(session, "ended")
        elif not session.users and time.monotonic() - session.last_used > session.expires_after:
            await self._end(session, "expired")


def _not_run(status: Literal["error", "interrupted"], message: str, on_output: OnOutput | None) -> ExecReply:
    """The result of code that was not started."""
    if on_output is not None:
        on_output("stderr", message)
    return ExecReply(status=status, exit_code=-1, stderr=message, output=[("stderr", message)])
