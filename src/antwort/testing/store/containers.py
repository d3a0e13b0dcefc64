"""What every `ContainerStore` must do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    OverQuota,
    Owner,
    PageQuery,
    Store,
)
from antwort.testing.store.base import (
    LISTED,
    OURS,
    OURS_BY_ANOTHER_KEY,
    THEIRS,
    Conformance,
    check,
    equal,
    pages,
    refuses_cursor,
    there,
)

NOW = 1_000.5
PLENTY = ContainerUse(100, 2**50, 2**50)
GIB = 2**30


def record(identifier: str, **fields: Any) -> ContainerRecord:
    """A container that was made just now, and lives for a minute."""
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


def file(identifier: str, path: str, **fields: Any) -> ContainerFileRecord:
    """A file in the container `cntr_1`."""
    plain = ContainerFileRecord(
        id=identifier,
        container_id="cntr_1",
        path=path,
        bytes=3,
        created_at=1,
        source="user",
        modified=1_700_000_000_123_456_789,
    )
    return msgspec.structs.replace(plain, **fields)


async def make(store: Store, identifier: str, owner: Owner = OURS, **fields: Any) -> None:
    """A container, with no quota in the way."""
    await store.create_container(owner, record(identifier, **fields), PLENTY, NOW)


async def names(store: Store, container_id: str = "cntr_1") -> list[str]:
    """The ids of its files, oldest first."""
    return [one.id for one in there(await store.list_container_files(OURS, container_id, PageQuery(order="asc"))).data]


class ContainerConformance(Conformance):
    """Containers, how they expire, what they take, and the records of their files."""

    async def test_a_container_is_there_as_it_was_made(self, tmp_path: Path) -> None:
        odd = record(
            "cntr_2", name="", memory_limit="64g", memory=64 * GIB, expires_after=1.25, lost="why", sandbox="s"
        )
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await store.create_container(OURS, odd, PLENTY, NOW)
        async with self.store(tmp_path) as store:
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1"))
            equal(await store.get_container(OURS, "cntr_2", NOW), odd)
            equal(await store.get_container(OURS, "unknown", NOW), None)
            found = await store.find_containers(OURS, ["cntr_2", "unknown", "cntr_1", "cntr_2"], NOW)
            equal(found, {"cntr_1": record("cntr_1"), "cntr_2": odd})
            equal(await store.find_containers(OURS, [], NOW), {})

    async def test_a_deleted_container_is_gone_with_its_files(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            check(await store.delete_container(OURS, "cntr_1"), "it was there")
            check(not await store.delete_container(OURS, "cntr_1"), "it was not there any more")
            equal(await store.get_container(OURS, "cntr_1", NOW), None)
            equal(await store.touch_container(OURS, "cntr_1", NOW), None)
            equal(await store.list_container_files(OURS, "cntr_1", PageQuery()), None)
            equal(await store.get_container_file(OURS, "cntr_1", "cfile_1"), None)
            check(not await store.set_sandbox(OURS, "cntr_1", "s"), "there is nothing to give it to")
            check(not await store.change_container_files(OURS, "cntr_1", put=[file("cfile_2", "b")]), "nor to add to")
            equal(await store.container_use(OURS, NOW), ContainerUse(0, 0, 0))

    async def test_containers_come_in_pages(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for name in LISTED:
                await make(store, name)
            await make(store, "theirs", THEIRS)
            await pages(lambda query: store.list_containers(OURS, query, NOW), lambda one: one.id)
            await refuses_cursor(lambda query: store.list_containers(OURS, query, NOW), PageQuery(after="theirs"))

    async def test_containers_are_listed_by_name(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for identifier, name in (("cntr_1", "a"), ("cntr_2", "b"), ("cntr_3", "a")):
                await make(store, identifier, name=name)
            page = await store.list_containers(OURS, PageQuery(limit=1), NOW, "a")
            equal(([one.id for one in page.data], page.has_more), (["cntr_3"], True))
            equal((await store.list_containers(OURS, PageQuery(), NOW, "%")).data, [])

    # ── Expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_container_expires_when_it_was_idle_for_long(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1", sandbox="s")
            expired = record("cntr_1", status="expired")
            equal(there(await store.get_container(OURS, "cntr_1", NOW + 59.9)).status, "running")
            for swept in (False, True):
                equal(await store.get_container(OURS, "cntr_1", NOW + 60), expired)
                equal(await store.find_containers(OURS, ["cntr_1"], NOW + 60), {"cntr_1": expired})
                equal((await store.list_containers(OURS, PageQuery(), NOW + 60)).data, [expired])
                equal(await store.touch_container(OURS, "cntr_1", NOW + 60), expired)
                equal(await store.container_use(OURS, NOW + 60), ContainerUse(0, 0, 0))
                equal(await store.expire_containers(NOW + 60), [] if swept else [(OURS, expired)])
            equal(there(await store.get_container(OURS, "cntr_1", NOW)).status, "expired")

    async def test_the_one_that_was_not_used_for_longest_can_be_let_expire(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for number, name in enumerate(("auto", "auto", "auto", "named")):
                await make(store, f"cntr_{number}", name=name, last_active_at=NOW + number)
            await store.touch_container(OURS, "cntr_0", NOW + 10)
            first = await store.expire_least_recently_used(OURS, "auto", NOW + 11)
            equal(first, record("cntr_1", name="auto", last_active_at=NOW + 1, status="expired"))
            equal(await store.get_container(OURS, "cntr_1", NOW), first)
            equal(there(await store.expire_least_recently_used(OURS, "auto", NOW + 11, ["cntr_2"])).id, "cntr_0")
            equal(await store.expire_least_recently_used(OURS, "auto", NOW + 11, ["cntr_2"]), None)
            equal(await store.expire_least_recently_used(OURS, "auto", NOW - 1), None)  # it was used since
            equal(await store.expire_least_recently_used(THEIRS, "auto", NOW + 11), None)
            equal(await store.expire_containers(NOW + 11), [])
            equal((await store.container_use(OURS, NOW + 11)).containers, 2)
            equal(await store.expire_least_recently_used(OURS, "named", NOW + 100), None)  # it has expired already

    async def test_use_puts_expiry_off(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            touched = record("cntr_1", last_active_at=NOW + 59)
            equal(await store.touch_container(OURS, "cntr_1", NOW + 59), touched)
            equal(await store.touch_container(OURS, "cntr_1", NOW), touched)  # the clock went back
            equal(await store.expire_containers(NOW + 118.9), [])
            equal([one.id for _, one in await store.expire_containers(NOW + 119)], ["cntr_1"])

    async def test_what_has_expired_changes_no_more_and_keeps_the_records_of_its_files(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            await store.expire_containers(NOW + 60)
            check(not await store.set_sandbox(OURS, "cntr_1", "s"), "it has expired")
            check(not await store.change_container_files(OURS, "cntr_1", put=[], dropped=["cfile_1"]), "it has expired")
            await store.mark_sandbox_lost(OURS, "cntr_1", "why")
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1", status="expired"))
            equal(await store.get_container_file(OURS, "cntr_1", "cfile_1"), file("cfile_1", "a"))
            check(await store.delete_container(OURS, "cntr_1"), "it can still be deleted")

    async def test_what_expired_long_ago_is_forgotten(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await make(store, "cntr_2", THEIRS)
            await make(store, "cntr_3", last_active_at=NOW + 10)
            await make(store, "cntr_4", last_active_at=NOW + 100)
            await store.expire_containers(NOW + 70)
            equal(await store.forget_containers(NOW + 60), 0)
            equal(await store.forget_containers(NOW + 61), 2)
            equal([one.id for one in (await store.list_containers(OURS, PageQuery(), NOW)).data], ["cntr_4", "cntr_3"])
            equal(await store.forget_containers(2.0**40), 1)
            equal([one.id for one in (await store.list_containers(OURS, PageQuery(), NOW)).data], ["cntr_4"])

    # ── Quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_running_containers_take(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await make(store, "cntr_2", memory=4 * GIB, expires_after=600)
            await make(store, "theirs", THEIRS)
            await store.change_container_files(
                OURS, "cntr_1", put=[file("cfile_1", "a"), file("cfile_2", "b", bytes=9)]
            )
            equal(await store.container_use(OURS, NOW), ContainerUse(2, 5 * GIB, 12))
            await store.change_container_files(
                OURS, "cntr_1", put=[file("cfile_3", "a", bytes=10)], dropped=["cfile_2"]
            )
            equal(await store.container_use(OURS, NOW), ContainerUse(2, 5 * GIB, 10))
            equal(await store.container_use(OURS, NOW + 60), ContainerUse(1, 4 * GIB, 0))
            await store.mark_sandbox_lost(OURS, "cntr_1", "why")
            equal(await store.container_use(OURS, NOW), ContainerUse(2, 5 * GIB, 0))

    async def test_one_too_many_is_refused(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            most = ContainerUse(3, 6 * GIB, 0)

            async def refused(now: float = NOW, **fields: Any) -> str | None:
                try:
                    await store.create_container(OURS, record(f"cntr_{len(made)}", **fields), most, now)
                except OverQuota as error:
                    return error.what
                made.append(fields)
                return None

            made: list[object] = []
            equal(await refused(), None)
            equal(await refused(memory=6 * GIB), "memory")
            equal(await refused(memory=5 * GIB), None)
            equal(await refused(), "memory")
            await store.create_container(THEIRS, record("cntr_0"), most, NOW)
            equal(await refused(now=NOW + 60), None)  # the others have expired
            equal((await store.container_use(OURS, NOW)).containers, 3)
            equal(await refused(memory=0), "containers")

    async def test_of_two_at_once_only_one_is_the_last(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            most = ContainerUse(5, 2**50, 0)
            attempts = (store.create_container(OURS, record(f"cntr_{n}"), most, NOW) for n in range(20))
            refused = [one for one in await asyncio.gather(*attempts, return_exceptions=True) if one is not None]
            equal([type(one) for one in refused], [OverQuota] * 15)
            equal((await store.container_use(OURS, NOW)).containers, 5)

    # ── Sandboxes ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_sandbox_comes_and_goes_with_its_files(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            check(await store.set_sandbox(OURS, "cntr_1", "s1"), "it is there")
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1", sandbox="s1"))
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            await store.mark_sandbox_lost(OURS, "cntr_1", "it died")
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1", lost="it died"))
            equal(await names(store), [])
            await store.set_sandbox(OURS, "cntr_1", "s2")
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1", sandbox="s2", lost="it died"))
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            await store.set_sandbox(OURS, "cntr_1", "s3")
            equal(await names(store), [])

    async def test_at_a_start_everybodys_sandboxes_are_lost(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for identifier, owner in (("cntr_1", OURS), ("cntr_2", OURS), ("cntr_3", THEIRS), ("cntr_4", OURS)):
                await make(store, identifier, owner, last_active_at=NOW + (identifier != "cntr_4"))
            for identifier, owner in (("cntr_1", OURS), ("cntr_3", THEIRS), ("cntr_4", OURS)):
                await store.set_sandbox(owner, identifier, "s")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            await store.expire_containers(NOW + 60)
        async with self.store(tmp_path) as store:
            lost = await store.mark_all_sandboxes_lost("restarted")
            expected = [
                (o, record(i, last_active_at=NOW + 1, lost="restarted"))
                for o, i in ((OURS, "cntr_1"), (THEIRS, "cntr_3"))
            ]
            equal(sorted(lost, key=str), expected)
            equal(await store.mark_all_sandboxes_lost("again"), [])
            equal(there(await store.get_container(OURS, "cntr_1", NOW)).lost, "restarted")
            equal(there(await store.get_container(OURS, "cntr_2", NOW)).lost, None)
            equal(await names(store), [])
            equal(await store.container_use(OURS, NOW), ContainerUse(2, 2 * GIB, 0))

    # ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_files_are_there_as_they_were_written_down(self, tmp_path: Path) -> None:
        first = file("cfile_1", "dir/é.txt")
        second = file("cfile_2", "b", bytes=2**40, source="assistant", file_id="file-1")
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await make(store, "cntr_2")
            check(await store.change_container_files(OURS, "cntr_1", put=[first, second]), "it is there")
        async with self.store(tmp_path) as store:
            equal(await store.get_container_file(OURS, "cntr_1", "cfile_1"), first)
            equal(await store.get_container_file(OURS, "cntr_1", "cfile_2"), second)
            equal(await store.get_container_file(OURS, "cntr_2", "cfile_1"), None)
            equal(await store.get_container_file(OURS, "unknown", "cfile_1"), None)
            equal(await names(store), ["cfile_1", "cfile_2"])
            equal(await names(store, "cntr_2"), [])

    async def test_one_path_has_one_file(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a"), file("cfile_2", "b")])
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_3", "a")])
            equal(await names(store), ["cfile_2", "cfile_3"])
            await store.change_container_files(
                OURS, "cntr_1", put=[file("cfile_4", "c")], dropped=["cfile_2", "unknown"]
            )
            equal(await names(store), ["cfile_3", "cfile_4"])

    async def test_files_of_a_container_come_in_pages(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await make(store, "cntr_2")
            await store.change_container_files(OURS, "cntr_1", put=[file(name, name) for name in LISTED])
            await store.change_container_files(OURS, "cntr_2", put=[file("elsewhere", "a", container_id="cntr_2")])

            def ask(query: PageQuery) -> Any:
                return store.list_container_files(OURS, "cntr_1", query)

            await pages(ask, lambda one: one.id)
            await refuses_cursor(ask, PageQuery(after="elsewhere"))
            equal(await store.list_container_files(OURS, "unknown", PageQuery()), None)

    # ── Tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_another_tenant_sees_and_changes_no_container(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await store.set_sandbox(OURS, "cntr_1", "s")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])

            equal(await store.get_container(THEIRS, "cntr_1", NOW), None)
            equal(await store.find_containers(THEIRS, ["cntr_1"], NOW), {})
            equal((await store.list_containers(THEIRS, PageQuery(), NOW)).data, [])
            equal(await store.touch_container(THEIRS, "cntr_1", NOW + 1), None)
            check(not await store.set_sandbox(THEIRS, "cntr_1", "forged"), "it is not theirs to use")
            await store.mark_sandbox_lost(THEIRS, "cntr_1", "forged")
            check(not await store.change_container_files(THEIRS, "cntr_1", put=[], dropped=["cfile_1"]), "nor these")
            equal(await store.list_container_files(THEIRS, "cntr_1", PageQuery()), None)
            equal(await store.get_container_file(THEIRS, "cntr_1", "cfile_1"), None)
            equal(await store.container_use(THEIRS, NOW), ContainerUse(0, 0, 0))
            check(not await store.delete_container(THEIRS, "cntr_1"), "it is not theirs to delete")

            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1", sandbox="s"))
            equal(await store.get_container(OURS_BY_ANOTHER_KEY, "cntr_1", NOW), record("cntr_1", sandbox="s"))
            equal(await names(store), ["cfile_1"])

    async def test_two_tenants_may_have_containers_with_the_same_id(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await make(store, "cntr_1")
            await make(store, "cntr_1", THEIRS, name="theirs")
            await store.change_container_files(OURS, "cntr_1", put=[file("cfile_1", "a")])
            await store.change_container_files(THEIRS, "cntr_1", put=[file("cfile_1", "b")])
            check(await store.delete_container(THEIRS, "cntr_1"), "theirs is there")
            equal(await store.get_container(OURS, "cntr_1", NOW), record("cntr_1"))
            equal(await names(store), ["cfile_1"])
