"""Zygote pool: keeps warm zygotes and forks containers from them.

- One zygote per tenant: forks of one zygote share its address space layout (ASLR) and hash seed, so shared between
  tenants, one tenant would know the memory addresses of another.
- One warm zygote that is not assigned yet: without it, the first container of a new tenant waits for all imports.
- One preforked container per tenant: without it, every creation waits for the fork and the mounts.
- A limit on forks per zygote: without it, all containers of a tenant share one address space layout for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from antwort.sandbox.container.container import Container, ContainerSettings
from antwort.sandbox.errors import AtCapacity, CannotStart, Unavailable
from antwort.sandbox.files import quota
from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.probe import UIDS, Host
from antwort.sandbox.jail import mounts
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.packages.session_packages import SKILLS
from antwort.sandbox.pool import watchdog
from antwort.sandbox.pool.preload import SCIENTIFIC, current_stack
from antwort.sandbox.pool.zygote_process import ZygoteProcess

MAX_FORKS_PER_ZYGOTE: Final = 2_000
IDLE_TIMEOUT_SECONDS: Final = 600.0
MAX_TENANTS: Final = 32
_MIN_IDLE_SECONDS: Final = 2.0
_SWEEP_SECONDS: Final = 5.0
_MAX_ATTEMPTS: Final = 3
_REMOVE_TIMEOUT: Final = 10.0
_WORK_DIRS: Final = ("data", "temporary")

_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "MPLBACKEND": "agg",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(slots=True)
class _TenantPool:
    """One tenant's zygote, and its preforked container."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    zygote: ZygoteProcess | None = None
    preforked: asyncio.Task[Container] | None = None
    last_used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """Directories of one container besides its own files."""

    packages: Path | None
    session_packages: Path | None
    output_dir: str | None


class Pool:
    """Creates containers. Used with `async with`; leaving it ends all containers and zygotes."""

    def __init__(
        self,
        host: Host,
        *,
        packages: Path | None = None,
        modules: tuple[str, ...] = SCIENTIFIC,
        prefork: bool = True,
        single_use: bool = False,
    ) -> None:
        self._host = host
        self._packages = packages
        self._stack = current_stack(modules)
        self._prefork = prefork and not single_use
        self._single_use = single_use
        """One container in all: nothing is prepared for a second one."""
        self._data_dir = mounts.DATA if single_use and not self._has_namespaces and _is_empty(mounts.DATA) else None
        """The directory for the files of the only container, where the pod has mounted one at the usual path."""
        self._tenant_pools: dict[str, _TenantPool] = {}
        self._warm_zygote: asyncio.Task[ZygoteProcess] | None = None
        self._retired: list[ZygoteProcess] = []
        self._containers: set[Container] = set()
        self._uids = itertools.cycle(UIDS)
        self._background_tasks: list[asyncio.Task[None]] = []
        self._cleanup_tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._host = await asyncio.to_thread(self._host.claim_cgroups)
        if self._host.cgroups is not None:
            await asyncio.to_thread(self._host.cgroups.sweep)
        has_cgroups = self._host.cgroups is not None
        work = watchdog.watch(lambda: tuple(self._containers), has_cgroups=has_cgroups), self._stop_unused_zygotes()
        self._background_tasks = [asyncio.create_task(coroutine) for coroutine in work]
        self._start_warm_zygote()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        await asyncio.gather(*(c.end("the server stopped") for c in list(self._containers)), return_exceptions=True)
        for tenant_pool in self._tenant_pools.values():
            await _end_preforked(tenant_pool)
        zygotes = [p.zygote for p in self._tenant_pools.values() if p.zygote] + self._retired
        if self._warm_zygote is not None:
            await _stop_when_started(self._warm_zygote)
        await asyncio.gather(*(zygote.stop() for zygote in zygotes))
        await asyncio.gather(*self._cleanup_tasks, return_exceptions=True)  # removal of directories of ended containers

    @property
    def host(self) -> Host:
        """The host's protections, as determined when the pool was opened."""
        return self._host

    @property
    def containers(self) -> int:
        return sum(c.alive for c in self._containers)

    async def wait_ready(self) -> None:
        """Wait until a zygote is warm, so that the next container takes milliseconds."""
        if not any(p.zygote is not None and p.zygote.alive for p in self._tenant_pools.values()):
            self._start_warm_zygote()
            if self._warm_zygote is not None:
                await asyncio.shield(self._warm_zygote)

    async def create(
        self,
        limits: ContainerLimits | None = None,
        *,
        tenant: str = "",
        packages: Path | None = None,
        session_packages: Path | None = None,
        output_dir: str | None = None,
    ) -> Container:
        """A new container for this tenant. `OUTPUT_DIR` in its environment is `output_dir` below its files.

        `packages` is a set, and `session_packages` a directory for later ones; both are below the pool's packages.
        """
        if tenant not in self._tenant_pools:
            await self._evict_idle_tenant()
        tenant_pool = self._tenant_pools.setdefault(tenant, _TenantPool())
        tenant_pool.last_used = time.monotonic()
        paths = ContainerPaths(packages, session_packages, output_dir)
        try:
            container = await self._create_configured(tenant_pool, limits or ContainerLimits(), paths)
        except CannotStart:  # its zygote may have just died: retry once with another
            container = await self._create_configured(tenant_pool, limits or ContainerLimits(), paths)
        self._start_prefork(tenant_pool)
        return container

    async def _create_configured(
        self, tenant_pool: _TenantPool, limits: ContainerLimits, paths: ContainerPaths
    ) -> Container:
        container = await self._take_container(tenant_pool)
        self._containers.add(container)
        work_dir: str | None = None
        container.on_ended(lambda: self._on_container_ended(container, work_dir))
        try:
            work_dir = None if self._has_namespaces else await asyncio.to_thread(self._make_work_dir)
            settings = self._settings(paths, work_dir)
            await container.configure(limits, settings, has_cgroup=self._host.cgroups is not None)
        except BaseException:
            await container.end("it did not start")
            raise
        return container

    # -- forking ------------------------------------------------------------------------------------------------

    async def _take_container(self, tenant_pool: _TenantPool) -> Container:
        """The preforked container if it is alive, else a new one; a dead zygote is replaced."""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            preforked, tenant_pool.preforked = tenant_pool.preforked, None
            try:
                container = await (preforked if preforked is not None else self._spawn(tenant_pool))
            except Unavailable:
                if attempt == _MAX_ATTEMPTS:
                    raise
                continue
            if container.alive:
                return container
            await container.end("it died before it was used")
        raise CannotStart("containers die directly after the fork; see `antwort doctor`")

    async def _spawn(self, tenant_pool: _TenantPool) -> Container:
        container = await Container.spawn(await self._get_zygote(tenant_pool))
        if self._host.cgroups is not None:
            try:
                await container.attach_cgroup(self._host.cgroups)
            except OSError as error:
                await container.end("it did not start")
                raise CannotStart(f"no cgroup could be created: {error}") from error
            except asyncio.CancelledError:
                await container.end("the request was cancelled")
                raise
        return container

    def _start_prefork(self, tenant_pool: _TenantPool) -> None:
        if self._prefork and tenant_pool.preforked is None:
            tenant_pool.preforked = asyncio.create_task(self._spawn(tenant_pool))
            tenant_pool.preforked.add_done_callback(_retrieve_exception)

    async def _get_zygote(self, tenant_pool: _TenantPool) -> ZygoteProcess:
        async with tenant_pool.lock:
            zygote = tenant_pool.zygote
            is_over_fork_limit = zygote is not None and zygote.fork_count >= MAX_FORKS_PER_ZYGOTE
            if zygote is not None and zygote.alive and not is_over_fork_limit:
                return zygote
            if zygote is not None and is_over_fork_limit:
                self._retired.append(zygote)  # stopped when its last container has ended
                tenant_pool.zygote = None
            tenant_pool.zygote = await self._take_warm_zygote()
            return tenant_pool.zygote

    async def _take_warm_zygote(self) -> ZygoteProcess:
        starting, self._warm_zygote = self._warm_zygote, None
        if starting is not None:
            try:
                zygote = await asyncio.shield(starting)
            except CannotStart:
                pass  # retried below, where the error is raised
            except asyncio.CancelledError:
                self._return_warm_zygote(starting)
                raise
            else:
                if zygote.alive:
                    self._replace_warm_zygote()
                    return zygote
        zygote = await self._start_zygote()
        self._replace_warm_zygote()
        return zygote

    def _replace_warm_zygote(self) -> None:
        if not self._single_use:
            self._start_warm_zygote()

    def _return_warm_zygote(self, starting: asyncio.Task[ZygoteProcess]) -> None:
        """The task goes on after the caller was cancelled: keep the zygote for the next tenant, or stop it."""
        if self._warm_zygote is None:
            self._warm_zygote = starting
        else:
            self._start_cleanup(_stop_when_started(starting))

    def _start_warm_zygote(self) -> None:
        if self._warm_zygote is None:
            self._warm_zygote = asyncio.create_task(self._start_zygote())
            self._warm_zygote.add_done_callback(_retrieve_exception)

    async def _start_zygote(self) -> ZygoteProcess:
        uid = next(self._uids) if self._host.root and self._has_namespaces else None
        return await ZygoteProcess.start(self._stack, self._host.layers, packages=self._packages, uid=uid)

    # -- settings -----------------------------------------------------------------------------------------------

    @property
    def _has_namespaces(self) -> bool:
        return "namespaces" in self._host.layers

    def _settings(self, paths: ContainerPaths, work_dir: str | None) -> ContainerSettings:
        if work_dir is None:
            path = (mounts.SITE,) if paths.packages is not None else ()
            own = {"HOME": mounts.TMP, "TMPDIR": mounts.TMP, "MPLCONFIGDIR": f"{mounts.TMP}/matplotlib"}
            own["PYTHONPATH"] = ":".join((bubblewrap.STACK, *path))
            own["SKILLS_DIR"] = f"{mounts.SESSION_PACKAGES}/{SKILLS}"
            own["PATH"] = self._stack.search_path(self._stack.home, _ENVIRONMENT["PATH"])
            return ContainerSettings(
                packages=self._relative_to_packages(paths.packages),
                session_packages=self._relative_to_packages(paths.session_packages),
                sys_path=path,
                environment=_ENVIRONMENT | self._stack.environment | own | _output_dir(mounts.DATA, paths),
            )
        data_dir, temporary = self._data_dir or f"{work_dir}/data", f"{work_dir}/temporary"
        path = (str(paths.packages),) if paths.packages is not None else ()
        session_packages = (str(paths.session_packages),) if paths.session_packages is not None else ()
        own = {"HOME": temporary, "TMPDIR": temporary, "MPLCONFIGDIR": f"{temporary}/matplotlib"}
        own |= {} if paths.session_packages is None else {"SKILLS_DIR": str(paths.session_packages / SKILLS)}
        own["PATH"] = self._stack.search_path(str(self._stack.prefix), _ENVIRONMENT["PATH"])
        return ContainerSettings(
            has_namespaces=False,
            data_dir=data_dir,
            session_packages_dir="".join(session_packages),
            sys_path=path,
            environment=_ENVIRONMENT | own | _output_dir(data_dir, paths),
            readable=(str(self._stack.prefix), *map(str, self._stack.entries), *path, *session_packages),
            writable=(data_dir, temporary),
        )

    def _make_work_dir(self) -> str:
        """The directory of a container without namespaces, with its `/tmp` and, unless the pod has one, its files."""
        work_dir = tempfile.mkdtemp(prefix="antwort-")
        for name in _WORK_DIRS:
            Path(work_dir, name).mkdir(mode=0o700)
        return work_dir

    def _relative_to_packages(self, path: Path | None) -> str | None:
        """The path below the package cache, which is mounted in the zygote and hidden in the container."""
        return None if path is None or self._packages is None else str(path.relative_to(self._packages))

    # -- cleanup ------------------------------------------------------------------------------------------------

    def _on_container_ended(self, container: Container, work_dir: str | None) -> None:
        self._containers.discard(container)
        if work_dir is not None:
            self._start_cleanup(asyncio.to_thread(_remove_work_dir, Path(work_dir)))

    async def _stop_unused_zygotes(self) -> None:
        """Stop zygotes that were idle for the timeout, and retired ones once their last container has ended."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for zygote in [z for z in self._retired if not z.containers]:
                self._retired.remove(zygote)
                await zygote.stop()
            # Evaluated again for each: a tenant may return meanwhile.
            while idle := self._idle_tenants(IDLE_TIMEOUT_SECONDS):
                await self._discard_tenant(idle[0])

    async def _evict_idle_tenant(self) -> None:
        """Bound the number of zygotes: each costs memory, and any caller can name a new tenant."""
        while len(self._tenant_pools) >= MAX_TENANTS:
            idle = self._idle_tenants(_MIN_IDLE_SECONDS)
            if not idle:
                raise AtCapacity(f"at capacity ({len(self._tenant_pools)} tenants have containers)", 5)
            await self._discard_tenant(idle[0])

    def _idle_tenants(self, seconds: float) -> list[str]:
        """Tenants without containers that were unused for this long, least recently used first."""
        now = time.monotonic()
        found = [
            (p.last_used, tenant)
            for tenant, p in self._tenant_pools.items()
            if now - p.last_used > seconds
            and not p.lock.locked()
            and (p.zygote is None or p.zygote.containers <= (p.preforked is not None))
        ]
        return [tenant for _, tenant in sorted(found)]

    async def _discard_tenant(self, tenant: str) -> None:
        """Cancelling the caller does not cancel this."""
        await asyncio.shield(self._start_cleanup(_stop_tenant_pool(self._tenant_pools.pop(tenant))))

    def _start_cleanup(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._cleanup_tasks.add(task)
        task.add_done_callback(self._cleanup_tasks.discard)
        return task


def _output_dir(data_dir: str, paths: ContainerPaths) -> dict[str, str]:
    return {} if paths.output_dir is None else {"OUTPUT_DIR": f"{data_dir}/{paths.output_dir}"}


def _remove_work_dir(directory: Path) -> None:
    for part in (*(directory / name for name in _WORK_DIRS), directory):
        with contextlib.suppress(OSError):  # processes that have left the process tree of the code may still write
            quota.remove(part, timeout=_REMOVE_TIMEOUT)


def _is_empty(directory: str) -> bool:
    """Whether the directory is writable and empty."""
    try:
        return os.access(directory, os.W_OK) and not any(Path(directory).iterdir())
    except OSError:
        return False


async def _stop_tenant_pool(tenant_pool: _TenantPool) -> None:
    await _end_preforked(tenant_pool)
    if tenant_pool.zygote is not None:
        await tenant_pool.zygote.stop()


async def _end_preforked(tenant_pool: _TenantPool) -> None:
    preforked, tenant_pool.preforked = tenant_pool.preforked, None
    if preforked is not None:
        container = (await asyncio.gather(preforked, return_exceptions=True))[0]
        if isinstance(container, Container):
            await container.end("it was not needed")


async def _stop_when_started(starting: asyncio.Task[ZygoteProcess]) -> None:
    zygote = (await asyncio.gather(starting, return_exceptions=True))[0]
    if isinstance(zygote, ZygoteProcess):
        await zygote.stop()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the task's exception as retrieved, to silence asyncio's "never retrieved" warning."""
    if not task.cancelled():
        task.exception()
