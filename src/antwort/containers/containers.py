"""What a container is: made, used, filled, emptied, expired, deleted, for whoever owns it.

Every operation takes the owner, answers 404 for what is not theirs, and puts off expiry.
What changes a container takes its turn, in the order of arrival: an execution finds the
files that were put there before it, and two of them never run at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, invalid
from antwort.api.ids import new_id
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers.files import ContainerAndFileStore, ContainerFiles, FileStream, absent, unknown_file
from antwort.containers.paths import relative_path
from antwort.containers.quotas import Disk, over_quota
from antwort.containers.registry import ContainerState, SandboxRegistry, gone, kind_of
from antwort.containers.sandboxes.port import (
    Outcome,
    Output,
    Sandbox,
    Sandboxes,
    SandboxLost,
    SandboxTrouble,
)
from antwort.engine.ports import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    FileRecord,
    OverQuota,
    Owner,
    Page,
    PageQuery,
)
from antwort.telemetry import Metrics, SandboxSpan, audit, log

_GIB = 1024**3
_DAY = 86_400.0
_SLOWEST_BEAT = 5.0
_RESTARTED = "The server was restarted."


AUTO = "antwort:auto"
"""How a container is called that a tool makes for itself. Whoever makes one with every request never runs out of room:
the one that was not used for longest then expires early. No other does."""


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """What somebody wants a new container to be. What is None is as the configuration has it."""

    name: str
    memory_limit: str | None = None
    minutes: int | None = None
    """Of idleness, until it expires."""
    file_ids: Sequence[str] = ()
    """Uploaded files to copy into it."""


class Executed(Struct, frozen=True, kw_only=True):
    """What running some code came to. Always the last thing that comes of it."""

    outcome: Outcome
    files: list[ContainerFileRecord]
    """Those that are new, or were written again."""
    replaced: bool
    """The sandbox had been lost before, and this ran in a new and empty one."""


class Containers:
    """The containers of everybody."""

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
        self._settings = settings
        self._timeout = interpreter.execution_timeout
        self._claim_timeout = interpreter.claim_timeout
        self._max_output = interpreter.max_output_size
        self._metrics = metrics
        self._clock = clock
        self._most = ContainerUse(settings.max_containers, settings.max_memory, settings.max_disk)
        self._holdings = SandboxRegistry(store, sandboxes, metrics, interpreter.claim_timeout)
        self._waiting: set[str] = set()
        """Those that cannot be made before another makes room."""
        self._disk = Disk(store, self._most, metrics, clock)
        self._contents = ContainerFiles(store, self._holdings, self._disk, metrics, clock)
        self.beat = min(_SLOWEST_BEAT, settings.expires_after * 60 / 4)
        """Seconds between two calls of `sweep`: those in use must not seem idle."""

    # ── the life of a container ──────────────────────────────────────────────────────────────────────────────────────

    async def create(self, owner: Owner, wish: ContainerSpec) -> ContainerRecord:
        """A new one. It gets a sandbox when it needs one: now, if files are to be copied into it."""
        record = self._record(wish)
        files = await self._uploaded(owner, wish.file_ids, "file_ids")
        await self._disk.check(owner, sum(file.bytes for file in files))
        with self.using(owner, record.id):  # from the start, or another newcomer could let it expire at once
            record = await self._write(owner, record)
        self._metrics.containers.labels("created", record.memory_limit).inc()
        audit("container.create", record.id, tier=record.memory_limit, files=len(files))
        if files:
            try:
                await self._bring(owner, record.id, files)
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self._delete(owner, record)))
                raise
        return record

    async def _write(self, owner: Owner, record: ContainerRecord) -> ContainerRecord:
        """Write it down. One that a tool makes for itself takes the place of those, where there is none left.

        Where all of them are in use it waits for one that is not, as long as for a sandbox.
        """
        deadline = asyncio.get_running_loop().time() + self._claim_timeout
        while True:
            freed = self._holdings.freed  # before anything is asked, so that nothing is missed
            fresh = msgspec.structs.replace(record, last_active_at=self._clock())
            try:
                await self._store.create_container(owner, fresh, self._most, fresh.last_active_at)
            except OverQuota as error:
                fits = record.name == AUTO and record.memory <= self._most.memory
                if not (fits and await self._make_room(owner, record.id, freed, deadline)):
                    raise over_quota(error, self._most) from error
            else:
                return fresh

    async def _make_room(self, owner: Owner, newcomer: str, freed: asyncio.Event, deadline: float) -> bool:
        """Whether it is worth another try."""
        self._waiting.add(newcomer)
        try:
            idlest = await self._store.expire_idlest(owner, AUTO, self._clock(), self._used(owner))
            if idlest is not None:
                self._is_over(owner, idlest)
            elif not freed.is_set() and self._waiting.issuperset(self._used(owner)):
                return False  # there is nobody who could leave
            else:
                async with asyncio.timeout_at(deadline):
                    await freed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(newcomer)
        return True

    def _used(self, owner: Owner) -> list[str]:
        return [held.id for held in self._holdings.in_use() if held.owner.tenant == owner.tenant]

    async def get(self, owner: Owner, container_id: str) -> ContainerRecord:
        """One of the owner's, also an expired one; 404 otherwise."""
        record = await self._store.touch_container(owner, container_id, self._clock())
        if record is None:
            raise gone(container_id)
        return record

    async def require(self, owner: Owner, container_id: str) -> ContainerRecord:
        """One that can be used; 400 for an expired one."""
        record = await self.get(owner, container_id)
        if record.status == "expired":
            raise ApiError(400, "Container is expired.")
        return record

    async def newest_live(self, owner: Owner, ids: Sequence[str]) -> ContainerRecord | None:
        """Of these, oldest first, the last one that can be used."""
        found = await self._store.find_containers(owner, ids, self._clock()) if ids else {}
        living = (found[one] for one in reversed(ids) if one in found and found[one].status == "running")
        return next(living, None)

    def using(self, owner: Owner, container_id: str) -> AbstractContextManager[object]:
        """It is in use until this is left, also while nothing runs in it: it neither expires nor makes room."""
        return self._holdings.use(owner, container_id)

    async def page(self, owner: Owner, query: PageQuery, name: str | None = None) -> Page:
        """A page of the owner's. Being listed is no use."""
        return await self._store.list_containers(owner, query, self._clock(), name)

    async def delete(self, owner: Owner, container_id: str) -> None:
        """Forget it, with all that is in it; what runs in it is stopped."""
        record = await self._store.get_container(owner, container_id, self._clock())
        if record is None or not await self._delete(owner, record):
            raise gone(container_id)

    async def _delete(self, owner: Owner, record: ContainerRecord) -> bool:
        if not await self._store.delete_container(owner, record.id):
            return False
        self._metrics.containers.labels("deleted", record.memory_limit).inc()
        audit("container.delete", record.id, tier=record.memory_limit)
        if releasing := self._holdings.let_go(owner, record.id):
            await releasing
        return True

    async def sweep(self) -> None:
        """Let go of what has expired, and forget what did so long ago. What is in use is not idle."""
        now = self._clock()
        for held in self._holdings.in_use():
            await self._store.touch_container(held.owner, held.id, now)
        for owner, record in await self._store.expire_containers(now):
            self._is_over(owner, record)
        if forgotten := await self._store.forget_containers(now - self._settings.forget_after * _DAY):
            log.info("expired containers are forgotten", count=forgotten)

    def _is_over(self, owner: Owner, record: ContainerRecord) -> None:
        self._metrics.containers.labels("expired", record.memory_limit).inc()
        audit("container.expire", record.id, tier=record.memory_limit, tenant=owner.tenant)
        self._holdings.let_go(owner, record.id)

    async def recover(self) -> None:
        """At a start: the sandboxes of the process before are gone. Whose they were is told when they are used next."""
        for owner, record in await self._store.lose_sandboxes(_RESTARTED):
            self._metrics.containers.labels("lost", record.memory_limit).inc()
            audit("container.lost", record.id, tier=record.memory_limit, tenant=owner.tenant)

    async def aclose(self) -> None:
        """Release every sandbox; the next start writes down whose they were."""
        await self._holdings.aclose()

    def _record(self, wish: ContainerSpec) -> ContainerRecord:
        settings, now = self._settings, self._clock()
        tier = wish.memory_limit if wish.memory_limit is not None else settings.tiers[0]
        if tier not in settings.tiers:
            supported = ", ".join(f"'{one}'" for one in settings.tiers)
            raise invalid(f"Invalid value: '{tier}'. Supported values are: {supported}.", param="memory_limit")
        minutes = wish.minutes if wish.minutes is not None else settings.expires_after
        if minutes > settings.max_expires_after and wish.minutes is not None:
            raise invalid(
                "Invalid 'expires_after.minutes': integer above maximum value. "
                f"Expected a value <= {settings.max_expires_after}, but got {minutes} instead.",
                param="expires_after.minutes",
                code="integer_above_max_value",
            )
        return ContainerRecord(
            id=new_id("cntr_"),
            name=wish.name,
            created_at=int(now),
            last_active_at=now,
            expires_after=minutes * 60.0,
            memory_limit=tier,
            memory=int(tier.removesuffix("g")) * _GIB,
        )

    # ── running code ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def execute(
        self,
        owner: Owner,
        container_id: str,
        code: str,
        *,
        requirements: Sequence[str] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - for the code inside, not for this call
    ) -> AsyncGenerator[Output | Executed, None]:
        """Run code, when its turn has come: what it prints as it prints it, then what it came to.

        Never longer than the configuration allows. Whoever stops before the end closes it,
        which interrupts the code too. `SandboxLost` where the sandbox died over it.
        """
        seconds = min(timeout or self._timeout, self._timeout)
        async with self._turn(owner, container_id) as (held, record):
            await self._disk.check(owner)
            work = SandboxSpan(self._metrics, "execute", container_id, record.memory_limit)
            status, printed = "abandoned", 0
            try:
                async with aclosing(self._run(held, record, code, requirements, seconds)) as steps:
                    async for step in steps:
                        if isinstance(step, Output):
                            shown = step.text[: max(0, self._max_output - printed)]
                            printed += len(step.text)
                            if shown:
                                yield msgspec.structs.replace(step, text=shown)
                        else:
                            status = step.outcome.status
                            work.ended(status, printed=printed, files=len(step.files))
                            await self._store.touch_container(owner, container_id, self._clock())
                            yield step
            except SandboxTrouble as trouble:
                status = kind_of(trouble)
                work.failed(status)
                raise
            finally:
                ms = round(work.close() * 1000)
                audit(
                    "container.execute", container_id, tier=record.memory_limit, status=status, ms=ms, printed=printed
                )

    async def _run(
        self, held: ContainerState, record: ContainerRecord, code: str, requirements: Sequence[str], seconds: float
    ) -> AsyncGenerator[Output | Executed, None]:
        for attempt in (1, 2):
            sandbox = await self._holdings.sandbox(held, record)
            try:
                run = sandbox.run(code, requirements=requirements, timeout=seconds)
                async with self._holdings.watched(held, record, sandbox), aclosing(run) as steps:
                    async for step in steps:
                        if isinstance(step, Output):
                            yield step
                        else:
                            yield await self._executed(held, record, sandbox, step)
                            return
            except SandboxLost as lost:
                if lost.begun or attempt > 1:
                    raise
                # It had died while nobody used it: the code has not run, and runs now in a new one.

    async def _executed(
        self, held: ContainerState, record: ContainerRecord, sandbox: Sandbox, outcome: Outcome
    ) -> Executed:
        held.check()
        replaced, held.is_replaced = held.is_replaced, False
        files: list[ContainerFileRecord] = []
        if not outcome.alive:
            why = f"The sandbox has ended ({outcome.reason or outcome.status})."
            await self._holdings.lost(held, sandbox, why, record.memory_limit)
        else:
            try:
                async with self._holdings.watched(held, record, sandbox):
                    files = await self._contents.look(held, sandbox)
            except SandboxTrouble:  # what the code came to is known, and counts; the next look finds the rest
                log.warning("what code has written could not be listed", container_id=held.id)
        return Executed(outcome=outcome, files=files, replaced=replaced)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_file(
        self, owner: Owner, container_id: str, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        """Put a file there, in the place of what was there before. Nothing is left of one that breaks off."""
        place = relative_path(path, param="file")
        async with self._turn(owner, container_id) as (held, record):
            return await self._contents.put(held, record, place, content)

    async def add_file_id(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """Copy an uploaded file there. One that was copied before is copied again, to the same place."""
        await self.require(owner, container_id)
        files = await self._uploaded(owner, [file_id], "file_id")
        return (await self._bring(owner, container_id, files, again=True))[0]

    async def bring(self, owner: Owner, container_id: str, file_ids: Sequence[str]) -> list[ContainerFileRecord]:
        """See to it that these uploaded files are there. Those that were copied before are left as they are now."""
        files = await self._uploaded(owner, file_ids, "file_ids")
        return await self._bring(owner, container_id, files)

    async def list_files(self, owner: Owner, container_id: str, query: PageQuery) -> Page:
        """A page of the files; while code runs, as they were before it. Of an expired container what there was.

        The first page is as of now, and those behind it are of the same look: nothing moves from under a cursor.
        """
        record = await self.get(owner, container_id)
        if record.sandbox is not None and query.after is None and query.before is None:
            await self._contents.look_if_idle(owner, record)
        page = await self._store.list_container_files(owner, container_id, query)
        if page is None:
            raise gone(container_id)
        return page

    async def get_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        """What is known of a file."""
        await self.get(owner, container_id)
        return await self._file(owner, container_id, file_id)

    async def read_file(self, owner: Owner, container_id: str, file_id: str) -> FileStream:
        """Its content, as it is now, to be closed by whoever asked. What can be wrong is found out before it begins."""
        record = await self.require(owner, container_id)
        file = await self._file(owner, container_id, file_id)
        return await FileStream.begun(self._contents.read(owner, record, file))

    async def delete_file(self, owner: Owner, container_id: str, file_id: str) -> None:
        """Remove it."""
        async with self._turn(owner, container_id) as (held, record):
            file = await self._file(owner, container_id, file_id)
            await self._contents.remove(held, record, file)
            audit("container.file.delete", file.id, container_id=container_id)

    async def unpack(self, owner: Owner, container_id: str, tar: AsyncIterator[bytes]) -> list[ContainerFileRecord]:
        """Put the members of a tar where they belong; what is new by that. If one is refused those before it stay."""
        async with self._turn(owner, container_id) as (held, record):
            files = await self._contents.unpack(held, record, tar)
        audit("container.unpack", container_id, files=len(files), bytes=sum(file.bytes for file in files))
        return files

    async def pack(self, owner: Owner, container_id: str) -> FileStream:
        """All files as one tar, to be closed by whoever asked."""
        async with self._turn(owner, container_id) as (held, record):
            await self._holdings.sandbox(held, record)
        audit("container.pack", container_id)
        return await FileStream.begun(self._contents.read(owner, record, None))

    async def _bring(
        self, owner: Owner, container_id: str, files: Sequence[FileRecord], *, again: bool = False
    ) -> list[ContainerFileRecord]:
        async with self._turn(owner, container_id) as (held, record):
            return [await self._contents.copy(held, record, file, again=again) for file in files]

    async def _file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord:
        file = await self._store.get_container_file(owner, container_id, file_id)
        if file is None:
            raise absent(container_id, file_id)
        return file

    async def _uploaded(self, owner: Owner, ids: Sequence[str], param: str) -> list[FileRecord]:
        found = [await self._store.get_file(owner, identifier) for identifier in dict.fromkeys(ids)]
        for identifier, record in zip(dict.fromkeys(ids), found, strict=True):
            if record is None:
                raise unknown_file(identifier, param)
        return [record for record in found if record is not None]

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _turn(self, owner: Owner, container_id: str) -> AsyncGenerator[tuple[ContainerState, ContainerRecord]]:
        """A container that can be used, by nobody else meanwhile."""
        with self._holdings.use(owner, container_id) as held:
            record = await self.require(owner, container_id)
            async with held.turn:
                held.check()
                yield held, record
