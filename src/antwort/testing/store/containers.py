"""What every `ContainerStore` must do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from antwort.engine.ports import ContainerFileRecord, ContainerRecord, ContainerUse, OverQuota, Owner, PageQuery, Store
from antwort.testing.store.base import (
    LISTED_IDS,
    OTHER_TENANT,
    OWNER,
    OWNER_WITH_OTHER_KEY,
    Conformance,
    check,
    check_equal,
    check_pages,
    check_unknown_cursor,
    not_none,
)

NOW = 1_000.5
NO_QUOTA = ContainerUse(100, 2**50, 2**50)
GIB = 2**30


def container_record(identifier: str, **fields: Any) -> ContainerRecord:
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


def file_record(identifier: str, path: str, **fields: Any) -> ContainerFileRecord:
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


async def create_container(store: Store, identifier: str, owner: Owner = OWNER, **fields: Any) -> None:
    """A container, with no quota in the way."""
    await store.create_container(owner, container_record(identifier, **fields), NO_QUOTA, NOW)


async def file_ids(store: Store, container_id: str = "cntr_1") -> list[str]:
    """The ids of its files, oldest first."""
    return [
        one.id for one in not_none(await store.list_container_files(OWNER, container_id, PageQuery(order="asc"))).data
    ]


class ContainerConformance(Conformance):
    """Containers, how they expire, what they take, and the records of their files."""

    async def test_a_container_is_there_as_it_was_made(self, tmp_path: Path) -> None:
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

    async def test_a_deleted_container_is_gone_with_its_files(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            check(await store.delete_container(OWNER, "cntr_1"), "it was there")
            check(not await store.delete_container(OWNER, "cntr_1"), "it was not there any more")
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), None)
            check_equal(await store.touch_container(OWNER, "cntr_1", NOW), None)
            check_equal(await store.list_container_files(OWNER, "cntr_1", PageQuery()), None)
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), None)
            check(not await store.give_sandbox(OWNER, "cntr_1", "s"), "there is nothing to give it to")
            check(
                not await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_2", "b")]),
                "nor to add to",
            )
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(0, 0, 0))

    async def test_containers_come_in_pages(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for name in LISTED_IDS:
                await create_container(store, name)
            await create_container(store, "theirs", OTHER_TENANT)
            await check_pages(lambda query: store.list_containers(OWNER, query, NOW), lambda one: one.id)
            await check_unknown_cursor(
                lambda query: store.list_containers(OWNER, query, NOW), PageQuery(after="theirs")
            )

    async def test_containers_are_listed_by_name(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for identifier, name in (("cntr_1", "a"), ("cntr_2", "b"), ("cntr_3", "a")):
                await create_container(store, identifier, name=name)
            page = await store.list_containers(OWNER, PageQuery(limit=1), NOW, "a")
            check_equal(([one.id for one in page.data], page.has_more), (["cntr_3"], True))
            check_equal((await store.list_containers(OWNER, PageQuery(), NOW, "%")).data, [])

    # ── Expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_container_expires_when_it_was_idle_for_long(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1", sandbox="s")
            expired = container_record("cntr_1", status="expired")
            check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW + 59.9)).status, "running")
            for swept in (False, True):
                check_equal(await store.get_container(OWNER, "cntr_1", NOW + 60), expired)
                check_equal(await store.find_containers(OWNER, ["cntr_1"], NOW + 60), {"cntr_1": expired})
                check_equal((await store.list_containers(OWNER, PageQuery(), NOW + 60)).data, [expired])
                check_equal(await store.touch_container(OWNER, "cntr_1", NOW + 60), expired)
                check_equal(await store.container_use(OWNER, NOW + 60), ContainerUse(0, 0, 0))
                check_equal(await store.expire_containers(NOW + 60), [] if swept else [(OWNER, expired)])
            check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).status, "expired")

    async def test_the_one_that_was_not_used_for_longest_can_be_let_expire(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for number, name in enumerate(("auto", "auto", "auto", "named")):
                await create_container(store, f"cntr_{number}", name=name, last_active_at=NOW + number)
            await store.touch_container(OWNER, "cntr_0", NOW + 10)
            first = await store.expire_idlest(OWNER, "auto", NOW + 11)
            check_equal(first, container_record("cntr_1", name="auto", last_active_at=NOW + 1, status="expired"))
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), first)
            check_equal(not_none(await store.expire_idlest(OWNER, "auto", NOW + 11, ["cntr_2"])).id, "cntr_0")
            check_equal(await store.expire_idlest(OWNER, "auto", NOW + 11, ["cntr_2"]), None)
            check_equal(await store.expire_idlest(OWNER, "auto", NOW - 1), None)  # it was used since
            check_equal(await store.expire_idlest(OTHER_TENANT, "auto", NOW + 11), None)
            check_equal(await store.expire_containers(NOW + 11), [])
            check_equal((await store.container_use(OWNER, NOW + 11)).containers, 2)
            check_equal(await store.expire_idlest(OWNER, "named", NOW + 100), None)  # it has expired already

    async def test_use_puts_expiry_off(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            touched = container_record("cntr_1", last_active_at=NOW + 59)
            check_equal(await store.touch_container(OWNER, "cntr_1", NOW + 59), touched)
            check_equal(await store.touch_container(OWNER, "cntr_1", NOW), touched)  # the clock went back
            check_equal(await store.expire_containers(NOW + 118.9), [])
            check_equal([one.id for _, one in await store.expire_containers(NOW + 119)], ["cntr_1"])

    async def test_what_has_expired_changes_no_more_and_keeps_the_records_of_its_files(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.expire_containers(NOW + 60)
            check(not await store.give_sandbox(OWNER, "cntr_1", "s"), "it has expired")
            check(
                not await store.change_container_files(OWNER, "cntr_1", put=[], dropped=["cfile_1"]), "it has expired"
            )
            await store.lose_sandbox(OWNER, "cntr_1", "why")
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", status="expired"))
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), file_record("cfile_1", "a"))
            check(await store.delete_container(OWNER, "cntr_1"), "it can still be deleted")

    async def test_what_expired_long_ago_is_forgotten(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_2", OTHER_TENANT)
            await create_container(store, "cntr_3", last_active_at=NOW + 10)
            await create_container(store, "cntr_4", last_active_at=NOW + 100)
            await store.expire_containers(NOW + 70)
            check_equal(await store.forget_containers(NOW + 60), 0)
            check_equal(await store.forget_containers(NOW + 61), 2)
            check_equal(
                [one.id for one in (await store.list_containers(OWNER, PageQuery(), NOW)).data], ["cntr_4", "cntr_3"]
            )
            check_equal(await store.forget_containers(2.0**40), 1)
            check_equal([one.id for one in (await store.list_containers(OWNER, PageQuery(), NOW)).data], ["cntr_4"])

    # ── Quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_running_containers_take(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_2", memory=4 * GIB, expires_after=600)
            await create_container(store, "theirs", OTHER_TENANT)
            await store.change_container_files(
                OWNER, "cntr_1", put=[file_record("cfile_1", "a"), file_record("cfile_2", "b", bytes=9)]
            )
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 12))
            await store.change_container_files(
                OWNER, "cntr_1", put=[file_record("cfile_3", "a", bytes=10)], dropped=["cfile_2"]
            )
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 10))
            check_equal(await store.container_use(OWNER, NOW + 60), ContainerUse(1, 4 * GIB, 0))
            await store.lose_sandbox(OWNER, "cntr_1", "why")
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 5 * GIB, 0))

    async def test_one_too_many_is_refused(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            most = ContainerUse(3, 6 * GIB, 0)

            async def refused(now: float = NOW, **fields: Any) -> str | None:
                try:
                    await store.create_container(OWNER, container_record(f"cntr_{len(made)}", **fields), most, now)
                except OverQuota as error:
                    return error.what
                made.append(fields)
                return None

            made: list[object] = []
            check_equal(await refused(), None)
            check_equal(await refused(memory=6 * GIB), "memory")
            check_equal(await refused(memory=5 * GIB), None)
            check_equal(await refused(), "memory")
            await store.create_container(OTHER_TENANT, container_record("cntr_0"), most, NOW)
            check_equal(await refused(now=NOW + 60), None)  # the others have expired
            check_equal((await store.container_use(OWNER, NOW)).containers, 3)
            check_equal(await refused(memory=0), "containers")

    async def test_of_two_at_once_only_one_is_the_last(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            most = ContainerUse(5, 2**50, 0)
            attempts = (store.create_container(OWNER, container_record(f"cntr_{n}"), most, NOW) for n in range(20))
            refused = [one for one in await asyncio.gather(*attempts, return_exceptions=True) if one is not None]
            check_equal([type(one) for one in refused], [OverQuota] * 15)
            check_equal((await store.container_use(OWNER, NOW)).containers, 5)

    # ── Sandboxes ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_sandbox_comes_and_goes_with_its_files(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            check(await store.give_sandbox(OWNER, "cntr_1", "s1"), "it is there")
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", sandbox="s1"))
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.lose_sandbox(OWNER, "cntr_1", "it died")
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", lost="it died"))
            check_equal(await file_ids(store), [])
            await store.give_sandbox(OWNER, "cntr_1", "s2")
            check_equal(
                await store.get_container(OWNER, "cntr_1", NOW),
                container_record("cntr_1", sandbox="s2", lost="it died"),
            )
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.give_sandbox(OWNER, "cntr_1", "s3")
            check_equal(await file_ids(store), [])

    async def test_at_a_start_everybodys_sandboxes_are_lost(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for identifier, owner in (
                ("cntr_1", OWNER),
                ("cntr_2", OWNER),
                ("cntr_3", OTHER_TENANT),
                ("cntr_4", OWNER),
            ):
                await create_container(store, identifier, owner, last_active_at=NOW + (identifier != "cntr_4"))
            for identifier, owner in (("cntr_1", OWNER), ("cntr_3", OTHER_TENANT), ("cntr_4", OWNER)):
                await store.give_sandbox(owner, identifier, "s")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.expire_containers(NOW + 60)
        async with self.opened_store(tmp_path) as store:
            lost = await store.lose_sandboxes("restarted")
            expected = [
                (o, container_record(i, last_active_at=NOW + 1, lost="restarted"))
                for o, i in ((OWNER, "cntr_1"), (OTHER_TENANT, "cntr_3"))
            ]
            check_equal(sorted(lost, key=str), expected)
            check_equal(await store.lose_sandboxes("again"), [])
            check_equal(not_none(await store.get_container(OWNER, "cntr_1", NOW)).lost, "restarted")
            check_equal(not_none(await store.get_container(OWNER, "cntr_2", NOW)).lost, None)
            check_equal(await file_ids(store), [])
            check_equal(await store.container_use(OWNER, NOW), ContainerUse(2, 2 * GIB, 0))

    # ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_files_are_there_as_they_were_written_down(self, tmp_path: Path) -> None:
        first = file_record("cfile_1", "dir/é.txt")
        second = file_record("cfile_2", "b", bytes=2**40, source="assistant", file_id="file-1")
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_2")
            check(await store.change_container_files(OWNER, "cntr_1", put=[first, second]), "it is there")
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_1"), first)
            check_equal(await store.get_container_file(OWNER, "cntr_1", "cfile_2"), second)
            check_equal(await store.get_container_file(OWNER, "cntr_2", "cfile_1"), None)
            check_equal(await store.get_container_file(OWNER, "unknown", "cfile_1"), None)
            check_equal(await file_ids(store), ["cfile_1", "cfile_2"])
            check_equal(await file_ids(store, "cntr_2"), [])

    async def test_one_path_has_one_file(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await store.change_container_files(
                OWNER, "cntr_1", put=[file_record("cfile_1", "a"), file_record("cfile_2", "b")]
            )
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_3", "a")])
            check_equal(await file_ids(store), ["cfile_2", "cfile_3"])
            await store.change_container_files(
                OWNER, "cntr_1", put=[file_record("cfile_4", "c")], dropped=["cfile_2", "unknown"]
            )
            check_equal(await file_ids(store), ["cfile_3", "cfile_4"])

    async def test_files_of_a_container_come_in_pages(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_2")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record(name, name) for name in LISTED_IDS])
            await store.change_container_files(
                OWNER, "cntr_2", put=[file_record("elsewhere", "a", container_id="cntr_2")]
            )

            def ask(query: PageQuery) -> Any:
                return store.list_container_files(OWNER, "cntr_1", query)

            await check_pages(ask, lambda one: one.id)
            await check_unknown_cursor(ask, PageQuery(after="elsewhere"))
            check_equal(await store.list_container_files(OWNER, "unknown", PageQuery()), None)

    # ── Tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_another_tenant_sees_and_changes_no_container(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await store.give_sandbox(OWNER, "cntr_1", "s")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])

            check_equal(await store.get_container(OTHER_TENANT, "cntr_1", NOW), None)
            check_equal(await store.find_containers(OTHER_TENANT, ["cntr_1"], NOW), {})
            check_equal((await store.list_containers(OTHER_TENANT, PageQuery(), NOW)).data, [])
            check_equal(await store.touch_container(OTHER_TENANT, "cntr_1", NOW + 1), None)
            check(not await store.give_sandbox(OTHER_TENANT, "cntr_1", "forged"), "it is not theirs to use")
            await store.lose_sandbox(OTHER_TENANT, "cntr_1", "forged")
            check(
                not await store.change_container_files(OTHER_TENANT, "cntr_1", put=[], dropped=["cfile_1"]), "nor these"
            )
            check_equal(await store.list_container_files(OTHER_TENANT, "cntr_1", PageQuery()), None)
            check_equal(await store.get_container_file(OTHER_TENANT, "cntr_1", "cfile_1"), None)
            check_equal(await store.container_use(OTHER_TENANT, NOW), ContainerUse(0, 0, 0))
            check(not await store.delete_container(OTHER_TENANT, "cntr_1"), "it is not theirs to delete")

            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1", sandbox="s"))
            check_equal(
                await store.get_container(OWNER_WITH_OTHER_KEY, "cntr_1", NOW), container_record("cntr_1", sandbox="s")
            )
            check_equal(await file_ids(store), ["cfile_1"])

    async def test_two_tenants_may_have_containers_with_the_same_id(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await create_container(store, "cntr_1")
            await create_container(store, "cntr_1", OTHER_TENANT, name="theirs")
            await store.change_container_files(OWNER, "cntr_1", put=[file_record("cfile_1", "a")])
            await store.change_container_files(OTHER_TENANT, "cntr_1", put=[file_record("cfile_1", "b")])
            check(await store.delete_container(OTHER_TENANT, "cntr_1"), "theirs is there")
            check_equal(await store.get_container(OWNER, "cntr_1", NOW), container_record("cntr_1"))
            check_equal(await file_ids(store), ["cfile_1"])
