"""PostgresReplicas: the replicas of one schema, their periodic jobs, and the limits of API keys across all of them.

Beats have a connection of their own: a replica that is busy, or whose other statements wait for a lock, must not be
taken for dead. Times are by the clock of PostgreSQL, because those of several hosts differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from antwort.engine.replicas.port import ReplicaRecord, TokenBucket
from antwort.storage.postgres.database import PostgresDatabase
from antwort.storage.sql.rows import Rows

_BEAT_TIMEOUT = 3.0
_NOW = "extract(epoch FROM clock_timestamp())"
_SECONDS_PER_MINUTE = 60.0
_MAX_CLOCK_ERROR = 0.5
"""Seconds that a beat may take, so that its time is compared with the clock of this process."""
_MAX_LATE = 60.0
"""Seconds that a statement may have waited for its row, at most: its time is older than that of the statement before
it then. A row with a time after that was written before the clock was set back."""


class PostgresReplicas:
    """A `ReplicaStore`. Opening and closing block on the network."""

    def __init__(self, url: str, database: PostgresDatabase, clock: Callable[[], float]) -> None:
        self.blob_location = ""
        self._clock = clock
        self._clock_offset: float | None = None
        """What the clock of PostgreSQL is ahead of that of this process."""
        self._database = database
        self._heartbeat = PostgresDatabase(url, max_connections=1, timeout=_BEAT_TIMEOUT, is_heartbeat=True)

    def connect(self) -> None:
        """Open the connection of the beats. Blocks."""
        self._heartbeat.connect()

    def now(self) -> float:
        return self._clock() + (self._clock_offset or 0.0)

    async def beat(self, record: ReplicaRecord) -> list[ReplicaRecord]:
        started = time.monotonic()
        records, database_time = await self._heartbeat.write_all_tenants(lambda rows: _beat(rows, record))
        if self._clock_offset is None or time.monotonic() - started < _MAX_CLOCK_ERROR:
            self._clock_offset = database_time - self._clock()
        return records

    async def remove_replica(self, replica_id: str, beat: int | None = None) -> bool:
        return await self._heartbeat.write_all_tenants(lambda rows: _remove(rows, replica_id, beat))

    async def claim_job(self, name: str, interval: float) -> bool:
        return await self._database.write_all_tenants(lambda rows: _claim_job(rows, name, interval))

    async def take_request(self, key_id: str, per_minute: int) -> TokenBucket:
        return await self._database.write_all_tenants(lambda rows: _take_request(rows, key_id, per_minute))

    async def take_slot(self, key_id: str, slot: str, replica_id: str, most: int | None) -> bool:
        return await self._database.write_all_tenants(lambda rows: _take_slot(rows, key_id, slot, replica_id, most))

    async def free_slots(self, slots: Sequence[str]) -> None:
        freed = list(slots)
        await self._database.write_all_tenants(lambda rows: _free_slots(rows, freed))

    async def free_slots_of_removed(self) -> int:
        return await self._database.write_all_tenants(
            lambda rows: (
                rows.execute(
                    f"DELETE FROM running_slots WHERE replica NOT IN ({rows.dialect.live_replicas})"  # noqa: S608 - a constant query
                ).rowcount
            )
        )

    async def aclose(self) -> None:
        """Close the connection of the beats."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the connection of the beats. Blocks."""
        self._heartbeat.close()


def _beat(rows: Rows, record: ReplicaRecord) -> tuple[list[ReplicaRecord], float]:
    """Store a beat; the records of all replicas, and the time of the database."""
    rows.execute(
        "INSERT INTO replicas (id, beat, url, sealing_keys, blobs) VALUES (:id, 1, :url, :sealing_keys, :blobs)"
        " ON CONFLICT (id) DO UPDATE SET beat = replicas.beat + 1, url = excluded.url,"
        " sealing_keys = excluded.sealing_keys, blobs = excluded.blobs",
        id=record.id,
        url=record.url,
        sealing_keys=rows.dialect.as_list(record.sealing_keys),
        blobs=record.blobs,
    )
    columns = f"id, beat, url, sealing_keys, blobs, {_NOW}"
    found = rows.execute(f"SELECT {columns} FROM replicas ORDER BY id").fetchall()  # noqa: S608 - constant columns
    records = [
        ReplicaRecord(id=identifier, beat=beat, url=url, sealing_keys=tuple(keys), blobs=blobs)
        for identifier, beat, url, keys, blobs, _ in found
    ]
    return records, float(found[-1][-1])


def _remove(rows: Rows, replica_id: str, beat: int | None) -> bool:
    """Delete the row of a replica, unless that is just now writing its beat."""
    removed = rows.execute(
        "DELETE FROM replicas WHERE id IN"  # noqa: S608 - a constant lock clause
        " (SELECT id FROM replicas WHERE id = :id AND (CAST(:beat AS bigint) IS NULL OR beat = :beat)"
        f"{rows.dialect.skip_locked})",
        id=replica_id,
        beat=beat,
    )
    return removed.rowcount > 0


def _claim_job(rows: Rows, name: str, interval: float) -> bool:
    """A start in the future, after a clock was set back, does not count.

    One in the near future does: it is that of a claim that this statement has waited for.
    """
    claimed = rows.fetchone(
        f"INSERT INTO jobs (name, started_at) VALUES (:name, {_NOW})"  # noqa: S608 - a constant expression
        " ON CONFLICT (name) DO UPDATE SET started_at = excluded.started_at"
        " WHERE jobs.started_at NOT BETWEEN excluded.started_at - :interval AND excluded.started_at + :max_late"
        " RETURNING name",
        name=name,
        interval=interval,
        max_late=_MAX_LATE,
    )
    return claimed is not None


def _take_request(rows: Rows, key_id: str, per_minute: int) -> TokenBucket:
    """One statement: two replicas that run it at once wait for each other at the row."""
    refilled = "least(:per_minute, bucket.tokens + greatest(0, excluded.updated_at - bucket.updated_at) * :per_second)"
    taken = rows.fetchone(
        "INSERT INTO rate_limits AS bucket (key_id, tokens, updated_at, is_granted)"  # noqa: S608 - constant expressions
        f" VALUES (:key_id, :per_minute - 1, {_NOW}, TRUE)"
        " ON CONFLICT (key_id) DO UPDATE SET updated_at ="
        " CASE WHEN bucket.updated_at > excluded.updated_at + :max_late THEN excluded.updated_at"
        " ELSE greatest(bucket.updated_at, excluded.updated_at) END,"
        f" is_granted = {refilled} >= 1,"
        f" tokens = CASE WHEN {refilled} >= 1 THEN {refilled} - 1 ELSE {refilled} END"
        " RETURNING is_granted, tokens",
        key_id=key_id,
        per_minute=float(per_minute),
        per_second=per_minute / _SECONDS_PER_MINUTE,
        max_late=_MAX_LATE,
    )
    assert taken is not None  # noqa: S101 - an upsert returns its row
    return TokenBucket(*taken)


def _take_slot(rows: Rows, key_id: str, slot: str, replica_id: str, most: int | None) -> bool:
    rows.execute("SELECT pg_advisory_xact_lock(hashtextextended('slots:' || :key_id, 0))", key_id=key_id)
    found = rows.fetchone(
        f"SELECT count(*) FROM running_slots WHERE key_id = :key_id AND replica IN ({rows.dialect.live_replicas})",  # noqa: S608 - a constant query
        key_id=key_id,
    )
    if most is not None and found is not None and found[0] >= most:
        return False
    rows.execute(
        "INSERT INTO running_slots (id, key_id, replica) VALUES (:id, :key_id, :replica) ON CONFLICT (id) DO NOTHING",
        id=slot,
        key_id=key_id,
        replica=replica_id,
    )
    return True


def _free_slots(rows: Rows, slots: Sequence[str]) -> None:
    rows.execute(
        f"DELETE FROM running_slots WHERE id {rows.member_of('slots')}",  # noqa: S608 - a constant condition
        slots=rows.dialect.as_list(slots),
    )
