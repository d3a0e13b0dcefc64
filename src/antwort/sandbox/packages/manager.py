"""Package manager: installs sets of packages once and leases them to containers.

Steps of a request: `check_requirements` validates it; the `PackageCache` returns the set if it is installed; otherwise
the `FairSemaphore` queues the installation and the `Installer` runs it. The result is a lease: the set stays on disk
until the lease is released. A running container receives packages through its `SessionPackages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antwort.net.fair_semaphore import FairSemaphore
from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.host.probe import Host
from antwort.sandbox.limits import GIB
from antwort.sandbox.packages.cache import Lease, PackageCache
from antwort.sandbox.packages.installer import Installer, InstallFailed
from antwort.sandbox.packages.requirements import check_requirements
from antwort.sandbox.packages.session_packages import SessionPackages, SessionPackagesRoot
from antwort.sandbox.pool.preload import Stack
from antwort.sandbox.threads import DedicatedThreads


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLimits:
    """Limits on package installation."""

    quota: Quota = field(default_factory=lambda: Quota(GIB, 100_000))
    """Disk quota of one installation, during and after it."""
    seconds: float = 300.0
    """Timeout of one installation, including the time in the queue."""
    max_concurrent: int = 2
    max_queued: int = 32
    """Installations in the queue."""
    cache_bytes: int = 8 * GIB
    """Size of the package cache."""


@dataclass(slots=True)
class _Job:
    """A running installation, and the number of callers that wait for it."""

    task: asyncio.Task[None]
    waiting: int = 0


class PackageManager:
    """Installs sets of packages, keyed by the hash of their requirements."""

    def __init__(
        self,
        directory: Path,
        host: Host,
        stack: Stack,
        *,
        index: str | None,
        builds: bool = False,
        limits: PackageLimits | None = None,
    ) -> None:
        self._limits = limits = limits or PackageLimits()
        self._cache_key = [f"{sys.version_info.major}.{sys.version_info.minor}", index, builds]
        self._cache = PackageCache(directory, limits.cache_bytes)
        self._session_packages = SessionPackagesRoot(self._cache)
        self._threads = DedicatedThreads(4, "packages")
        # Not shared with `_threads`: a quota check must not wait for other work on the disk.
        self._install_threads = DedicatedThreads(limits.max_concurrent, "installer")
        self._installer = Installer(host, stack, self._install_threads, index=index, builds=builds, quota=limits.quota)
        self._semaphore = FairSemaphore(
            self._limits.max_concurrent, "installations of packages", max_queue=self._limits.max_queued, retry_after=5
        )
        self._jobs: dict[str, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def install(self, requirements: list[str], *, seconds: float, tenant: str = "") -> Lease:
        """A lease on these packages, which are installed first if the cache lacks them."""
        requirements = check_requirements(requirements)
        name = hashlib.sha256(json.dumps([*self._cache_key, requirements]).encode()).hexdigest()
        seconds = min(seconds, self._limits.seconds)
        try:
            async with asyncio.timeout(seconds):
                while (lease := self._cache.lease(name)) is None:  # repeated only if it is evicted meanwhile
                    await self._wait_installed(name, requirements, tenant)
        except TimeoutError:
            raise InstallFailed(f"it took longer than the {seconds:.3g} s that were left") from None
        return lease

    async def _wait_installed(self, name: str, requirements: list[str], tenant: str) -> None:
        """Wait for the installation. Concurrent callers share one; it is cancelled when the last caller gives up."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(self._start_task(self._install(name, requirements, tenant)))
            job.task.add_done_callback(lambda _: self._forget_job(name, job))
        job.waiting += 1
        try:
            await asyncio.shield(job.task)
        finally:
            job.waiting -= 1
            if not job.waiting and not job.task.done():
                self._forget_job(name, job)
                job.task.cancel()

    def _forget_job(self, name: str, job: _Job | None) -> None:
        if self._jobs.get(name) is job:
            del self._jobs[name]

    async def _install(self, name: str, requirements: list[str], tenant: str) -> None:
        async with self._semaphore.slot(tenant), self._staging_directory() as staging:
            try:
                usage = await self._installer.install(staging / "out", requirements)
                await self._threads.run(lambda: self._cache.put(name, staging / "out", usage))
            except TooLarge as error:
                raise InstallFailed(str(error)) from error

    @contextlib.asynccontextmanager
    async def _staging_directory(self) -> AsyncGenerator[Path]:
        """The cache's staging directory, removed in a thread, since that may take long."""
        stack = contextlib.ExitStack()
        try:
            yield stack.enter_context(self._cache.staging_directory())
        finally:
            await self._threads.run(stack.close)

    def open_session_packages(self) -> SessionPackages:
        """A package directory for a new container; pass it to `close_session_packages` when the container has ended."""
        return self._session_packages.open()

    async def add_to_session(
        self, session_packages: SessionPackages, requirements: list[str], *, seconds: float, tenant: str = ""
    ) -> str:
        """Add these packages to a container's directory; returns the name of the set in it."""
        lease = await self.install(requirements, seconds=seconds, tenant=tenant)
        try:
            return await self._threads.run(lambda: session_packages.add(lease))
        except TooLarge as error:
            raise InstallFailed(str(error)) from error
        except OSError as error:
            raise InstallFailed(f"the packages could not be linked: {error.strerror}") from error

    def close_session_packages(self, session_packages: SessionPackages) -> None:
        """Remove the directory, in the background."""
        self._start_task(self._threads.run(session_packages.close))

    async def aclose(self) -> None:
        """Cancel installations and remove the session directories. Every container must have ended."""
        for job in self._jobs.values():
            job.task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._threads.run(self._session_packages.close)
        self._install_threads.close()
        self._threads.close()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers get it through the task
        return task
