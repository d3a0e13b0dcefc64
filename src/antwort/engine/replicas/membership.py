"""Membership: tells the other replicas that this process lives, and knows which of them do.

Each replica increases a number in the store every second. Another one takes it for dead when that number did not
change for `LEASE` seconds of its own beats, by its own monotonic clock. So clocks that differ do not matter, and after
an outage of the store, in which no beat succeeds, the observation of all replicas begins again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from antwort.config import ConfigError
from antwort.engine.replicas.port import ReplicaRecord, ReplicaStore
from antwort.engine.stores import StoreFault
from antwort.telemetry import Metrics, log

LEASE = 5.0
"""Seconds without a beat after which a replica counts as dead."""
INTERVAL = 1.0
"""Seconds between two beats."""
_MAX_GAP = LEASE / 2
"""Seconds between two own beats after which what was observed before does not count."""
_MAX_REMOVED = 1000


@dataclass(frozen=True)
class OnlyReplica:
    """The `ReplicaDirectory` of a store that only one process has open."""

    own_id: str

    def is_live(self, replica_id: str) -> bool:
        return replica_id == self.own_id

    def url(self, replica_id: str) -> str | None:
        del replica_id
        return None


@dataclass
class _Observed:
    record: ReplicaRecord
    changed_at: float


@dataclass
class Membership:
    """The `ReplicaDirectory` of a store that several processes have open. Call `start`, and `aclose` at the end."""

    store: ReplicaStore
    describe: Callable[[], ReplicaRecord]
    """The record of this process, apart from its beat."""
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic
    lease: float = LEASE
    _on_death: list[Callable[[str], None]] = field(default_factory=list[Callable[[str], None]])
    _observed: dict[str, _Observed] = field(default_factory=dict[str, _Observed])
    _removed: dict[str, bool] = field(default_factory=dict[str, bool])
    """Replicas that are not in the store, and whether this process observed them before."""
    _asked: set[str] = field(default_factory=set[str])
    _last_beat_at: float | None = None
    _renewed_at: float | None = None
    """When the last beat began that was stored."""
    _fault: StoreFault | None = None
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._own_id = self.describe().id

    @property
    def own_id(self) -> str:
        return self._own_id

    @property
    def live(self) -> int:
        """The number of live replicas, this one included."""
        return len(self._observed)

    def is_live(self, replica_id: str) -> bool:
        if replica_id in self._observed or replica_id == self._own_id:
            return True
        if replica_id not in self._removed:
            self._asked.add(replica_id)  # it may have joined after the last beat: the next one decides
            return True
        return False

    def url(self, replica_id: str) -> str | None:
        observed = self._observed.get(replica_id)
        return None if observed is None else observed.record.url

    def on_death(self, notify: Callable[[str], None]) -> None:
        """Call this with the id of each replica that dies or leaves while this process observes it.

        At once for those that have done so since the start: what they have left may be known only to this process.
        """
        self._on_death.append(notify)
        for replica_id, was_observed in self._removed.items():
            if was_observed:
                notify(replica_id)

    def check(self) -> None:
        """Raise `StoreFault` if this process's last beat could not be stored: the others may take it for dead."""
        if self._fault is not None:
            raise StoreFault(f"The membership of this replica cannot be renewed. {self._fault}") from self._fault
        self.check_lease()

    def check_lease(self) -> None:
        """Raise `StoreFault` if no beat was stored for as long as the lease: the others may take over its work."""
        if self._renewed_at is not None and self.clock() - self._renewed_at > self.lease:
            raise StoreFault("The membership of this replica was not renewed in time.") from self._fault

    # ── life of this process ─────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """The first beat, and a task for the others.

        `ConfigError` if a living replica has other sealing keys or another blob storage.
        """
        await self.beat()
        try:
            await self._check_compatible()
        except BaseException:
            await self._leave()
            raise
        log.info("replica_joined", replica=self._own_id, live=self.live)
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Leave: the others take over at once what this process has left unfinished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._leave()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.beat()
            except StoreFault as fault:
                if self._fault is None:
                    log.warning("membership_fault", replica=self._own_id, exc_info=fault)
                self._fault, self._last_beat_at = fault, None
            except Exception:  # noqa: BLE001 - the outermost loop: without beats this process counts as dead
                log.exception("membership_failed", replica=self._own_id)
            else:
                if self._fault is not None:
                    log.info("membership_recovered", replica=self._own_id)
                self._fault = None

    async def _leave(self) -> None:
        try:
            await self.store.remove_replica(self._own_id)
        except StoreFault as fault:
            log.warning("replica_not_removed", replica=self._own_id, exc_info=fault)

    # ── beats ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def beat(self) -> None:
        """One beat: store that this process lives, and observe the others. `StoreFault` if that fails."""
        started, asked = self.clock(), self._asked
        self._asked = set()
        records = {record.id: record for record in await self.store.beat(self.describe())}
        now = self.clock()
        is_first, is_gap = self._last_beat_at is None, now - (self._last_beat_at or now) > _MAX_GAP
        self._last_beat_at, self._renewed_at = now, started
        if records[self._own_id].beat == 1 and self._own_id in self._observed:
            log.warning("replica_was_taken_for_dead", replica=self._own_id)
        for identifier, record in records.items():
            observed = self._observed.get(identifier)
            if observed is None or observed.record.beat != record.beat or is_first or is_gap:
                self._observed[identifier] = _Observed(record, now)
            self._removed.pop(identifier, None)
        for identifier in (self._observed.keys() | asked) - records.keys():
            self._forget(identifier)
        for identifier, observed in list(self._observed.items()):
            if identifier != self._own_id and started - observed.changed_at > self.lease:
                await self._remove(observed.record)
        self.metrics.replicas.set(self.live)

    async def _remove(self, record: ReplicaRecord) -> None:
        """Declare a replica dead, unless it has beaten meanwhile. Of several replicas that do so, one succeeds."""
        if await self.store.remove_replica(record.id, record.beat):
            log.warning("replica_died", replica=record.id, seen_by=self._own_id)
            self._forget(record.id)

    def _forget(self, replica_id: str) -> None:
        """A replica is not in the store any more."""
        was_observed = self._observed.pop(replica_id, None) is not None
        self._removed[replica_id] = was_observed or self._removed.get(replica_id, False)
        while len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        if was_observed:
            log.info("replica_removed", replica=replica_id, seen_by=self._own_id)
            for notify in self._on_death:
                notify(replica_id)

    # ── compatibility ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_compatible(self) -> None:
        """Raise for a replica in conflict that lives. One that is dead is removed after the lease."""
        while (other := self._incompatible()) is not None:
            seen = other.record
            await asyncio.sleep(INTERVAL)
            await self.beat()
            now = self._observed.get(seen.id)
            if now is not None and now.record.beat != seen.beat:
                raise ConfigError(self._conflict(seen))

    def _incompatible(self) -> _Observed | None:
        return next((one for one in self._observed.values() if self._conflict(one.record) is not None), None)

    def _conflict(self, other: ReplicaRecord) -> str | None:
        """Why this process and another one cannot share a store; None if they can."""
        own = self.describe()
        running = f"Another antwort ({other.id}) runs on the database of `storage.url`"
        if own.blobs != other.blobs:
            return (
                f"{running}, and keeps the contents of files elsewhere. Set `storage.blobs` of all replicas to one "
                "place that they share, or `storage.url` to another database."
            )
        if not {*own.sealing_keys} & {*other.sealing_keys}:
            return (
                f"{running} with other sealing keys, so that neither could read the items of the other. Use the same "
                "`compaction.keys_file` for all replicas, or set `storage.url` to another database."
            )
        return None
