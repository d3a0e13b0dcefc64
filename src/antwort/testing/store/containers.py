"""Conformance tests for `ContainerStore`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from antwort.engine.stores import (
    SEVERAL_REPLICAS,
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    OverQuota,
    Owner,
    PageQuery,
    ReplicaUse,
    SandboxRef,
    Store,
)
from antwort.testing.checks import check, check_equal, not_none
from antwort.testing.store.base import OTHER_KEY, OTHER_TENANT, OWNER, Conformance
from antwort.testing.store.paging import LISTED_IDS, check_pages, check_unknown_cursor

NOW = 1_000.5
NO_QUOTA = ContainerUse(100, 2**50, 2**50)
GIB = 2**30
USE = ReplicaUse("rep_1", NOW - 5)
SANDBOX = SandboxRef("rep_1", "s")
MODIFIED = 1_700_000_000_123_456_789


def container_record(identifier: str, **fields: Any) -> ContainerRecord:
    """A container that was created now and expires after a minute."""
    plain = ContainerRecord(
        id=identifier,
        name="grüße",
        created_at=1_000,
        last_active_at=NOW,
        expires_after=60.0,
        memory_limit="1g",
        memory=GIB,
    )
    return msgspec.structs.replace(plain, **fields)


def file_record(identifier: str, path: str, **fields: Any) -> ContainerFileRecord:
    """A file in the container `cntr_1`."""
    plain = ContainerFileRecord(
        id=identifier, container_id="cntr_1", path=path, bytes=3, created_at=1, source="user", modified=MODIFIED
    )
    return msgspec.structs.replace(plain, **fields)


async def create_container(store: Store, identifier: str, owner: Owner = OWNER, **fields: Any) -> None:
    """Create a container without a quota."""
    await store.create_container(owner, container_record(identifier, **fields), NO_QUOTA, NOW)


async def container_ids(store: Store) -> list[str]:
    """The ids of the containers, newest first."""
    return [record.id for record in (await store.list_containers(OWNER, PageQuery(), NOW)).data]


async def file_ids(store: Store, container_id: str = "cntr_1") -> list[str]:
    """The ids of the files of a container, oldest first."""
    page = await store.list_container_files(OWNER, container_id, PageQuery(order="asc"))
    return [file.id for file in not_none(page).data]


class ContainerConformance(Conformance):
    """Tests of containers, expiry, quotas and file records."""

    async def test_a_created_container_can_be_read_after_reopening(self, tmp_path: Path) -> None:
        odd = container_record(
            "cntr_2", name="", memory_limit="64g", memory=64 * GIB, expires_after=1.25, lost="why", sandbox="s"
        )
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await store.create_container(OWNER, odd, NO_QUOTA, NOW)
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1"))
            check_equal(await store.get_container(OWNER, "cntr_2", NOW), odd)
            check_equal(await store.get_container(OWNER, "unknown", NOW), None)
            found = await store.find_containers(OWNER, ["cntr_2", "unknown", "cntr_1", "cntr_2"], NOW)
            check_equal(found, {"cntr_1": container_record("cntr_1"), "cntr_2": odd})
            check_equal(await store.find_containers(OWNER, [], NOW), {})

    async def test_deleting_a_container_deletes_its_file_records(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
        check(await store.delete_container(OWNER, "cntr_1"), "the container existed")
        check(not await store.delete_container(OWNER, "cntr_1"), "the container was already deleted")
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), None)
        check_equal(await store.touch_container(OWNER, "cntr_1", NOW, USE), None)
        check_equal(await store.list_container_files(OWNER, "cntr_1", PageQuery()), None)
        check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), None)
        check(not await store.set_sandbox(OWNER, "cntr_1", SANDBOX), "the container is deleted")
        check(
            not await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_2", "b")]),
            "the container is deleted",
        )
        check_equal(await store.container_use(OWNER, NOW), ContainerUse(0, 0, 0))

    async def test_containers_are_paged(self, store: Store) -> None:
        for name in LISTED_IDS:
            await create_container(store, name)
        await create_container(store, "other", OTHER_TENANT)
        await check_pages(lambda query: store.list_containers(OWNER, query, NOW), lambda record: record.id)
        await check_unknown_cursor(lambda query: store.list_containers(OWNER, query, NOW), PageQuery(after="other"))

    async def test_containers_are_listed_by_name(self, store: Store) -> None:
        for identifier, name in (("cntr_1", "a"), ("cntr_2", "b"), ("cntr_3", "a")):
            await create_container(store, identifier, name=name)
        page = await store.list_containers(OWNER, PageQuery(limit=1), NOW, "a")
        check_equal(([record.id for record in page.data], page.has_more), (["cntr_3"], True))
        check_equal((await store.list_containers(OWNER, PageQuery(), NOW, "%")).data, [])

    # ── Expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_an_idle_container_expires(self, store: Store) -> None:
        await create_container(store, "cntr_1", sandbox="s")
        expired = container_record("cntr_1", status="expired")
        check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW + 59.9)).status, "running")
        for swept in (False, True):
            check_equal(await store.get_container(OWNER, "cntr_1", NOW + 60), expired)
            check_equal(await store.find_containers(OWNER, ["cntr_1"], NOW + 60), {"cntr_1": expired})
            check_equal((await store.list_containers(OWNER, PageQuery(), NOW + 60)).data, [expired])
            check_equal(await store.touch_container(OWNER, "cntr_1", NOW + 60, USE), expired)
            check_equal(await store.container_use(OWNER, NOW + 60), ContainerUse(0, 0, 0))
            check_equal(await store.expire_containers(NOW + 60), [] if swept else [(OWNER, expired)])
        check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).status, "expired")

    async def test_expire_idlest_expires_the_least_recently_used_container(self, store: Store) -> None:
        for number, name in enumerate(("auto", "auto", "auto", "named")):
            await create_container(store, f"cntr_{number}", name=name, last_active_at=NOW + number)
        await store.touch_container(OWNER, "cntr_0", NOW + 10, USE)
        first = await store.expire_least_recently_used(OWNER, "auto", NOW + 11, USE)
        check_equal(first, container_record("cntr_1", name="auto", last_active_at=NOW + 1, status="expired"))
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), first)
        check_equal(
            not_none(await store.expire_least_recently_used(OWNER, "auto", NOW + 11, USE, ["cntr_2"])).id, "cntr_0"
        )
        check_equal(await store.expire_least_recently_used(OWNER, "auto", NOW + 11, USE, ["cntr_2"]), None)
        check_equal(await store.expire_least_recently_used(OWNER, "auto", NOW - 1, USE), None)  # it was used later
        check_equal(await store.expire_least_recently_used(OTHER_TENANT, "auto", NOW + 11, USE), None)
        check_equal(await store.expire_containers(NOW + 11), [])
        check_equal((await store.container_use(OWNER, NOW + 11)).containers, 2)
        check_equal(
            await store.expire_least_recently_used(OWNER, "named", NOW + 100, USE), None
        )  # it is already expired

    async def test_a_use_postpones_expiry(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        touched = container_record("cntr_1", last_active_at=NOW + 59, used_by="rep_1")
        check_equal(await store.touch_container(OWNER, "cntr_1", NOW + 59, USE), touched)
        check_equal(await store.touch_container(OWNER, "cntr_1", NOW, USE), touched)  # the clock jumped back
        check_equal(await store.expire_containers(NOW + 118.9), [])
        check_equal([one.id for _, one in await store.expire_containers(NOW + 119)], ["cntr_1"])

    async def test_an_expired_container_is_immutable_and_keeps_its_file_records(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
        await store.expire_containers(NOW + 60)
        check(not await store.set_sandbox(OWNER, "cntr_1", SANDBOX), "the container is expired")
        check(not await store.change_container_files(OWNER, "cntr_1", put=[], dropped=["cfile_1"]), "it is expired")
        await store.mark_sandbox_lost(OWNER, "cntr_1", SANDBOX, "why")
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", status="expired"))
        check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), file_record("cfile_1", "a"))
        check(await store.delete_container(OWNER, "cntr_1"), "an expired container can be deleted")

    async def test_old_expired_containers_are_deleted(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await create_container(store, "cntr_2", OTHER_TENANT)
        await create_container(store, "cntr_3", last_active_at=NOW + 10)
        await create_container(store, "cntr_4", last_active_at=NOW + 100)
        await store.expire_containers(NOW + 70)
        check_equal(await store.forget_containers(NOW + 60), 0)
        check_equal(await store.forget_containers(NOW + 61), 2)
        check_equal(await container_ids(store), ["cntr_4", "cntr_3"])
        check_equal(await store.forget_containers(2.0**40), 1)
        check_equal(await container_ids(store), ["cntr_4"])

    # ── Quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_container_use_counts_running_containers(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await store.set_sandbox(OWNER, "cntr_1", SANDBOX)
        await create_container(store, "cntr_2", memory=4 * GIB, expires_after=600)
        await create_container(store, "other_tenant", OTHER_TENANT)
        await store.change_container_files(
            OWNER, "cntr_1", put=[file_record("cfile_1", "a"), file_record("cfile_2", "b", bytes=9)]
        )
        check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 12))
        changed = file_record("cfile_3", "a", bytes=10)
        await store.change_container_files(OWNER, "cntr_1", put=[changed], dropped=["cfile_2"])
        check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 10))
        check_equal(await store.container_use(OWNER, NOW + 60), ContainerUse(1, 4 * GIB, 0))
        await store.mark_sandbox_lost(OWNER, "cntr_1", SANDBOX, "why")
        check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 0))

    async def test_uploads_in_progress_count_as_disk_use(self, store: Store) -> None:
        for name, owner in (("cntr_1", OWNER), ("cntr_2", OWNER), ("other", OTHER_TENANT)):
            await create_container(store, name, owner)
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a", bytes=4)])
        check(await store.reserve_disk(OWNER, "cntr_1", 5, 10, NOW), "9 of 10 bytes are used")
        check_equal((await store.container_use(OWNER, NOW)).disk, 9)
        check(await store.reserve_disk(OWNER, "cntr_1", 6, 10, NOW), "the reservation is replaced")
        check(not await store.reserve_disk(OWNER, "cntr_1", 7, 10, NOW), "11 bytes exceed the quota")
        check(not await store.reserve_disk(OWNER, "cntr_2", 1, 10, NOW), "all bytes are used")
        check(await store.reserve_disk(OTHER_TENANT, "other", 10, 10, NOW), "another tenant has a quota of its own")
        check_equal((await store.container_use(OWNER, NOW)).disk, 10)
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_2", "b", bytes=6)])
        check_equal((await store.container_use(OWNER, NOW)).disk, 10)
        await store.change_container_files(OWNER, "cntr_1", put=[], dropped=["cfile_2"])
        check(await store.reserve_disk(OWNER, "cntr_2", 6, 10, NOW), "4 bytes are used")
        check(await store.reserve_disk(OWNER, "cntr_2", 0, 0, NOW), "a reservation can always end")
        check_equal((await store.container_use(OWNER, NOW)).disk, 4)

    async def test_concurrent_uploads_do_not_exceed_the_quota(self, store: Store) -> None:
        names = [f"cntr_{n}" for n in range(10)]
        for name in names:
            await create_container(store, name)
        reserved = await asyncio.gather(*(store.reserve_disk(OWNER, name, 3, 10, NOW) for name in names))
        check_equal(sum(reserved), 3)

    async def test_a_container_over_quota_is_rejected(self, store: Store) -> None:
        quota = ContainerUse(3, 6 * GIB, 0)

        async def exceeded_quota(now: float = NOW, **fields: Any) -> str | None:
            try:
                await store.create_container(OWNER, container_record(f"cntr_{len(created)}", **fields), quota, now)
            except OverQuota as error:
                return error.what
            created.append(fields)
            return None

        created: list[object] = []
        check_equal(await exceeded_quota(), None)
        check_equal(await exceeded_quota(memory=6 * GIB), "memory")
        check_equal(await exceeded_quota(memory=5 * GIB), None)
        check_equal(await exceeded_quota(), "memory")
        await store.create_container(OTHER_TENANT, container_record("cntr_0"), quota, NOW)
        check_equal(await exceeded_quota(now=NOW + 60), None)  # the earlier ones have expired
        check_equal((await store.container_use(OWNER, NOW)).containers, 3)
        check_equal(await exceeded_quota(memory=0), "containers")

    async def test_concurrent_creation_does_not_exceed_the_quota(self, store: Store) -> None:
        quota = ContainerUse(5, 2**50, 0)
        attempts = (store.create_container(OWNER, container_record(f"cntr_{n}"), quota, NOW) for n in range(20))
        results = await asyncio.gather(*attempts, return_exceptions=True)
        check_equal([type(error) for error in results if error is not None], [OverQuota] * 15)
        check_equal((await store.container_use(OWNER, NOW)).containers, 5)

    # ── Sandboxes ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_new_or_lost_sandbox_has_no_files(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        first, second = container_record("cntr_1", sandbox="s1", replica="rep_1"), SandboxRef("rep_1", "s2")
        check_equal(await store.set_sandbox(OWNER, "cntr_1", SandboxRef("rep_1", "s1")), first)
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), first)
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
        check(await store.mark_sandbox_lost(OWNER, "cntr_1", SandboxRef("rep_1", "s1"), "it died"), "it had it")
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", lost="it died"))
        check_equal(await file_ids(store), [])
        await store.set_sandbox(OWNER, "cntr_1", second)
        found = await store.get_container(OWNER, "cntr_1", NOW)
        check_equal(found, container_record("cntr_1", sandbox="s2", replica="rep_1", lost="it died"))
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
        await store.set_sandbox(OWNER, "cntr_1", SandboxRef("rep_1", "s3"))
        check_equal(await file_ids(store), [])

    async def test_the_first_of_two_replicas_keeps_its_sandbox(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        refs = [SandboxRef(f"rep_{n}", f"s{n}") for n in range(8)]
        records = await asyncio.gather(*(store.set_sandbox(OWNER, "cntr_1", ref) for ref in refs))
        (winner,) = {not_none(record).replica for record in records}
        kept = SandboxRef(not_none(winner), f"s{not_none(winner)[-1]}")
        check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).sandbox, kept.sandbox)
        for other in refs:
            if other != kept:
                check(not await store.mark_sandbox_lost(OWNER, "cntr_1", other, "stale"), "it has another sandbox")
        check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).lost, None)

    async def test_files_are_not_stored_for_another_sandbox(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await store.set_sandbox(OWNER, "cntr_1", SANDBOX)
        for stale in (SandboxRef("rep_2", "s"), SandboxRef("rep_1", "s0")):
            stored = await store.change_container_files(
                OWNER, "cntr_1", put=[file_record("cfile_1", "a")], sandbox=stale
            )
            check(not stored, "the container has another sandbox")
        check_equal(await file_ids(store), [])
        stored = await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")], sandbox=SANDBOX)
        check(stored, "it is the sandbox of the container")
        check_equal(await file_ids(store), ["cfile_1"])

    async def test_held_sandboxes_are_listed_by_replica(self, store: Store) -> None:
        for name, owner in (("cntr_1", OWNER), ("cntr_2", OTHER_TENANT), ("cntr_3", OWNER), ("cntr_4", OWNER)):
            await create_container(store, name, owner, expires_after=1.0 if name == "cntr_4" else 60.0)
        await store.set_sandbox(OWNER, "cntr_1", SandboxRef("rep_1", "s1"))
        await store.set_sandbox(OTHER_TENANT, "cntr_2", SandboxRef("rep_1", "s2"))
        await store.set_sandbox(OWNER, "cntr_3", SandboxRef("rep_2", "s3"))
        await store.set_sandbox(OWNER, "cntr_4", SandboxRef("rep_1", "s4"))
        await store.expire_containers(NOW + 2)
        check_equal(sorted(await store.sandbox_replicas()), ["rep_1", "rep_2"])
        held = {(OWNER.tenant, "cntr_1", "s1"), (OTHER_TENANT.tenant, "cntr_2", "s2")}
        check_equal(await store.held_sandboxes("rep_1"), held)
        lost = await store.mark_sandboxes_lost(["rep_1", "rep_9"], "stopped")
        check_equal(sorted(record.id for _, record in lost), ["cntr_1", "cntr_2"])
        check_equal(await store.held_sandboxes("rep_1"), set[tuple[str, str, str]]())
        check_equal(await store.sandbox_replicas(), ["rep_2"])

    async def test_a_container_used_by_another_replica_is_not_evicted_at_once(self, store: Store) -> None:
        first, second = ReplicaUse("rep_1", NOW - 5), ReplicaUse("rep_2", NOW - 5)
        await create_container(store, "cntr_1", name="auto", used_by="rep_1")
        check_equal(await store.expire_least_recently_used(OWNER, "auto", NOW, second), None)
        check(await store.has_live_containers(OWNER, "auto", NOW, []), "there is one")
        check(not await store.has_live_containers(OWNER, "auto", NOW, ["cntr_1"]), "it is excluded")
        check(not await store.has_live_containers(OWNER, "other", NOW, []), "there is none of this name")
        used = not_none(await store.touch_container(OWNER, "cntr_1", NOW, second))
        check_equal(used.used_by, SEVERAL_REPLICAS)
        for use in (first, second):
            check_equal(await store.expire_least_recently_used(OWNER, "auto", NOW, use), None)
        later = ReplicaUse("rep_2", NOW + 1)
        check_equal(not_none(await store.touch_container(OWNER, "cntr_1", NOW + 6, later)).used_by, "rep_2")
        check_equal(await store.expire_least_recently_used(OWNER, "auto", NOW + 6, first), None)
        check_equal(not_none(await store.expire_least_recently_used(OWNER, "auto", NOW + 6, later)).id, "cntr_1")

    async def test_a_container_that_no_replica_uses_any_more_is_evicted(self, store: Store) -> None:
        await create_container(store, "cntr_1", name="auto", used_by=SEVERAL_REPLICAS)
        use = ReplicaUse("rep_2", NOW + 1)
        check_equal(not_none(await store.expire_least_recently_used(OWNER, "auto", NOW + 6, use)).id, "cntr_1")

    async def test_lose_sandboxes_covers_all_tenants(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for name, owner in (("cntr_1", OWNER), ("cntr_2", OWNER), ("cntr_3", OTHER_TENANT), ("cntr_4", OWNER)):
                await create_container(store, name, owner, last_active_at=NOW + (name != "cntr_4"))
            for name, owner in (("cntr_1", OWNER), ("cntr_3", OTHER_TENANT), ("cntr_4", OWNER)):
                await store.set_sandbox(owner, name, SANDBOX)
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.expire_containers(NOW + 60)
        async with self.opened_store(tmp_path) as store:
            lost = await store.mark_sandboxes_lost(["rep_1"], "restarted")
            first = container_record("cntr_1", last_active_at=NOW + 1, lost="restarted")
            third = msgspec.structs.replace(first, id="cntr_3")
            check_equal(sorted(lost, key=str), [(OWNER, first), (OTHER_TENANT, third)])
            check_equal(await store.mark_sandboxes_lost(["rep_1"], "again"), [])
            check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).lost, "restarted")
            check_equal(not_none(await store.get_container(OWNER, "cntr_2", NOW)).lost, None)
            check_equal(await file_ids(store), [])
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 2 * GIB, 0))

    # ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_file_records_can_be_read_after_reopening(self, tmp_path: Path) -> None:
        first = file_record("cfile_1", "dir/é.txt")
        second = file_record("cfile_2", "b", bytes=2**40, source="assistant", file_id="file-1")
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_2")
            check(await store.change_container_files(OWNER, "cntr_1", put=[first, second]), "the container exists")
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), first)
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_2"), second)
            check_equal(await store.get_container_file(OWNER, "cntr_2", "cfile_1"), None)
            check_equal(await store.get_container_file(OWNER, "unknown", "cfile_1"), None)
            check_equal(await file_ids(store), ["cfile_1", "cfile_2"])
            check_equal(await file_ids(store, "cntr_2"), [])

    async def test_a_path_has_one_file_record(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        first, second = file_record("cfile_1", "a"), file_record("cfile_2", "b")
        await store.change_container_files(OWNER, "cntr_1", put=[first, second])
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_3", "a")])
        check_equal(await file_ids(store), ["cfile_2", "cfile_3"])
        fourth = file_record("cfile_4", "c")
        await store.change_container_files(OWNER, "cntr_1", put=[fourth], dropped=["cfile_2", "unknown"])
        check_equal(await file_ids(store), ["cfile_3", "cfile_4"])

    async def test_files_of_a_container_are_paged(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await create_container(store, "cntr_2")
        await store.change_container_files(OWNER, "cntr_1", put=[file_record(name, name) for name in LISTED_IDS])
        await store.change_container_files(OWNER, "cntr_2", put=[file_record("other", "a", container_id="cntr_2")])

        def list_page(query: PageQuery) -> Any:
            return store.list_container_files(OWNER, "cntr_1", query)

        await check_pages(list_page, lambda record: record.id)
        await check_unknown_cursor(list_page, PageQuery(after="other"))
        check_equal(await store.list_container_files(OWNER, "unknown", PageQuery()), None)

    # ── Tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_another_tenant_cannot_read_or_change_a_container(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await store.set_sandbox(OWNER, "cntr_1", SANDBOX)
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])

        check_equal(await store.get_container(OTHER_TENANT, "cntr_1", NOW), None)
        check_equal(await store.find_containers(OTHER_TENANT, ["cntr_1"], NOW), {})
        check_equal((await store.list_containers(OTHER_TENANT, PageQuery(), NOW)).data, [])
        check_equal(await store.touch_container(OTHER_TENANT, "cntr_1", NOW + 1, USE), None)
        check(not await store.set_sandbox(OTHER_TENANT, "cntr_1", SANDBOX), "another tenant must not set a sandbox")
        await store.mark_sandbox_lost(OTHER_TENANT, "cntr_1", SANDBOX, "forged")
        check(
            not await store.change_container_files(OTHER_TENANT, "cntr_1", put=[], dropped=["cfile_1"]),
            "another tenant must not change files",
        )
        check_equal(await store.list_container_files(OTHER_TENANT, "cntr_1", PageQuery()), None)
        check_equal(await store.get_container_file(OTHER_TENANT, "cntr_1", "cfile_1"), None)
        check_equal(await store.container_use(OTHER_TENANT, NOW), ContainerUse(0, 0, 0))
        check(not await store.delete_container(OTHER_TENANT, "cntr_1"), "another tenant must not delete")

        check_equal(
            await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", sandbox="s", replica="rep_1")
        )
        check_equal(
            await store.get_container(OTHER_KEY, "cntr_1", NOW),
            container_record("cntr_1", sandbox="s", replica="rep_1"),
        )
        check_equal(await file_ids(store), ["cfile_1"])

    async def test_two_tenants_can_use_the_same_container_id(self, store: Store) -> None:
        await create_container(store, "cntr_1")
        await create_container(store, "cntr_1", OTHER_TENANT, name="other_tenant")
        await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
        await store.change_container_files(OTHER_TENANT, "cntr_1", put=[file_record("cfile_1", "b")])
        check(await store.delete_container(OTHER_TENANT, "cntr_1"), "the other tenant's container exists")
        check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1"))
        check_equal(await file_ids(store), ["cfile_1"])
