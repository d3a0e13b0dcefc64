"""Replica port: what the server processes on one store know of each other, and the state that they share.

`ReplicaStore` is implemented by stores that several processes may open at a time; `antwort.testing.store` has its
conformance tests. What belongs to one response is in `antwort.engine.stores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ReplicaRecord(Struct, frozen=True, kw_only=True):
    """One server process, as the others see it."""

    id: str
    beat: int = 0
    """Increased by the process itself, as long as it lives."""
    url: str | None = None
    """Where the other replicas reach it (`server.replica_url`)."""
    sealing_keys: Sequence[str] = ()
    """The ids of its sealing keys."""
    blobs: str = ""
    """Where it keeps the contents of files: `ReplicaStore.blob_location`."""


class TokenBucket(Struct, frozen=True):
    """The rate limit of a key after a request: whether it was granted, and how many requests are left."""

    is_granted: bool
    tokens: float


class ReplicaDirectory(Protocol):
    """The replicas, as one of them knows them."""

    @property
    def own_id(self) -> str: ...

    def is_live(self, replica_id: str) -> bool:
        """False only if the replica is known to have died, or to have left."""
        ...

    def url(self, replica_id: str) -> str | None:
        """Where a live replica is reached; None if it has no `server.replica_url`, or is not known."""
        ...


class ReplicaStore(Protocol):
    """The replicas of one store, and what they share beside its objects. Times are by the clock of the database."""

    @property
    def blob_location(self) -> str:
        """Identifies where this process keeps the contents of files: equal for replicas that share them."""
        ...

    def now(self) -> float:
        """Seconds since the epoch by the clock of the database, as far as the last beat tells."""
        ...

    async def beat(self, record: ReplicaRecord) -> list[ReplicaRecord]:
        """Store the record of this process with the next beat, the first one as 1; the records of all replicas."""
        ...

    async def remove_replica(self, replica_id: str, beat: int | None = None) -> bool:
        """Remove a replica: its work may be taken over. With `beat`, only if that is still its last one."""
        ...

    async def claim_job(self, name: str, interval: float) -> bool:
        """Whether this process is to run a job now: True for one caller in each interval of seconds."""
        ...

    async def take_request(self, key_id: str, per_minute: int) -> TokenBucket:
        """Take one request out of the token bucket of a key, which is full at first."""
        ...

    async def take_slot(self, key_id: str, slot: str, replica_id: str, most: int | None) -> bool:
        """Store a running response of a key, unless it has `most` of them in live replicas."""
        ...

    async def free_slots(self, slots: Sequence[str]) -> None:
        """Delete running responses, by the ids of their slots."""
        ...

    async def free_slots_of_removed(self) -> int:
        """Delete the running responses of replicas that were removed; their number. To be called periodically."""
        ...
