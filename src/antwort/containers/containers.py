"""Containers: create, use, expire, delete; execute code and transfer files.

Every operation takes the owner, answers 404 for another owner's container, and postpones
expiry. Operations that need the sandbox run in the process that holds it: this one, or another
replica (`operations`). Where that one has died, the sandbox is lost, and this process continues
with a new one.

At the quota a new `auto` container evicts an idle one, or waits for one: without the wait,
parallel responses of one tenant would expire containers that other responses are about to use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import TypeVar

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, out_of_range, unsupported_value
from antwort.api.ids import new_id
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers.files import ContainerAndFileStore, FileStream, file_not_found, uploaded_files
from antwort.containers.local import LocalOperations
from antwort.containers.operations import ContainerOperations
from antwort.containers.paths import relative_path
from antwort.containers.quotas import DiskQuota, quota_error
from antwort.containers.registry import HeldElsewhere, SandboxRegistry, container_not_found
from antwort.containers.replicas.client import HolderEnded, ReplicaClient
from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    PythonCode,
    SandboxError,
    Sandboxes,
    SandboxUnavailable,
    ShellCommand,
)
from antwort.engine.replicas.port import ReplicaDirectory
from antwort.engine.stores import (
    AUTO_CONTAINER,
    ContainerFileRecord,
    ContainerRecord,
    ContainerSkill,
    ContainerUse,
    FileRecord,
    OverQuota,
    Owner,
    PageQuery,
    RecordPage,
    ReplicaUse,
    StoreFault,
)
from antwort.telemetry import Metrics, audit, log

T = TypeVar("T")

_GIB = 1024**3
_DAY_SECONDS = 86_400.0
_MAX_SWEEP_INTERVAL = 5.0
_EVICTION_POLL = 0.5
_TOUCHES_PER_USE = 3
"""Periods of `touch_used` after which a container of another replica counts as idle."""
_RESTARTED = "The server was restarted."
_STOPPED = "The server that ran it has stopped."


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """The properties of a new container. None stands for the default of the configuration."""

    name: str
    memory_limit: str | None = None
    expires_after_minutes: int | None = None
    """Idle time until it expires."""
    file_ids: Sequence[str] = ()
    """Uploaded files to copy into it."""
    skills: Sequence[ContainerSkill] = ()
    """Skills that it gets, with their archives."""


class Containers:
    """The containers of all owners."""

    def __init__(
        self,
        store: ContainerAndFileStore,
        sandboxes: Sandboxes,
        settings: ContainersSettings,
        interpreter: CodeInterpreterSettings,
        metrics: Metrics,
        replicas: ReplicaDirectory,
        client: ReplicaClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`client` reaches other replicas; None for the only one on its store."""
        self._replicas = replicas
        self._client = client
        self._store = store
        self._sandboxes = sandboxes
        self._settings = settings
        self._execution_timeout = interpreter.execution_timeout
        self._claim_timeout = interpreter.claim_timeout
        self._metrics = metrics
        self._clock = clock
        self._quota = ContainerUse(settings.max_containers, settings.max_memory, settings.max_disk)
        self._registry = SandboxRegistry(store, sandboxes, metrics, interpreter.claim_timeout, replicas.own_id)
        self._ended: set[str] = set()
        """Replicas that have ended, and whose sandboxes are not swept yet."""
        self._waiting: set[str] = set()
        """Ids of new containers that wait for another one to be evicted."""
        self._disk = DiskQuota(store, self._quota, metrics, clock)
        self.local = LocalOperations(store, self._registry, self._disk, metrics, interpreter.max_output_size, clock)
        """The operations in sandboxes of this process."""
        self.sweep_interval = min(_MAX_SWEEP_INTERVAL, settings.expires_after * 60 / 4)
        """Seconds between two calls of `touch_used`: short enough that a container in use is never idle."""

    async def is_stateful(self) -> bool:
        """Whether variables persist between executions in a container."""
        return await self._sandboxes.is_stateful()

    # ── create, look up, delete ──────────────────────────────────────────────────────────────────────────────────────

    async def create(self, owner: Owner, spec: ContainerSpec) -> ContainerRecord:
        """A new container. It gets a sandbox on its first use: now, if files are copied into it."""
        record = self._record(spec)
        files = await uploaded_files(self._store, owner, spec.file_ids, "file_ids")
        await self._disk.check(owner, sum(file.bytes for file in files))
        with self.using(owner, record.id):  # from the start, or another new container could evict it
            record = await self._write(owner, record)
            if spec.skills:
                await self._store.set_container_skills(owner, record.id, spec.skills)
        self._metrics.containers.labels("created", record.memory_limit).inc()
        audit("container.create", record.id, tier=record.memory_limit, files=len(files))
        if files:
            try:
                await self._copy_uploads(owner, record.id, files, again=False)
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self._delete(owner, record)))
                raise
        return record

    def _record(self, spec: ContainerSpec) -> ContainerRecord:
        settings, now = self._settings, self._clock()
        tier = spec.memory_limit if spec.memory_limit is not None else settings.tiers[0]
        if tier not in settings.tiers:
            raise unsupported_value(tier, settings.tiers, "memory_limit")
        minutes = spec.expires_after_minutes
        if minutes is not None and minutes > settings.max_expires_after:
            raise out_of_range("expires_after.minutes", minutes, maximum=settings.max_expires_after)
        return ContainerRecord(
            id=new_id("cntr_"),
            name=spec.name,
            created_at=int(now),
            last_active_at=now,
            expires_after=(settings.expires_after if minutes is None else minutes) * 60.0,
            memory_limit=tier,
            memory=int(tier.removesuffix("g")) * _GIB,
            used_by=self._replicas.own_id,
        )

    async def _write(self, owner: Owner, record: ContainerRecord) -> ContainerRecord:
        """Store a new container. Over the quota, an `auto` container evicts an idle `auto` container, or waits for one.

        Without eviction, a client whose every request creates an `auto` container would get
        429 as soon as `max_containers` of them exist, until the first one expires.
        """
        deadline = asyncio.get_running_loop().time() + self._claim_timeout
        while True:
            freed = self._registry.freed  # before the store is asked, so that no change is missed
            fresh = msgspec.structs.replace(record, last_active_at=self._clock())
            try:
                await self._store.create_container(owner, fresh, self._quota, fresh.last_active_at)
            except OverQuota as error:
                may_evict = record.is_auto and record.memory <= self._quota.memory
                if not (may_evict and await self._evict_or_wait(owner, record.id, freed, deadline)):
                    raise quota_error(error, self._quota) from error
            else:
                return fresh

    async def _evict_or_wait(self, owner: Owner, new_id: str, freed: asyncio.Event, deadline: float) -> bool:
        """Expire the least recently used idle `auto` container, or wait for one to become idle.

        Returns whether to try again: False at the deadline, and where only containers that wait themselves are in use.
        A container that another replica has used just before may still be in use there; the store is asked again.
        """
        self._waiting.add(new_id)
        loop = asyncio.get_running_loop()
        wait_until = deadline
        try:
            now, used = self._clock(), self._used_ids(owner)
            expired = await self._store.expire_least_recently_used(owner, AUTO_CONTAINER, now, self._use(now), used)
            if expired is not None:
                self._close_expired(owner, expired)
                return True
            if await self._store.has_live_containers(owner, AUTO_CONTAINER, now, used):
                wait_until = min(deadline, loop.time() + _EVICTION_POLL)
            elif not freed.is_set() and self._waiting.issuperset(self._used_ids(owner)):
                return False
            async with asyncio.timeout_at(wait_until):
                await freed.wait()
        except TimeoutError:
            return wait_until < deadline
        finally:
            self._waiting.discard(new_id)
        return True

    def _used_ids(self, owner: Owner) -> list[str]:
        return [state.id for state in self._registry.in_use() if state.owner.tenant == owner.tenant]

    def _use(self, now: float) -> ReplicaUse:
        """A use by this replica. Others touch what they use each `sweep_interval`."""
        return ReplicaUse(self._replicas.own_id, now - _TOUCHES_PER_USE * self.sweep_interval)

    async def get(self, owner: Owner, container_id: str) -> ContainerRecord:
        """A container of the owner, also an expired one; 404 otherwise."""
        now = self._clock()
        record = await self._store.touch_container(owner, container_id, now, self._use(now))
        if record is not None and self._has_ended(record.replica):
            await self._mark_ended([record.replica or ""], _STOPPED)
            record = await self._store.get_container(owner, container_id, now)
        if record is None:
            raise container_not_found(container_id)
        return record

    async def require(self, owner: Owner, container_id: str) -> ContainerRecord:
        """A running container of the owner; 400 for an expired one."""
        record = await self.get(owner, container_id)
        if record.status == "expired":
            raise ApiError(400, "Container is expired.")
        return record

    async def newest_live(self, owner: Owner, ids: Sequence[str]) -> ContainerRecord | None:
        """The last of these ids that is a running container."""
        found = await self._store.find_containers(owner, ids, self._clock()) if ids else {}
        running = (found[key] for key in reversed(ids) if key in found and found[key].status == "running")
        newest = next(running, None)
        return newest if newest is None or not self._has_ended(newest.replica) else await self.get(owner, newest.id)

    def using(self, owner: Owner, container_id: str) -> AbstractContextManager[object]:
        """Mark a container as in use, also while nothing runs in it: it neither expires nor is evicted."""
        return self._registry.use(owner, container_id)

    async def skills(self, owner: Owner, container_id: str, *, with_bundles: bool = False) -> list[ContainerSkill]:
        """The skills of a container; their archives only if they are asked for."""
        return await self._store.container_skills(owner, container_id, with_bundles=with_bundles)

    async def page(self, owner: Owner, query: PageQuery, name: str | None = None) -> RecordPage:
        """A page of the owner's containers. Listing does not postpone expiry."""
        return await self._store.list_containers(owner, query, self._clock(), name)

    async def delete(self, owner: Owner, container_id: str) -> None:
        """Delete a container with its files; running code is killed."""
        record = await self._store.get_container(owner, container_id, self._clock())
        if record is None or not await self._delete(owner, record):
            raise container_not_found(container_id)

    async def _delete(self, owner: Owner, record: ContainerRecord) -> bool:
        if not await self._store.delete_container(owner, record.id):
            return False
        self._metrics.containers.labels("deleted", record.memory_limit).inc()
        audit("container.delete", record.id, tier=record.memory_limit)
        await self.local.release(owner, record.id)
        if self._client is not None and self._is_held_elsewhere(record):
            try:
                await self._client.release(owner, record)
            except (HeldElsewhere, HolderEnded, SandboxError, StoreFault):  # the holder notices it by itself
                log.info("the sandbox of a deleted container could not be ended at once", container_id=record.id)
        return True

    # ── expiry and recovery ──────────────────────────────────────────────────────────────────────────────────────────

    async def touch_used(self) -> None:
        """Postpone the expiry of the containers that this process uses. To be called each `sweep_interval`."""
        now = self._clock()
        for state in self._registry.in_use():
            await self._store.touch_container(state.owner, state.id, now, self._use(now))

    async def reconcile(self) -> None:
        """Release sandboxes whose containers others have deleted or expired; mark those of ended replicas as lost."""
        await self._registry.reconcile(self._clock())
        await self.recover(_STOPPED)
        self._ended = {replica for replica in self._ended if self._has_ended(replica)}  # others have come back
        if ended := frozenset(self._ended):
            try:
                await self._sandboxes.sweep(ended)
            except SandboxError as error:
                log.warning("the sandboxes of ended replicas could not be swept; it is tried again", reason=str(error))
            else:
                self._ended -= ended

    def note_ended(self, replica: str) -> None:
        """A replica has died or left: the next `reconcile` sweeps what it has left."""
        self._ended.add(replica)

    async def expire_idle(self) -> None:
        """Expire the idle containers of all replicas, and forget those that expired long ago."""
        now = self._clock()
        for owner, record in await self._store.expire_containers(now):
            self._close_expired(owner, record)
        if forgotten := await self._store.forget_containers(now - self._settings.forget_after * _DAY_SECONDS):
            log.info("expired containers are forgotten", count=forgotten)

    def _close_expired(self, owner: Owner, record: ContainerRecord) -> None:
        self._metrics.containers.labels("expired", record.memory_limit).inc()
        audit("container.expire", record.id, tier=record.memory_limit, tenant=owner.tenant)
        self._registry.release(owner, record.id)

    async def recover(self, why: str = _RESTARTED) -> None:
        """Mark the sandboxes of replicas that have ended as lost. The next execution reports it."""
        ended = [replica for replica in await self._store.sandbox_replicas() if self._has_ended(replica)]
        if ended:
            await self._mark_ended(ended, why)

    async def _mark_ended(self, replicas: Sequence[str], why: str) -> None:
        for owner, record in await self._store.mark_sandboxes_lost(replicas, why):
            self._metrics.containers.labels("lost", record.memory_limit).inc()
            audit("container.lost", record.id, tier=record.memory_limit, tenant=owner.tenant)

    async def aclose(self) -> None:
        """Release every sandbox. Other replicas, and the next start, find them lost."""
        await self._registry.aclose()
        if self._client is not None:
            await self._client.aclose()

    # ── the process that holds the sandbox ───────────────────────────────────────────────────────────────────────────

    def _has_ended(self, replica: str | None) -> bool:
        return replica is not None and replica != self._replicas.own_id and not self._replicas.is_live(replica)

    def _is_held_elsewhere(self, record: ContainerRecord) -> bool:
        return record.replica not in (None, self._replicas.own_id)

    def _operations(self, record: ContainerRecord) -> ContainerOperations:
        """The operations in the process that holds the sandbox; in this one, if there is none yet."""
        if not self._is_held_elsewhere(record):
            return self.local
        if self._client is None:
            raise SandboxUnavailable("The container runs on another replica, and replicas cannot reach each other.")
        return self._client

    async def held(self, owner: Owner, container_id: str, sandbox: str) -> ContainerRecord:
        """For a call of another replica: the record of a container whose sandbox this process holds.

        `HeldElsewhere` where the container has another sandbox than the caller assumed, or none.
        """
        record = await self._store.get_container(owner, container_id, self._clock())
        if record is None:
            raise container_not_found(container_id)
        if (record.replica, record.sandbox) != (self._replicas.own_id, sandbox):
            raise HeldElsewhere
        return record

    async def release_deleted(self, owner: Owner, container_id: str) -> None:
        """For a call of another replica, which has deleted the container: end its sandbox in this process."""
        record = await self._store.get_container(owner, container_id, self._clock())
        if record is None:
            await self.local.release(owner, container_id)

    async def _run(
        self,
        owner: Owner,
        container_id: str,
        operation: Callable[[ContainerOperations, ContainerRecord], Awaitable[T]],
    ) -> T:
        """Run an operation where the sandbox is. Once more, if that has changed before anything was done."""
        with self.using(owner, container_id):
            try:
                record = await self.require(owner, container_id)
                return await operation(self._operations(record), record)
            except (HeldElsewhere, HolderEnded):
                record = await self.require(owner, container_id)
            try:
                return await operation(self._operations(record), record)
            except (HeldElsewhere, HolderEnded) as error:
                raise _moved() from error

    # ── execution ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def execute(
        self,
        owner: Owner,
        container_id: str,
        code: str,
        *,
        requirements: Sequence[str] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - of the code in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run code: its output as it is printed, then the result. Otherwise as `run`."""
        async with aclosing(self.run(owner, container_id, PythonCode(code, requirements), timeout=timeout)) as steps:
            async for step in steps:
                yield step

    async def run(
        self,
        owner: Owner,
        container_id: str,
        program: PythonCode | ShellCommand,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of the program in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run code or a command: its output as it is printed, then the result.

        `timeout` is at most `execution_timeout`. Closing the generator interrupts the program. `SandboxLost` where the
        sandbox dies meanwhile.
        """
        seconds = min(timeout or self._execution_timeout, self._execution_timeout)
        with self.using(owner, container_id):
            for attempt in (1, 2):
                record = await self.require(owner, container_id)
                run = self._operations(record).execute(owner, record, program, seconds=seconds)
                try:
                    async with aclosing(run) as steps:
                        async for step in steps:
                            if isinstance(step, ExecutionResult):
                                now = self._clock()
                                await self._store.touch_container(owner, container_id, now, self._use(now))
                            yield step
                except (HeldElsewhere, HolderEnded) as error:
                    if attempt > 1:
                        raise _moved() from error
                else:
                    return

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_file(
        self, owner: Owner, container_id: str, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        """Write or replace a file. An upload that fails leaves no part of the file."""
        relative = relative_path(path, param="file")
        return await self._run(owner, container_id, lambda at, record: at.put_file(owner, record, relative, content))

    async def add_file_id(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """Copy an uploaded file. One that was copied before is copied again, to the same path."""
        await self.require(owner, container_id)
        files = await uploaded_files(self._store, owner, [file_id], "file_id")
        return (await self._copy_uploads(owner, container_id, files, again=True))[0]

    async def ensure_files(self, owner: Owner, container_id: str, file_ids: Sequence[str]) -> list[ContainerFileRecord]:
        """Copy these uploaded files. Those that were copied before are left as they are."""
        files = await uploaded_files(self._store, owner, file_ids, "file_ids")
        return await self._copy_uploads(owner, container_id, files, again=False)

    async def list_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage:
        """A page of the files; while code runs, as before it; of an expired container, as last known.

        Only the first page looks into the sandbox, so that a cursor stays valid on the pages behind it.
        """
        record = await self.get(owner, container_id)
        if record.sandbox is not None and query.after is None and query.before is None:
            await self._sync(owner, record)
        page = await self._store.list_container_files(owner, container_id, query)
        if page is None:
            raise container_not_found(container_id)
        return page

    async def _sync(self, owner: Owner, record: ContainerRecord) -> None:
        try:
            await self._operations(record).sync_files(owner, record)
        except (HeldElsewhere, HolderEnded, SandboxError):  # the known records are good enough
            log.info("the files of a container could not be listed", container_id=record.id)

    async def get_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """The record of a file."""
        await self.get(owner, container_id)
        return await self._file(owner, container_id, file_id)

    async def read_file(self, owner: Owner, container_id: str, file_id: str) -> FileStream:
        """The current content of a file, to be closed by the caller. Errors are raised here, before the stream."""

        async def read(at: ContainerOperations, record: ContainerRecord) -> FileStream:
            return await FileStream.start(at.read(owner, record, await self._file(owner, container_id, file_id)))

        return await self._run(owner, container_id, read)

    async def delete_file(self, owner: Owner, container_id: str, file_id: str) -> None:
        """Delete a file."""

        async def delete(at: ContainerOperations, record: ContainerRecord) -> None:
            await at.delete_file(owner, record, await self._file(owner, container_id, file_id))

        await self._run(owner, container_id, delete)

    async def unpack(self, owner: Owner, container_id: str, tar: AsyncIterator[bytes]) -> list[ContainerFileRecord]:
        """Extract a tar archive; the new files. If a member is refused, those before it stay."""
        return await self._run(owner, container_id, lambda at, record: at.unpack(owner, record, tar))

    async def pack(self, owner: Owner, container_id: str) -> FileStream:
        """All files as one tar archive, to be closed by the caller."""
        await self._run(owner, container_id, lambda at, record: at.prepare(owner, record))
        audit("container.pack", container_id)
        return await self._run(owner, container_id, lambda at, record: FileStream.start(at.read(owner, record, None)))

    async def _copy_uploads(
        self, owner: Owner, container_id: str, files: Sequence[FileRecord], *, again: bool
    ) -> list[ContainerFileRecord]:
        return await self._run(owner, container_id, lambda at, record: at.copy_files(owner, record, files, again=again))

    async def _file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        file = await self._store.get_container_file(owner, container_id, file_id)
        if file is None:
            raise file_not_found(container_id, file_id)
        return file


def _moved() -> SandboxUnavailable:
    return SandboxUnavailable("The container changes its server right now; try again.")
