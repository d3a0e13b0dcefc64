from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from antwort.config import ConfigError
from antwort.engine.replicas import membership as membership_module
from antwort.engine.replicas.membership import LEASE, Membership, OnlyReplica
from antwort.engine.replicas.port import ReplicaRecord
from antwort.engine.stores import StoreFault
from antwort.telemetry import Metrics

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeReplicaStore:
    """The rows of the replicas, in memory; `is_away` refuses every call."""

    blob_location = "disk"

    def __init__(self) -> None:
        self.rows: dict[str, ReplicaRecord] = {}
        self.is_away = False

    async def beat(self, record):
        self._require()
        before = self.rows.get(record.id)
        beat = 1 if before is None else before.beat + 1
        self.rows[record.id] = msgspec.structs.replace(record, beat=beat)
        return list(self.rows.values())

    async def remove_replica(self, replica_id, beat=None):
        self._require()
        row = self.rows.get(replica_id)
        if row is None or beat not in (None, row.beat):
            return False
        del self.rows[replica_id]
        return True

    def _require(self):
        if self.is_away:
            raise StoreFault("The store failed: it is away.")


class Replicas:
    """Memberships on one store, and a clock that the test moves."""

    def __init__(self) -> None:
        self.store: Any = FakeReplicaStore()
        self.now = 0.0
        self.deaths: list[tuple[str, str]] = []

    def new(self, name: str, **fields) -> Membership:
        record = ReplicaRecord(id=name, **{"sealing_keys": ("key",), "blobs": "disk", **fields})
        member = Membership(self.store, lambda: record, Metrics(), clock=lambda: self.now)
        member.on_death(lambda dead: self.deaths.append((name, dead)))
        return member

    async def pass_time(self, seconds: float, *members: Membership) -> None:
        """Let time pass in steps of a second, in which these members beat."""
        for _ in range(int(seconds)):
            self.now += 1
            for member in members:
                await member.beat()


@pytest.fixture
def replicas():
    return Replicas()


async def test_replicas_that_beat_are_live_and_have_a_url(replicas):
    a, b = replicas.new("a"), replicas.new("b", url="http://b")
    await replicas.pass_time(60, a, b)
    assert a.is_live("b")
    assert b.is_live("a")
    assert (a.url("b"), b.url("a"), a.url("c")) == ("http://b", None, None)
    assert a.live == 2
    assert replicas.deaths == []


async def test_a_replica_without_beats_is_dead_after_the_lease_and_its_row_is_removed(replicas):
    a, b, c = (replicas.new(name) for name in "abc")
    await replicas.pass_time(3, a, b, c)
    await replicas.pass_time(LEASE, a, c)
    assert a.is_live("b")
    await replicas.pass_time(2, a, c)
    assert not a.is_live("b")
    assert not c.is_live("b")
    assert [*replicas.store.rows] == ["a", "c"]
    assert sorted(replicas.deaths) == [("a", "b"), ("c", "b")]


async def test_deaths_since_the_start_are_reported_to_a_later_subscriber(replicas):
    a, b = replicas.new("a"), replicas.new("b")
    await replicas.pass_time(2, a, b)
    assert a.is_live("unknown")
    await replicas.pass_time(LEASE + 2, a)
    dead = []
    a.on_death(dead.append)
    assert dead == ["b"]
    await replicas.pass_time(1, b)
    await replicas.pass_time(LEASE + 3, a)
    assert dead == ["b", "b"]


async def test_a_replica_that_was_taken_for_dead_joins_again(replicas):
    a, b = replicas.new("a"), replicas.new("b")
    await replicas.pass_time(2, a, b)
    await replicas.pass_time(LEASE + 2, a)
    assert not a.is_live("b")
    await replicas.pass_time(2, a, b)
    assert a.is_live("b")
    assert b.is_live("a")
    assert replicas.deaths == [("a", "b")]


async def test_an_outage_of_the_store_kills_no_replica_that_returns_within_the_lease(replicas):
    a, b = replicas.new("a"), replicas.new("b")
    await replicas.pass_time(3, a, b)
    replicas.now += 60  # no beat of either succeeds
    await replicas.pass_time(LEASE - 1, a)
    assert a.is_live("b")
    await replicas.pass_time(20, a, b)
    assert replicas.deaths == []


async def test_the_lease_ends_without_a_stored_beat_and_begins_with_the_next(replicas):
    a = replicas.new("a")
    await replicas.pass_time(2, a)
    replicas.now += LEASE
    a.check_lease()
    replicas.now += 0.1
    for check in (a.check_lease, a.check):
        with pytest.raises(StoreFault, match="not renewed in time"):
            check()
    await a.beat()
    a.check()


async def test_a_replica_that_was_stopped_does_not_take_the_others_for_dead(replicas):
    a, b = replicas.new("a"), replicas.new("b")
    await replicas.pass_time(3, a, b)
    await replicas.pass_time(4, b)
    replicas.now += 30  # both are stopped
    await replicas.pass_time(1, a)
    assert a.is_live("b")
    assert replicas.deaths == []


async def test_an_unknown_replica_counts_as_live_until_the_next_beat(replicas):
    a = replicas.new("a")
    await replicas.pass_time(1, a)
    b = replicas.new("b")
    await replicas.pass_time(1, b)
    assert a.is_live("b")
    assert a.is_live("ended before")
    await replicas.pass_time(1, a)
    assert a.is_live("b")
    assert not a.is_live("ended before")
    assert replicas.deaths == []


async def test_a_replica_that_leaves_is_seen_at_the_next_beat(replicas):
    a, b = replicas.new("a"), replicas.new("b")
    await replicas.pass_time(2, a, b)
    await b.aclose()
    await replicas.pass_time(1, a)
    assert not a.is_live("b")
    assert replicas.deaths == [("a", "b")]


async def test_a_fault_of_the_store_is_reported_until_a_beat_succeeds(replicas, monkeypatch):
    monkeypatch.setattr(membership_module, "INTERVAL", 0.001)
    a = replicas.new("a")
    await a.start()
    a.check()
    replicas.store.is_away = True
    async with asyncio.timeout(10):
        while True:
            try:
                a.check()
            except StoreFault as fault:
                assert "membership" in str(fault)  # noqa: PT017 - the state is polled
                break
            await asyncio.sleep(0)
        replicas.store.is_away = False
        while True:
            try:
                a.check()
                break
            except StoreFault:
                await asyncio.sleep(0)
    await a.aclose()
    assert replicas.store.rows == {}


@pytest.mark.parametrize(
    "fields, setting", [({"blobs": "other"}, "storage.blobs"), ({"sealing_keys": ("other",)}, "compaction.keys_file")]
)
async def test_a_living_replica_with_another_configuration_prevents_the_start(replicas, monkeypatch, fields, setting):
    monkeypatch.setattr(membership_module, "INTERVAL", 0.001)
    a, b = replicas.new("a"), replicas.new("b", **fields)
    await a.start()
    with pytest.raises(ConfigError, match=setting):
        await b.start()
    assert [*replicas.store.rows] == ["a"]
    await a.aclose()


async def test_a_dead_replica_with_another_configuration_does_not_prevent_the_start(replicas, monkeypatch):
    monkeypatch.setattr(membership_module, "INTERVAL", 0.001)
    await replicas.new("dead", blobs="other").beat()
    a = replicas.new("a")
    starting = asyncio.create_task(a.start())
    async with asyncio.timeout(10):
        while not starting.done():
            replicas.now += 1
            await asyncio.sleep(0.002)
    await starting
    assert [*replicas.store.rows] == ["a"]
    await a.aclose()


def test_the_only_replica_knows_no_other():
    alone = OnlyReplica("a")
    assert alone.is_live("a")
    assert not alone.is_live("b")
    assert alone.url("a") is None
