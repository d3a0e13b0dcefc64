"""Containers: create, use, expire, delete; execute code and transfer files.

Every operation takes the owner, answers 404 for another owner's container, and postpones
expiry. Operations that change a container hold its lock, in the order of arrival: an
execution sees the files that were added before it, and two executions never overlap.

At the quota a new `auto` container evicts an idle one, or waits for one: without the wait,
parallel responses of one tenant would expire containers that other responses are about to use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, out_of_range, unsupported_value
from antwort.api.ids import new_id
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers.files import ContainerAndFileStore, ContainerFiles, FileStream, file_not_found, unknown_file
from antwort.containers.paths import relative_path
from antwort.containers.quotas import DiskQuota, quota_error
from antwort.containers.registry import ContainerState, SandboxRegistry, container_not_found
from antwort.containers.sandboxes.port import ExecutionResult, Output, Sandbox, SandboxError, Sandboxes, SandboxLost
from antwort.engine.stores import (
    AUTO_CONTAINER,
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    FileRecord,
    OverQuota,
    Owner,
    PageQuery,
    RecordPage,
)
from antwort.telemetry import Metrics, SandboxSpan, audit, log

_GIB = 1024**3
_DAY_SECONDS = 86_400.0
_MAX_SWEEP_INTERVAL = 5.0
_RESTARTED = "The server was restarted."


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """The properties of a new container. None stands for the default of the configuration."""

    name: str
    memory_limit: str | None = None
    expires_after_minutes: int | None = None
    """Idle time until it expires."""
    file_ids: Sequence[str] = ()
    """Uploaded files to copy into it."""


class Containers:
    """The containers of all owners."""

    def __init__(
        self,
        store: ContainerAndFileStore,
        sandboxes: Sandboxes,
        settings: ContainersSettings,
        interpreter: CodeInterpreterSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._settings = settings
        self._execution_timeout = interpreter.execution_timeout
        self._claim_timeout = interpreter.claim_timeout
        self._max_output = interpreter.max_output_size
        self._metrics = metrics
        self._clock = clock
        self._quota = ContainerUse(settings.max_containers, settings.max_memory, settings.max_disk)
        self._registry = SandboxRegistry(store, sandboxes, metrics, interpreter.claim_timeout)
        self._waiting: set[str] = set()
        """Ids of new containers that wait for another one to be evicted."""
        self._disk = DiskQuota(store, self._quota, metrics, clock)
        self._files = ContainerFiles(store, self._registry, self._disk, metrics, clock)
        self.sweep_interval = min(_MAX_SWEEP_INTERVAL, settings.expires_after * 60 / 4)
        """Seconds between two calls of `expire_idle`: short enough that a container in use is never idle."""

    async def is_stateful(self) -> bool:
        """Whether variables persist between executions in a container."""
        return await self._sandboxes.is_stateful()

    # ── create, look up, delete ──────────────────────────────────────────────────────────────────────────────────────

    async def create(self, owner: Owner, spec: ContainerSpec) -> ContainerRecord:
        """A new container. It gets a sandbox on its first use: now, if files are copied into it."""
        record = self._record(spec)
        files = await self._uploaded(owner, spec.file_ids, "file_ids")
        await self._disk.check(owner, sum(file.bytes for file in files))
        with self.using(owner, record.id):  # from the start, or another new container could evict it
            record = await self._write(owner, record)
        self._metrics.containers.labels("created", record.memory_limit).inc()
        audit("container.create", record.id, tier=record.memory_limit, files=len(files))
        if files:
            try:
                await self._copy_uploads(owner, record.id, files)
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
        """
        self._waiting.add(new_id)
        try:
            now, used = self._clock(), self._used_ids(owner)
            expired = await self._store.expire_least_recently_used(owner, AUTO_CONTAINER, now, used)
            if expired is not None:
                self._close_expired(owner, expired)
            elif not freed.is_set() and self._waiting.issuperset(self._used_ids(owner)):
                return False
            else:
                async with asyncio.timeout_at(deadline):
                    await freed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(new_id)
        return True

    def _used_ids(self, owner: Owner) -> list[str]:
        return [state.id for state in self._registry.in_use() if state.owner.tenant == owner.tenant]

    async def get(self, owner: Owner, container_id: str) -> ContainerRecord:
        """A container of the owner, also an expired one; 404 otherwise."""
        record = await self._store.touch_container(owner, container_id, self._clock())
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
        return next(running, None)

    def using(self, owner: Owner, container_id: str) -> AbstractContextManager[object]:
        """Mark a container as in use, also while nothing runs in it: it neither expires nor is evicted."""
        return self._registry.use(owner, container_id)

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
        if releasing := self._registry.release(owner, record.id):
            await releasing
        return True

    # ── expiry and recovery ──────────────────────────────────────────────────────────────────────────────────────────

    async def expire_idle(self) -> None:
        """Expire idle containers and release their sandboxes; forget those that expired long ago."""
        now = self._clock()
        for state in self._registry.in_use():
            await self._store.touch_container(state.owner, state.id, now)
        for owner, record in await self._store.expire_containers(now):
            self._close_expired(owner, record)
        if forgotten := await self._store.forget_containers(now - self._settings.forget_after * _DAY_SECONDS):
            log.info("expired containers are forgotten", count=forgotten)

    def _close_expired(self, owner: Owner, record: ContainerRecord) -> None:
        self._metrics.containers.labels("expired", record.memory_limit).inc()
        audit("container.expire", record.id, tier=record.memory_limit, tenant=owner.tenant)
        self._registry.release(owner, record.id)

    async def recover(self) -> None:
        """At start: mark the sandboxes of the earlier process as lost. The next execution reports it."""
        for owner, record in await self._store.mark_all_sandboxes_lost(_RESTARTED):
            self._metrics.containers.labels("lost", record.memory_limit).inc()
            audit("container.lost", record.id, tier=record.memory_limit, tenant=owner.tenant)

    async def aclose(self) -> None:
        """Release every sandbox; the next start marks them as lost."""
        await self._registry.aclose()

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
        """Run code under the lock of the container: its output as it is printed, then the result.

        `timeout` is at most `execution_timeout`. Closing the generator interrupts the code.
        `SandboxLost` where the sandbox dies meanwhile; one that had died before the code
        began is replaced, once.
        """
        seconds = min(timeout or self._execution_timeout, self._execution_timeout)
        async with self._locked(owner, container_id) as (state, record):
            await self._disk.check(owner)
            work = SandboxSpan(self._metrics, "execute", container_id, record.memory_limit)
            status, printed = "abandoned", 0
            result: ExecutionResult | None = None
            try:
                for attempt in (1, 2):
                    sandbox = await self._registry.sandbox(state, record)
                    run = sandbox.run(code, requirements=requirements, timeout=seconds)
                    try:
                        async with self._registry.watch(state, record, sandbox), aclosing(run) as steps:
                            async for step in steps:
                                if isinstance(step, Output):
                                    shown = step.text[: max(0, self._max_output - printed)]
                                    printed += len(step.text)
                                    if shown:
                                        yield msgspec.structs.replace(step, text=shown)
                                else:
                                    result = await self._completed(state, record, sandbox, step)
                                    break  # a fault after the result does not lose it
                        break
                    except SandboxLost as lost:
                        if lost.begun or attempt > 1:
                            raise
                if result is not None:
                    status = result.status
                    work.ended(status, printed=printed, files=len(result.files))
                    await self._store.touch_container(owner, container_id, self._clock())
                    yield result
            except SandboxError as error:
                status = error.metric_label
                work.failed(status)
                raise
            finally:
                ms, tier = round(work.close() * 1000), record.memory_limit
                audit("container.execute", container_id, tier=tier, status=status, ms=ms, printed=printed)

    async def _completed(
        self, state: ContainerState, record: ContainerRecord, sandbox: Sandbox, result: ExecutionResult
    ) -> ExecutionResult:
        """The result with the files that the code wrote. Stores these, or that the sandbox has ended."""
        state.raise_if_closed()
        replaced, state.sandbox_replaced = state.sandbox_replaced, False
        files: list[ContainerFileRecord] = []
        if not result.sandbox_alive:
            why = f"The sandbox has ended ({result.reason or result.status})."
            await self._registry.mark_lost(state, sandbox, why, record.memory_limit)
        else:
            try:
                async with self._registry.watch(state, record, sandbox):
                    files = await self._files.sync(state, sandbox)
            except SandboxError:  # the result is known and valid; the next sync finds the files
                log.warning("what code has written could not be listed", container_id=state.id)
        return msgspec.structs.replace(result, files=tuple(files), sandbox_replaced=replaced)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_file(
        self, owner: Owner, container_id: str, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        """Write or replace a file. An upload that fails leaves no part of the file."""
        relative = relative_path(path, param="file")
        async with self._locked(owner, container_id) as (state, record):
            return await self._files.put(state, record, relative, content)

    async def add_file_id(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """Copy an uploaded file. One that was copied before is copied again, to the same path."""
        await self.require(owner, container_id)
        files = await self._uploaded(owner, [file_id], "file_id")
        return (await self._copy_uploads(owner, container_id, files, again=True))[0]

    async def ensure_files(self, owner: Owner, container_id: str, file_ids: Sequence[str]) -> list[ContainerFileRecord]:
        """Copy these uploaded files. Those that were copied before are left as they are."""
        files = await self._uploaded(owner, file_ids, "file_ids")
        return await self._copy_uploads(owner, container_id, files)

    async def list_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage:
        """A page of the files; while code runs, as before it; of an expired container, as last known.

        Only the first page looks into the sandbox, so that a cursor stays valid on the pages behind it.
        """
        record = await self.get(owner, container_id)
        if record.sandbox is not None and query.after is None and query.before is None:
            await self._files.sync_if_idle(owner, record)
        page = await self._store.list_container_files(owner, container_id, query)
        if page is None:
            raise container_not_found(container_id)
        return page

    async def get_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """The record of a file."""
        await self.get(owner, container_id)
        return await self._file(owner, container_id, file_id)

    async def read_file(self, owner: Owner, container_id: str, file_id: str) -> FileStream:
        """The current content of a file, to be closed by the caller. Errors are raised here, before the stream."""
        record = await self.require(owner, container_id)
        file = await self._file(owner, container_id, file_id)
        return await FileStream.start(self._files.read(owner, record, file))

    async def delete_file(self, owner: Owner, container_id: str, file_id: str) -> None:
        """Delete a file."""
        async with self._locked(owner, container_id) as (state, record):
            file = await self._file(owner, container_id, file_id)
            await self._files.remove(state, record, file)
            audit("container.file.delete", file.id, container_id=container_id)

    async def unpack(self, owner: Owner, container_id: str, tar: AsyncIterator[bytes]) -> list[ContainerFileRecord]:
        """Extract a tar archive; the new files. If a member is refused, those before it stay."""
        async with self._locked(owner, container_id) as (state, record):
            files = await self._files.unpack(state, record, tar)
        audit("container.unpack", container_id, files=len(files), bytes=sum(file.bytes for file in files))
        return files

    async def pack(self, owner: Owner, container_id: str) -> FileStream:
        """All files as one tar archive, to be closed by the caller."""
        async with self._locked(owner, container_id) as (state, record):
            await self._registry.sandbox(state, record)
        audit("container.pack", container_id)
        return await FileStream.start(self._files.read(owner, record, None))

    async def _copy_uploads(
        self, owner: Owner, container_id: str, files: Sequence[FileRecord], *, again: bool = False
    ) -> list[ContainerFileRecord]:
        async with self._locked(owner, container_id) as (state, record):
            return [await self._files.copy(state, record, file, again=again) for file in files]

    async def _file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        file = await self._store.get_container_file(owner, container_id, file_id)
        if file is None:
            raise file_not_found(container_id, file_id)
        return file

    async def _uploaded(self, owner: Owner, ids: Sequence[str], param: str) -> list[FileRecord]:
        files: list[FileRecord] = []
        for identifier in dict.fromkeys(ids):
            record = await self._store.get_file(owner, identifier)
            if record is None:
                raise unknown_file(identifier, param)
            files.append(record)
        return files

    @asynccontextmanager
    async def _locked(self, owner: Owner, container_id: str) -> AsyncGenerator[tuple[ContainerState, ContainerRecord]]:
        """A running container, under its lock."""
        with self._registry.use(owner, container_id) as state:
            record = await self.require(owner, container_id)
            async with state.lock:
                state.raise_if_closed()
                yield state, record
