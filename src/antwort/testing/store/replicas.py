"""Conformance tests for `ReplicaStore`, and for a `Store` that several processes have open at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from antwort.engine.replicas.port import ReplicaRecord, ReplicaStore
from antwort.engine.stores import ResponseTakenOver, Store
from antwort.testing.checks import check, check_equal, check_raises, not_none
from antwort.testing.store.base import OWNER, Conformance
from antwort.testing.store.responses import completed, new_response


def replicas_of(store: Store) -> ReplicaStore:
    """The replicas of a store that several processes may open."""
    return not_none(store.replicas)


async def beat(
    store: Store, url: str | None = None, sealing_keys: Sequence[str] = (), blobs: str = ""
) -> dict[str, ReplicaRecord]:
    """One beat of a store; the records of all replicas by id."""
    own = ReplicaRecord(id=store.replica_id, url=url, sealing_keys=sealing_keys, blobs=blobs)
    return {record.id: record for record in await replicas_of(store).beat(own)}


class ReplicaConformance(Conformance):
    """Tests of a store that several processes have open."""

    @asynccontextmanager
    async def opened_replicas(self, directory: Path) -> AsyncGenerator[tuple[Store, Store]]:
        """Context manager: the store, opened twice; both have joined."""
        async with self.opened_store(directory) as first, self.opened_store(directory) as second:
            await beat(first)
            await beat(second)
            yield first, second

    # ── Beats ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_beats_are_counted_and_seen_by_the_others(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as first, self.opened_store(tmp_path) as second:
            check_equal((await beat(first, "http://first", ("a", "b"), "x"))[first.replica_id].beat, 1)
            seen = await beat(second)
            check_equal(
                seen,
                {
                    first.replica_id: ReplicaRecord(
                        id=first.replica_id, beat=1, url="http://first", sealing_keys=("a", "b"), blobs="x"
                    ),
                    second.replica_id: ReplicaRecord(id=second.replica_id, beat=1),
                },
            )
            check_equal((await beat(first))[first.replica_id], ReplicaRecord(id=first.replica_id, beat=2))
            check_equal(replicas_of(first).blob_location, replicas_of(second).blob_location)

    async def test_a_replica_is_removed_unless_it_has_beaten_meanwhile(self, tmp_path: Path) -> None:
        async with self.opened_replicas(tmp_path) as (first, second):
            await beat(second)
            check(not await replicas_of(first).remove_replica(second.replica_id, 1), "its beat is 2")
            check(await replicas_of(first).remove_replica(second.replica_id, 2), "its beat is 2")
            check(not await replicas_of(first).remove_replica(second.replica_id, 2), "it was removed")
            check_equal([*await beat(first)], [first.replica_id])
            check_equal((await beat(second))[second.replica_id].beat, 1)
            check(await replicas_of(second).remove_replica(second.replica_id), "it leaves")

    # ── Responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_only_responses_of_removed_replicas_are_claimed(self, tmp_path: Path) -> None:
        async with self.opened_replicas(tmp_path) as (first, second):
            stored = new_response("resp_1", background=True)
            await first.begin_response(OWNER, stored)
            check_equal(await second.claim_responses(10), [])
            await replicas_of(second).remove_replica(first.replica_id)
            check_equal(await second.claim_responses(10), [(OWNER, stored, False)])
            check_equal(await first.claim_responses(10), [])
            await check_raises(ResponseTakenOver, lambda: first.append_events(OWNER, "resp_1", [(0, b"late")]))
            await check_raises(ResponseTakenOver, lambda: first.finish_response(OWNER, completed(stored)))
            await second.finish_response(OWNER, completed(stored))
            await check_raises(ResponseTakenOver, lambda: first.begin_response(OWNER, stored))
            check_equal(await second.read_events(OWNER, "resp_1", -1), [])

    async def test_concurrent_claims_get_different_responses(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as gone:
            for number in range(40):
                await gone.begin_response(OWNER, new_response(f"resp_{number}"))
        async with self.opened_replicas(tmp_path) as stores:
            claims = await asyncio.gather(*(store.claim_responses(7) for _ in range(10) for store in stores))
        claimed = [found.stored.response.id for claim in claims for found in claim]
        check_equal((len(claimed), len(set(claimed))), (40, 40))
        check(all(len(claim) <= 7 for claim in claims), "no claim exceeds its limit")

    # ── Jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_job_is_granted_once_per_interval(self, tmp_path: Path) -> None:
        async with self.opened_replicas(tmp_path) as stores:
            granted = await asyncio.gather(
                *(replicas_of(store).claim_job("sweep", 3600) for _ in range(10) for store in stores)
            )
            check_equal(granted.count(True), 1)
            check(await replicas_of(stores[0]).claim_job("other", 3600), "each job has its own interval")
            check(await replicas_of(stores[0]).claim_job("sweep", 0), "the interval is over")

    # ── Limits of keys ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_token_bucket_is_one_for_all_replicas(self, tmp_path: Path) -> None:
        async with self.opened_replicas(tmp_path) as stores:
            taken = await asyncio.gather(
                *(replicas_of(store).take_request("key", 5) for _ in range(10) for store in stores)
            )
            check_equal(sum(bucket.is_granted for bucket in taken), 5)
            check(all(0 <= bucket.tokens < 5 for bucket in taken), "no bucket is negative")
            refilled = await replicas_of(stores[0]).take_request("key", 1_000_000_000)
            check(refilled.is_granted, "tokens return with time")
            check((await replicas_of(stores[1]).take_request("other", 5)).is_granted, "each key has its own bucket")

    async def test_running_slots_are_limited_across_replicas_and_freed_with_their_replica(self, tmp_path: Path) -> None:
        async with self.opened_replicas(tmp_path) as stores:
            first, second = stores
            taken = await asyncio.gather(
                *(
                    replicas_of(store).take_slot("key", f"{store.replica_id}-{number}", store.replica_id, 3)
                    for number in range(5)
                    for store in stores
                )
            )
            check_equal(taken.count(True), 3)
            check(await replicas_of(first).take_slot("other", "x", first.replica_id, 3), "each key has its own limit")
            check(await replicas_of(second).take_slot("key", "y", second.replica_id, None), "there is no limit")
            await replicas_of(second).free_slots([f"{first.replica_id}-{number}" for number in range(5)])
            await replicas_of(second).remove_replica(second.replica_id)
            for number in range(3):
                check(await replicas_of(first).take_slot("key", f"z{number}", first.replica_id, 3), "all are free")
            check(not await replicas_of(first).take_slot("key", "z3", first.replica_id, 3), "three are taken")
            check(await replicas_of(first).free_slots_of_removed() >= 1, "those of the second replica")
            check_equal(await replicas_of(first).free_slots_of_removed(), 0)
