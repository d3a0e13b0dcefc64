"""Zygotes kept warm, and containers forked from them.

Forks of one zygote share its address layout and hash seed, so a zygote serves one tenant and one stack and is never
handed on. One that nobody has used yet may still go to anybody: so one is kept in reserve, and a new tenant does
not wait for imports. Likewise one container is kept forked ahead of each tenant's next request.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from antwort.sandbox.container.container import Container, Settings
from antwort.sandbox.errors import AtCapacity, CannotStart, Unavailable
from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.probe import UIDS, Host
from antwort.sandbox.jail import mounts
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.pool import preload as stacks
from antwort.sandbox.pool import watchdog
from antwort.sandbox.pool.preload import Stack
from antwort.sandbox.pool.zygotes import ZygoteProcess

FORKS_PER_ZYGOTE: Final = 2_000
IDLE_SECONDS: Final = 600.0
MOST_TENANTS: Final = 32
_SURELY_UNUSED_SECONDS: Final = 2.0
_SWEEP_SECONDS: Final = 5.0
_TRIES: Final = 3

_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "MPLBACKEND": "agg",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(slots=True)
class _TenantPool:
    """One tenant's zygote of one stack, with the container forked ahead."""

    stack: Stack
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    zygote: ZygoteProcess | None = None
    spare: asyncio.Task[Container] | None = None
    used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """What a container finds besides its own files."""

    packages: Path | None
    annex: Path | None
    output: str | None


class Pool:
    """Makes containers. `async with` it; leaving ends everything it made."""

    def __init__(
        self,
        host: Host,
        *,
        packages: Path | None = None,
        modules: tuple[str, ...] = stacks.SCIENTIFIC,
        spares: bool = True,
    ) -> None:
        self._host = host
        self._packages = packages
        self._stack = stacks.here(modules)
        self._spares = spares
        self._nests: dict[tuple[str, tuple[str, ...]], _TenantPool] = {}
        self._reserve: asyncio.Task[ZygoteProcess] | None = None
        self._retired: list[ZygoteProcess] = []
        self._containers: set[Container] = set()
        self._uids = itertools.cycle(UIDS)
        self._watches: list[asyncio.Task[None]] = []
        self._chores: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._host = await asyncio.to_thread(self._host.claimed)
        if self._host.groups is not None:
            await asyncio.to_thread(self._host.groups.sweep)
        counted = self._host.groups is not None
        watches = watchdog.watch(lambda: tuple(self._containers), counted=counted), self._tidy()
        self._watches = [asyncio.create_task(watch) for watch in watches]
        self._keep_reserve()
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(c.end("the server stopped") for c in list(self._containers)), return_exceptions=True)
        for nest in self._nests.values():
            await _drop_spare(nest)
        zygotes = [n.zygote for n in self._nests.values() if n.zygote] + self._retired
        if self._reserve is not None:
            await _stop_made(self._reserve)
        await asyncio.gather(*(zygote.stop() for zygote in zygotes))
        await asyncio.gather(*self._chores, return_exceptions=True)  # directories of containers that have just ended

    @property
    def host(self) -> Host:
        """What the host gives, as it turned out when the pool was opened."""
        return self._host

    @property
    def containers(self) -> int:
        return sum(c.alive for c in self._containers)

    async def ready(self) -> None:
        """Wait until the next container would be a matter of milliseconds."""
        if not any(nest.zygote is not None and nest.zygote.alive for nest in self._nests.values()):
            self._keep_reserve()
            if self._reserve is not None:
                await asyncio.shield(self._reserve)

    async def create(
        self,
        limits: ContainerLimits | None = None,
        *,
        tenant: str = "",
        packages: Path | None = None,
        annex: Path | None = None,
        output: str | None = None,
    ) -> Container:
        """A fresh container for this tenant, told by `OUTPUT_DIR` where below its files to leave what it makes.

        It sees `packages`, a set, and `annex`, where it may be given more; both lie below the pool's own packages.
        """
        key = (tenant, self._stack.modules)
        if key not in self._nests:
            await self._make_room()
        nest = self._nests.setdefault(key, _TenantPool(self._stack))
        nest.used = time.monotonic()
        room = ContainerPaths(packages, annex, output)
        try:
            container = await self._settled(nest, limits or ContainerLimits(), room)
        except CannotStart:  # its zygote may have died in this very moment: once more, from another
            container = await self._settled(nest, limits or ContainerLimits(), room)
        self._keep_spare(nest)
        return container

    async def _settled(self, nest: _TenantPool, limits: ContainerLimits, room: ContainerPaths) -> Container:
        container = await self._fork(nest)
        self._containers.add(container)
        place: str | None = None
        container.when_gone(lambda: self._forget(container, place))
        limited = self._host.groups is not None
        try:
            place = None if self._walled else tempfile.mkdtemp(prefix="antwort-")
            settings = self._settings(room, place)
            await container.settle(limits, settings, limited=limited)
        except BaseException:
            await container.end("it did not start")
            raise
        return container

    # -- forking ------------------------------------------------------------------------------------------------

    async def _fork(self, nest: _TenantPool) -> Container:
        """The spare if there is one alive, else a new fork; a zygote that has died is replaced."""
        for last in (False,) * (_TRIES - 1) + (True,):
            spare, nest.spare = nest.spare, None
            try:
                container = await (spare if spare is not None else self._fork_new(nest))
            except Unavailable:
                if last:
                    raise
                continue
            if container.alive:
                return container
            await container.end("it died before it was used")
        message = "containers die as soon as they are forked; see `antwort doctor`"
        raise CannotStart(message)

    async def _fork_new(self, nest: _TenantPool) -> Container:
        container = await Container.fork(await self._zygote(nest))
        if self._host.groups is not None:
            try:
                await container.guard(self._host.groups)
            except OSError as error:
                await container.end("it did not start")
                raise CannotStart(f"no control group could be made: {error}") from error
            except asyncio.CancelledError:
                await container.end("nobody waits for it any more")
                raise
        return container

    def _keep_spare(self, nest: _TenantPool) -> None:
        if self._spares and nest.spare is None:
            nest.spare = asyncio.create_task(self._fork_new(nest))
            nest.spare.add_done_callback(_look)

    async def _zygote(self, nest: _TenantPool) -> ZygoteProcess:
        async with nest.lock:
            worn = nest.zygote is not None and nest.zygote.forked >= FORKS_PER_ZYGOTE
            if nest.zygote is not None and nest.zygote.alive and not worn:
                return nest.zygote
            if nest.zygote is not None and worn:
                self._retired.append(nest.zygote)  # its containers live on; it goes with the last of them
                nest.zygote = None
            nest.zygote = await self._take_reserve()
            return nest.zygote

    async def _take_reserve(self) -> ZygoteProcess:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            try:
                zygote = await asyncio.shield(reserve)
            except CannotStart:
                pass  # tried again below, and this time the error is told
            except asyncio.CancelledError:
                self._give_back(reserve)
                raise
            else:
                if zygote.alive:
                    self._keep_reserve()
                    return zygote
        made = await self._new_zygote()
        self._keep_reserve()
        return made

    def _give_back(self, reserve: asyncio.Task[ZygoteProcess]) -> None:
        """It comes up all the same: somebody must know of it to end it."""
        if self._reserve is None:
            self._reserve = reserve
        else:
            self._do(_stop_made(reserve))

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            self._reserve = asyncio.create_task(self._new_zygote())
            self._reserve.add_done_callback(_look)

    async def _new_zygote(self) -> ZygoteProcess:
        uid = next(self._uids) if self._host.root and self._walled else None
        return await ZygoteProcess.start(self._stack, self._host.walls, packages=self._packages, uid=uid)

    # -- settings -----------------------------------------------------------------------------------------------

    @property
    def _walled(self) -> bool:
        return "namespaces" in self._host.walls

    def _settings(self, room: ContainerPaths, place: str | None) -> Settings:
        data = mounts.DATA if place is None else f"{place}/data"
        extra = {} if room.output is None else {"OUTPUT_DIR": f"{data}/{room.output}"}
        if place is None:
            path = (mounts.SITE,) if room.packages is not None else ()
            own = {"HOME": mounts.TMP, "TMPDIR": mounts.TMP, "MPLCONFIGDIR": f"{mounts.TMP}/matplotlib"}
            own["PYTHONPATH"] = ":".join((bubblewrap.STACK, *path))
            return Settings(
                packages=self._below(room.packages),
                annex=self._below(room.annex),
                path=path,
                environment=_ENVIRONMENT | self._stack.environment | own | extra,
            )
        temporary = f"{place}/temporary"
        for directory in (data, temporary):
            Path(directory).mkdir(mode=0o700)
        path = (str(room.packages),) if room.packages is not None else ()
        annex = (str(room.annex),) if room.annex is not None else ()
        own = {"HOME": temporary, "TMPDIR": temporary, "MPLCONFIGDIR": f"{temporary}/matplotlib"}
        return Settings(
            place=data,
            annex_place="".join(annex),
            path=path,
            environment=_ENVIRONMENT | own | extra,
            readable=(str(self._stack.prefix), *map(str, self._stack.entries), *path, *annex),
            writable=(place,),
        )

    def _below(self, place: Path | None) -> str | None:
        """Where it lies below the packages, all of which a zygote sees and none of which a container does."""
        return None if place is None or self._packages is None else str(place.relative_to(self._packages))

    # -- tidying ------------------------------------------------------------------------------------------------

    def _forget(self, container: Container, place: str | None) -> None:
        self._containers.discard(container)
        if place is not None:
            self._do(asyncio.to_thread(shutil.rmtree, place, ignore_errors=True))

    async def _tidy(self) -> None:
        """End zygotes that nobody has used for a while, and worn ones once their last container is gone."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for zygote in [z for z in self._retired if not z.containers]:
                self._retired.remove(zygote)
                await zygote.stop()
            while idle := self._idle(IDLE_SECONDS):  # looked at anew: it may be used again while another is ended
                await self._discard(idle[0])

    async def _make_room(self) -> None:
        """A zygote costs memory even when idle, and anybody can name a new tenant: so there are only so many."""
        while len(self._nests) >= MOST_TENANTS:
            idle = self._idle(_SURELY_UNUSED_SECONDS)
            if not idle:
                message = f"at capacity ({len(self._nests)} tenants have containers)"
                raise AtCapacity(message, 5)
            await self._discard(idle[0])

    def _idle(self, seconds: float) -> list[tuple[str, tuple[str, ...]]]:
        """Nests without a container that were not used for so long, the longest first."""
        now = time.monotonic()
        found = [
            (nest.used, key)
            for key, nest in self._nests.items()
            if now - nest.used > seconds
            and not nest.lock.locked()
            and (nest.zygote is None or nest.zygote.containers <= (nest.spare is not None))
        ]
        return [key for _, key in sorted(found)]

    async def _discard(self, key: tuple[str, tuple[str, ...]]) -> None:
        """Whoever waits for this may give up waiting; it goes on all the same."""
        await asyncio.shield(self._do(_clear(self._nests.pop(key))))

    def _do(self, chore: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task


async def _clear(nest: _TenantPool) -> None:
    await _drop_spare(nest)
    if nest.zygote is not None:
        await nest.zygote.stop()


async def _drop_spare(nest: _TenantPool) -> None:
    spare, nest.spare = nest.spare, None
    if spare is not None:
        made = (await asyncio.gather(spare, return_exceptions=True))[0]
        if isinstance(made, Container):
            await made.end("it was not needed")


async def _stop_made(making: asyncio.Task[ZygoteProcess]) -> None:
    made = (await asyncio.gather(making, return_exceptions=True))[0]
    if isinstance(made, ZygoteProcess):
        await made.stop()


def _look(task: asyncio.Task[Any]) -> None:
    """Whoever takes the result meets the error; if nobody does, it is no news."""
    if not task.cancelled():
        task.exception()
