"""Packages for a container: checked by name, installed once, shared by what was asked for.

The way of a request: `check` says whether these are names; the `shelf` whether they are there already; if not, the
`turnstile` when it is our turn, and the `installer` does it. What comes back is a lease: as long as somebody holds it
the packages stay. A container that already runs is given them through its `annex`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

from antwort.net.fair_semaphore import FairSemaphore
from antwort.sandbox.errors import BadRequirement, TooLarge
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.host.probe import Host
from antwort.sandbox.limits import GIB
from antwort.sandbox.packages.cache import Lease, PackageCache
from antwort.sandbox.packages.installer import Installer, InstallFailed
from antwort.sandbox.packages.session_packages import SessionPackages, SessionPackagesRoot
from antwort.sandbox.pool.preload import Stack
from antwort.sandbox.threads import DedicatedThreads

MOST: Final = 50
_LONGEST: Final = 200
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,<>=!~*+ \[\]-]*")
# What `uv` takes for the path of a file, though it is a name as well as any.
_ARCHIVES: Final = (
    ".whl",
    ".zip",
    ".tar",
    ".tgz",
    ".tbz",
    ".txz",
    ".tlz",
    ".gz",
    ".bz2",
    ".xz",
    ".lz",
    ".lzma",
    ".zst",
)


def check(requirements: list[str]) -> list[str]:
    """The requirements in one canonical order, or `BadRequirement`: names with versions and extras, nothing else."""
    if len(requirements) > MOST:
        message = f"{len(requirements)} requirements are more than the {MOST} allowed"
        raise BadRequirement(message)
    return sorted({_check_one(line) for line in requirements})


def _check_one(line: str) -> str:
    refusal = f"{line[:_LONGEST]!r} is not a package name with versions, such as 'rich>=13,<15'"
    # The pattern comes first: it leaves no room for options, URLs, paths, markers or a second line.
    if len(line) > _LONGEST or not _PLAIN.fullmatch(line):
        raise BadRequirement(refusal)
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise BadRequirement(refusal) from error
    if requirement.url is not None or requirement.marker is not None or requirement.name.lower().endswith(_ARCHIVES):
        raise BadRequirement(refusal)
    return str(requirement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What packages may take of the host."""

    quota: Quota = field(default_factory=lambda: Quota(GIB, 100_000))
    """Of one installation, while it runs and afterwards."""
    seconds: float = 300.0
    """For one installation, with its wait."""
    at_once: int = 2
    queue: int = 32
    """How many may wait for those."""
    shelf_bytes: int = 8 * GIB
    """Of all that are kept."""


@dataclass(slots=True)
class _Job:
    """An installation, and how many wait for it."""

    task: asyncio.Task[None]
    waiting: int = 0


class Packages:
    """Installed sets of packages, shared by the hash of what was asked for."""

    def __init__(
        self,
        directory: Path,
        host: Host,
        stack: Stack,
        *,
        index: str | None,
        builds: bool = False,
        allowance: Allowance | None = None,
    ) -> None:
        self._allowance = allowance or Allowance()
        self._asked = [f"{sys.version_info.major}.{sys.version_info.minor}", index, builds]
        self._shelf = PackageCache(directory, self._allowance.shelf_bytes)
        self._annexes = SessionPackagesRoot(self._shelf)
        self._workers = DedicatedThreads(4, "packages")
        self._watchers = DedicatedThreads(
            self._allowance.at_once, "installer"
        )  # of its own: looking must not have to wait
        self._installer = Installer(
            host, stack, self._watchers, index=index, builds=builds, limit=self._allowance.quota
        )
        self._turns = FairSemaphore(
            self._allowance.at_once, "installations of packages", max_queue=self._allowance.queue, retry_after=5
        )
        self._jobs: dict[str, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def install(self, requirements: list[str], *, seconds: float, tenant: str = "") -> Lease:
        """These packages, installed now or earlier; they stay until the lease is released."""
        wanted = check(requirements)
        name = hashlib.sha256(json.dumps([*self._asked, wanted]).encode()).hexdigest()
        seconds = min(seconds, self._allowance.seconds)
        try:
            async with asyncio.timeout(seconds):
                while (lease := self._shelf.lease(name)) is None:  # more than once only if it is evicted at once
                    await self._installed(name, wanted, tenant)
        except TimeoutError:
            raise InstallFailed(f"it took longer than the {seconds:.3g} s that were left for it") from None
        return lease

    async def _installed(self, name: str, wanted: list[str], tenant: str) -> None:
        """Wait until it is there. It is done once for all who want it, and stopped when nobody does any more."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(self._do(self._install(name, wanted, tenant)))
            job.task.add_done_callback(lambda _: self._forget(name, job))
        job.waiting += 1
        try:
            await asyncio.shield(job.task)
        finally:
            job.waiting -= 1
            if not job.waiting and not job.task.done():
                self._forget(name, job)
                job.task.cancel()

    def _forget(self, name: str, job: _Job | None) -> None:
        if self._jobs.get(name) is job:
            del self._jobs[name]

    async def _install(self, name: str, wanted: list[str], tenant: str) -> None:
        async with self._turns.slot(tenant), self._workshop() as place:
            try:
                usage = await self._installer.fill(place / "out", wanted)
                await self._workers.run(lambda: self._shelf.put(name, place / "out", usage))
            except TooLarge as error:
                raise InstallFailed(str(error)) from error

    @contextlib.asynccontextmanager
    async def _workshop(self) -> AsyncGenerator[Path]:
        """The shelf's, left in a thread, since there may be much to remove."""
        stack = contextlib.ExitStack()
        try:
            yield stack.enter_context(self._shelf.workshop())
        finally:
            await self._workers.run(stack.close)

    def annex(self) -> SessionPackages:
        """For a container that may ask for packages later; `retire` it when the container is gone."""
        return self._annexes.open()

    async def add(self, annex: SessionPackages, requirements: list[str], *, seconds: float, tenant: str = "") -> str:
        """Put these packages into the annex; answers the name of the set in it."""
        lease = await self.install(requirements, seconds=seconds, tenant=tenant)
        try:
            return await self._workers.run(lambda: annex.add(lease))
        except TooLarge as error:
            raise InstallFailed(str(error)) from error
        except OSError as error:
            raise InstallFailed(f"the packages could not be handed over: {error.strerror}") from error

    def retire(self, annex: SessionPackages) -> None:
        """Remove it, in the background."""
        self._do(self._workers.run(annex.close))

    async def aclose(self) -> None:
        """The server stops, and every container has ended."""
        for job in self._jobs.values():
            job.task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._workers.run(self._annexes.close)
        self._watchers.close()
        self._workers.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen: whoever waits is told
        return task
