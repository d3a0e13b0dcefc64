"""Registry of sandboxes: which container has which sandbox, its lock and its users. Acquires and releases sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from antwort.api.errors import ApiError, not_found
from antwort.containers.sandboxes.port import Sandbox, SandboxError, Sandboxes, SandboxLost
from antwort.containers.skills.bundle import to_tar
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerStore,
    Owner,
    SandboxRef,
    SkillStore,
)
from antwort.telemetry import Metrics, SandboxSpan, audit, log


class ContainerAndSkillStore(ContainerStore, SkillStore, Protocol):
    """A store of containers and of their skills."""


class HeldElsewhere(Exception):
    """Another replica holds the sandbox of the container. Nothing was done; the caller reads the record again."""


class ContainerState:
    """The state in memory of a container that is in use, or that has a sandbox."""

    def __init__(self, owner: Owner, container_id: str) -> None:
        self.owner = owner
        self.id = container_id
        self.users = 0
        self.lock = asyncio.Lock()
        """Held by every operation that changes the container; granted in the order of arrival."""
        self.sandbox: Sandbox | None = None
        self.acquisition: asyncio.Task[Sandbox] | None = None
        """The sandbox that is being acquired; it may take as long as `claim_timeout`."""
        self.files: dict[str, ContainerFileRecord] = {}
        """The files in the sandbox, by path, as the store has them."""
        self.sandbox_replaced = False
        """The sandbox before this one was lost, and no execution has reported it yet."""
        self.closed = False
        """The container was deleted, or has expired."""

    def raise_if_closed(self) -> None:
        if self.closed:
            raise container_not_found(self.id)


class SandboxRegistry:
    """The state of all containers of this process, by tenant and id."""

    def __init__(
        self, store: ContainerAndSkillStore, sandboxes: Sandboxes, metrics: Metrics, claim_timeout: float, replica: str
    ) -> None:
        self._replica = replica
        self._store = store
        self._sandboxes = sandboxes
        self._metrics = metrics
        self._claim_timeout = claim_timeout
        self._states: dict[tuple[str, str], ContainerState] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self.freed = asyncio.Event()
        """Set when a container is no longer used or is closed, and then replaced by a new event."""

    @contextmanager
    def use(self, owner: Owner, container_id: str) -> Generator[ContainerState]:
        """Mark a container as in use: it does not expire meanwhile."""
        state = self._states.setdefault((owner.tenant, container_id), ContainerState(owner, container_id))
        state.users += 1
        try:
            yield state
        finally:
            state.users -= 1
            self._drop_unused(state)
            self._notify_freed()

    def in_use(self) -> list[ContainerState]:
        """The containers that are in use now."""
        return [state for state in self._states.values() if state.users]

    async def sandbox(self, state: ContainerState, record: ContainerRecord) -> Sandbox:
        """The sandbox of a container; a new one if it has none. The caller holds the lock of the container.

        `HeldElsewhere` where another replica was faster.
        """
        state.raise_if_closed()
        if state.sandbox is not None:
            return state.sandbox
        sandbox = await self._acquire(state, record)
        try:
            self._check_stored(state, sandbox, await self._store.set_sandbox(state.owner, state.id, self.ref(sandbox)))
        except BaseException:
            await self._start_release(sandbox)
            raise
        try:
            await self._add_skills(state, sandbox)
        except BaseException:
            await self._start_release(sandbox)
            raise
        state.sandbox, state.files = sandbox, {}
        # A stored sandbox that is not in memory was lost too, even if that could not be stored.
        state.sandbox_replaced = state.sandbox_replaced or record.lost is not None or record.sandbox is not None
        self._metrics.sandboxes.inc()
        return sandbox

    async def _add_skills(self, state: ContainerState, sandbox: Sandbox) -> None:
        """Copy the skills of the container into its new sandbox."""
        for skill in await self._store.container_skills(state.owner, state.id, with_bundles=True):
            tar = await asyncio.to_thread(to_tar, skill.bundle)
            await sandbox.add_skill(skill.name, _one_chunk(tar))

    def ref(self, sandbox: Sandbox) -> SandboxRef:
        """How the store identifies a sandbox of this process."""
        return SandboxRef(self._replica, sandbox.id)

    def _check_stored(self, state: ContainerState, sandbox: Sandbox, stored: ContainerRecord | None) -> None:
        """Raise an error unless the store has assigned the sandbox to the container."""
        if stored is None:
            state.closed = True
        state.raise_if_closed()
        if stored is not None and not self._is_held(stored, sandbox):
            raise HeldElsewhere

    def _is_held(self, record: ContainerRecord, sandbox: Sandbox) -> bool:
        return (record.replica, record.sandbox) == (self._replica, sandbox.id)

    async def check_held(self, state: ContainerState, record: ContainerRecord, now: float) -> None:
        """Discard the sandbox in memory if the store does not assign it to this process any more.

        Another replica takes a process that did not answer for too long for dead. The caller holds the lock of the
        container; its record may be older. `HeldElsewhere` where another replica has a new sandbox.
        """
        if state.sandbox is None or self._is_held(record, state.sandbox):
            return
        current = await self._store.get_container(state.owner, state.id, now)
        if current is None:
            state.closed = True
        state.raise_if_closed()
        if current is not None and not self._is_held(current, state.sandbox):
            await self._discard(state, state.sandbox)
            if current.replica not in (None, self._replica):
                raise HeldElsewhere

    async def reconcile(self, now: float) -> None:
        """Release the sandboxes of containers that other replicas have deleted, expired, or given a new sandbox."""
        held = [(state, state.sandbox) for state in self._states.values() if state.sandbox is not None]
        if not held:
            return
        stored = await self._store.held_sandboxes(self._replica)
        for state, sandbox in held:
            if (state.owner.tenant, state.id, sandbox.id) in stored:
                continue
            current = await self._store.get_container(state.owner, state.id, now)
            if state.sandbox is not sandbox or (current is not None and self._is_held(current, sandbox)):
                continue
            if current is None or current.status == "expired":
                self.release(state.owner, state.id)
            else:
                await self._discard(state, sandbox)

    async def _discard(self, state: ContainerState, sandbox: Sandbox) -> None:
        """Release a sandbox that the store does not assign to this process any more."""
        log.warning("a sandbox was given up: another replica took this one for dead", container_id=state.id)
        state.sandbox, state.files, state.sandbox_replaced = None, {}, True
        self._metrics.sandboxes.dec()
        await self._start_release(sandbox)
        self._drop_unused(state)

    async def _acquire(self, state: ContainerState, record: ContainerRecord) -> Sandbox:
        tier = record.memory_limit
        work = SandboxSpan(self._metrics, "acquire", state.id, tier)
        acquiring = self._sandboxes.acquire(tenant=state.owner.tenant, memory_limit=tier, timeout=self._claim_timeout)
        acquisition = state.acquisition = asyncio.create_task(acquiring)
        try:
            sandbox = await acquisition
            work.ended("ok")
        except asyncio.CancelledError:
            if acquisition.done() and not acquisition.cancelled() and acquisition.exception() is None:
                await self._start_release(acquisition.result())  # it was acquired just before
            if not _is_cancelled():  # but the acquisition was, by `release`
                state.raise_if_closed()
            raise
        except SandboxError as error:
            work.failed(error.metric_label)
            raise
        finally:
            state.acquisition = None
            seconds = work.close()
        audit("container.acquire", state.id, tier=tier, sandbox=sandbox.id, ms=round(seconds * 1000))
        return sandbox

    @asynccontextmanager
    async def watch(self, state: ContainerState, record: ContainerRecord, sandbox: Sandbox) -> AsyncGenerator[None]:
        """Around a use of the sandbox: a `SandboxLost` is stored before it is raised."""
        try:
            yield
        except SandboxLost as lost:
            if state.closed:
                raise container_not_found(state.id) from lost
            await self.mark_lost(state, sandbox, str(lost), record.memory_limit)
            raise

    async def mark_lost(self, state: ContainerState, sandbox: Sandbox, why: str, tier: str) -> None:
        """The sandbox has died with its content. The container stays, and its record says so."""
        if state.sandbox is not sandbox:
            return  # already marked, or released
        state.sandbox, state.files, state.sandbox_replaced = None, {}, True
        self._metrics.sandboxes.dec()
        is_reported = False  # by another replica, which took this one for dead
        try:
            is_reported = not await self._store.mark_sandbox_lost(state.owner, state.id, self.ref(sandbox), why)
        finally:
            if not is_reported:
                self._metrics.containers.labels("lost", tier).inc()
                audit("container.lost", state.id, tier=tier, sandbox=sandbox.id, tenant=state.owner.tenant)
            await self._start_release(sandbox)

    def release(self, owner: Owner, container_id: str) -> asyncio.Future[None] | None:
        """Close a container that was deleted or has expired. The result, if any, is done when its sandbox has ended."""
        self._notify_freed()
        state = self._states.pop((owner.tenant, container_id), None)
        if state is None:
            return None
        state.closed = True
        if state.acquisition is not None:
            state.acquisition.cancel()
        sandbox, state.sandbox = state.sandbox, None
        if sandbox is None:
            return None
        self._metrics.sandboxes.dec()
        return self._start_release(sandbox)

    async def aclose(self) -> None:
        """Release all sandboxes, and end the acquisitions."""
        acquisitions = [state.acquisition for state in self._states.values() if state.acquisition is not None]
        for state in list(self._states.values()):
            self.release(state.owner, state.id)
        await asyncio.gather(*acquisitions, return_exceptions=True)
        await asyncio.gather(*self._releasing)
        await self._sandboxes.aclose()

    def _start_release(self, sandbox: Sandbox) -> asyncio.Future[None]:
        """In a task of its own, so that a cancelled caller leaves no sandbox running."""
        releasing = asyncio.create_task(self._release(sandbox))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)
        return asyncio.shield(releasing)

    async def _release(self, sandbox: Sandbox) -> None:
        try:
            await self._sandboxes.release(sandbox)
        except SandboxError:
            log.warning("a sandbox could not be released", sandbox=sandbox.id)

    def _notify_freed(self) -> None:
        freed, self.freed = self.freed, asyncio.Event()
        freed.set()

    def _drop_unused(self, state: ContainerState) -> None:
        key = (state.owner.tenant, state.id)
        if not state.users and state.sandbox is None and self._states.get(key) is state:
            del self._states[key]


def _is_cancelled() -> bool:
    """Whether the current task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data


def container_not_found(container_id: str) -> ApiError:
    """404, the same as for an id that never existed."""
    return not_found("Container", container_id)
