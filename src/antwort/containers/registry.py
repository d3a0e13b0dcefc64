"""Which container has which sandbox, who uses it, and whose turn it is. Sandboxes come and go here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from antwort.api.errors import ApiError, not_found
from antwort.containers.sandboxes.port import Sandbox, Sandboxes, SandboxLost, SandboxTrouble
from antwort.engine.ports import ContainerFileRecord, ContainerRecord, ContainerStore, Owner
from antwort.telemetry import Metrics, SandboxSpan, audit, log


class ContainerState:
    """A container that is being used, or that has a sandbox."""

    def __init__(self, owner: Owner, container_id: str) -> None:
        self.owner = owner
        self.id = container_id
        self.users = 0
        self.turn = asyncio.Lock()
        """Whoever changes what is in it waits for this, and gets it in the order of arrival."""
        self.sandbox: Sandbox | None = None
        self.files: dict[str, ContainerFileRecord] = {}
        """The files in that sandbox, by path, as the store has them."""
        self.is_replaced = False
        """The sandbox before this one was lost, and no execution has told so yet."""
        self.is_over = False
        """It was deleted, or has expired."""

    def check(self) -> None:
        """Raise where it is over by now."""
        if self.is_over:
            raise gone(self.id)


class SandboxRegistry:
    """All of them."""

    def __init__(self, store: ContainerStore, sandboxes: Sandboxes, metrics: Metrics, claim_timeout: float) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._metrics = metrics
        self._claim_timeout = claim_timeout
        self._held: dict[tuple[str, str], ContainerState] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self.freed = asyncio.Event()
        """Set as soon as one is not used any more, or is over; then another event is here for the next time."""

    @contextmanager
    def use(self, owner: Owner, container_id: str) -> Generator[ContainerState]:
        """It is in use until this is left, and does not expire meanwhile."""
        held = self._held.setdefault((owner.tenant, container_id), ContainerState(owner, container_id))
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1
            self._drop_unused(held)
            self._tell()

    def in_use(self) -> list[ContainerState]:
        """Those that somebody uses right now."""
        return [held for held in self._held.values() if held.users]

    async def sandbox(self, held: ContainerState, record: ContainerRecord) -> Sandbox:
        """The container's sandbox; a new one where it has none. Only for whoever has its turn."""
        held.check()
        if held.sandbox is not None:
            return held.sandbox
        sandbox = await self._acquired(held, record)
        try:
            if not await self._store.give_sandbox(held.owner, held.id, sandbox.id):
                held.is_over = True
            held.check()
        except BaseException:
            await self._released(sandbox)
            raise
        held.sandbox, held.files = sandbox, {}
        # One that is written down and is not held was lost too, even where that could not be written down.
        held.is_replaced = held.is_replaced or record.lost is not None or record.sandbox is not None
        self._metrics.sandboxes.inc()
        return sandbox

    async def _acquired(self, held: ContainerState, record: ContainerRecord) -> Sandbox:
        tier = record.memory_limit
        work = SandboxSpan(self._metrics, "acquire", held.id, tier)
        try:
            sandbox = await self._sandboxes.acquire(
                tenant=held.owner.tenant, memory_limit=tier, timeout=self._claim_timeout
            )
            work.ended("ok")
        except SandboxTrouble as trouble:
            work.failed(kind_of(trouble))
            raise
        finally:
            seconds = work.close()
        audit("container.acquire", held.id, tier=tier, sandbox=sandbox.id, ms=round(seconds * 1000))
        return sandbox

    @asynccontextmanager
    async def watched(self, held: ContainerState, record: ContainerRecord, sandbox: Sandbox) -> AsyncGenerator[None]:
        """Where the sandbox dies inside of this, that is written down before anybody is told."""
        try:
            yield
        except SandboxLost as lost:
            if held.is_over:
                raise gone(held.id) from lost
            await self.lost(held, sandbox, str(lost), record.memory_limit)
            raise

    async def lost(self, held: ContainerState, sandbox: Sandbox, why: str, tier: str) -> None:
        """A sandbox has died, and everything in it is gone. The container lives on, and says so."""
        if held.sandbox is not sandbox:
            return  # somebody else has noticed, or it was let go
        held.sandbox, held.files, held.is_replaced = None, {}, True
        self._metrics.sandboxes.dec()
        self._metrics.containers.labels("lost", tier).inc()
        audit("container.lost", held.id, tier=tier, sandbox=sandbox.id, tenant=held.owner.tenant)
        try:
            await self._store.lose_sandbox(held.owner, held.id, why)
        finally:
            await self._released(sandbox)

    def let_go(self, owner: Owner, container_id: str) -> asyncio.Future[None] | None:
        """The container is over: so is its sandbox, and whatever runs in it. Who has time waits until it is gone."""
        self._tell()
        held = self._held.pop((owner.tenant, container_id), None)
        if held is None:
            return None
        held.is_over = True
        sandbox, held.sandbox = held.sandbox, None
        if sandbox is None:
            return None
        self._metrics.sandboxes.dec()
        return self._released(sandbox)

    async def aclose(self) -> None:
        """Let go of all of them."""
        for held in list(self._held.values()):
            self.let_go(held.owner, held.id)
        await asyncio.gather(*self._releasing)
        await self._sandboxes.aclose()

    def _released(self, sandbox: Sandbox) -> asyncio.Future[None]:
        """A task of its own, whoever asked and goes: a sandbox that nobody releases runs on for nobody."""
        releasing = asyncio.create_task(self._release(sandbox))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)
        return asyncio.shield(releasing)

    async def _release(self, sandbox: Sandbox) -> None:
        try:
            await self._sandboxes.release(sandbox)
        except SandboxTrouble:
            log.warning("a sandbox could not be released", sandbox=sandbox.id)

    def _tell(self) -> None:
        freed, self.freed = self.freed, asyncio.Event()
        freed.set()

    def _drop_unused(self, held: ContainerState) -> None:
        key = (held.owner.tenant, held.id)
        if not held.users and held.sandbox is None and self._held.get(key) is held:
            del self._held[key]


def gone(container_id: str) -> ApiError:
    """404, as for one that never was."""
    return not_found("Container", container_id)


def kind_of(trouble: SandboxTrouble) -> str:
    """How metrics call it."""
    return "lost" if isinstance(trouble, SandboxLost) else type(trouble).__name__.removeprefix("Sandbox").lower()
