"""Conformance tests for `SkillStore`."""

from __future__ import annotations

from collections.abc import Awaitable

from antwort.engine.stores import (
    ContainerSkill,
    ContainerUse,
    OverQuota,
    PageQuery,
    SkillQuota,
    SkillVersionRecord,
    Store,
)
from antwort.testing.checks import check_equal, not_none
from antwort.testing.store.base import OTHER_TENANT, OWNER, Conformance
from antwort.testing.store.containers import container_record

MOST = SkillQuota(3, 5, 100)
MANY = ContainerUse(100, 1 << 50, 1 << 50)


def version(identifier: str, skill_id: str = "skill_1", **fields: str) -> SkillVersionRecord:
    """The record of a new version."""
    name, description = fields.get("name", f"name-{identifier}"), fields.get("description", "What it does.")
    return SkillVersionRecord(id=identifier, skill_id=skill_id, name=name, description=description, created_at=1)


class SkillConformance(Conformance):
    """Tests of skills, their versions, and the skills of containers."""

    async def test_versions_of_a_skill(self, store: Store) -> None:
        await store.create_skill(OWNER, "skill_1", version("a"), b"one", MOST)
        check_equal(not_none(await store.get_skill(OWNER, "skill_1")).default_version, 1)
        check_equal(await store.add_skill_version(OWNER, "skill_1", version("b"), b"two", MOST, is_default=False), 2)
        check_equal(await store.add_skill_version(OWNER, "skill_1", version("c"), b"3", MOST, is_default=True), 3)
        skill = not_none(await store.get_skill(OWNER, "skill_1"))
        check_equal((skill.default_version, skill.latest_version, skill.name), (3, 3, "name-c"))
        check_equal(await store.read_skill(OWNER, "skill_1", 2), b"two")
        second = not_none(await store.get_skill_version(OWNER, "skill_1", 2))
        check_equal((second.id, second.version, second.bytes, second.skill_id), ("b", 2, 3, "skill_1"))
        page = not_none(await store.list_skill_versions(OWNER, "skill_1", PageQuery(limit=2, order="asc")))
        check_equal(([one.version for one in page.data], page.has_more), ([1, 2], True))

    async def test_the_default_version_is_not_deleted_and_no_number_is_used_twice(self, store: Store) -> None:
        await store.create_skill(OWNER, "skill_1", version("a"), b"1", MOST)
        await store.add_skill_version(OWNER, "skill_1", version("b"), b"2", MOST, is_default=False)
        check_equal(await store.delete_skill_version(OWNER, "skill_1", 1), expected=False)
        check_equal(await store.delete_skill_version(OWNER, "skill_1", 2), expected=True)
        check_equal(await store.delete_skill_version(OWNER, "skill_1", 2), expected=False)
        check_equal(await store.add_skill_version(OWNER, "skill_1", version("c"), b"3", MOST, is_default=False), 3)
        check_equal(not_none(await store.set_default_skill_version(OWNER, "skill_1", 3)).name, "name-c")
        check_equal(await store.set_default_skill_version(OWNER, "skill_1", 2), None)
        check_equal(await store.delete_skill_version(OWNER, "skill_1", 1), expected=True)

    async def test_a_deleted_skill_is_gone_with_its_versions(self, store: Store) -> None:
        await store.create_skill(OWNER, "skill_1", version("a"), b"1", MOST)
        check_equal(await store.delete_skill(OWNER, "skill_1"), expected=True)
        check_equal(await store.delete_skill(OWNER, "skill_1"), expected=False)
        check_equal(await store.get_skill_version(OWNER, "skill_1", 1), None)
        check_equal(await store.read_skill(OWNER, "skill_1", 1), None)
        check_equal(await store.list_skill_versions(OWNER, "skill_1", PageQuery()), None)
        check_equal(await store.add_skill_version(OWNER, "skill_1", version("b"), b"2", MOST, is_default=True), None)

    async def test_quotas_of_skills_versions_and_bytes(self, store: Store) -> None:
        await store.create_skill(OWNER, "skill_1", version("a"), b"1" * 60, MOST)
        await _over_quota(store.create_skill(OWNER, "skill_2", version("b", "skill_2"), b"2" * 60, MOST))
        await store.create_skill(OTHER_TENANT, "skill_2", version("b", "skill_2"), b"2" * 60, MOST)
        for number in (2, 3):
            await store.create_skill(OWNER, f"skill_{number}", version("c", f"skill_{number}"), b"", MOST)
        await _over_quota(store.create_skill(OWNER, "skill_4", version("d", "skill_4"), b"", MOST))
        for _ in range(2):
            await store.add_skill_version(OWNER, "skill_2", version("e"), b"", MOST, is_default=False)
        await _over_quota(store.add_skill_version(OWNER, "skill_2", version("f"), b"", MOST, is_default=False))

    async def test_skills_of_another_tenant_are_missing(self, store: Store) -> None:
        await store.create_skill(OWNER, "skill_1", version("a"), b"1", MOST)
        check_equal(await store.get_skill(OTHER_TENANT, "skill_1"), None)
        check_equal(await store.read_skill(OTHER_TENANT, "skill_1", 1), None)
        check_equal(await store.set_default_skill_version(OTHER_TENANT, "skill_1", 1), None)
        check_equal(await store.delete_skill(OTHER_TENANT, "skill_1"), expected=False)
        check_equal(await store.delete_skill_version(OTHER_TENANT, "skill_1", 1), expected=False)
        check_equal((await store.list_skills(OTHER_TENANT, PageQuery())).data, [])
        check_equal([one.id for one in (await store.list_skills(OWNER, PageQuery())).data], ["skill_1"])

    async def test_skills_of_a_container_are_deleted_with_it_and_when_it_expires(self, store: Store) -> None:
        given = [ContainerSkill("a", "What a does.", b"\0a"), ContainerSkill("b", "What b does.", b"b")]
        for identifier in ("cntr_1", "cntr_2"):
            await store.create_container(OWNER, container_record(identifier), MANY, 1.0)
            await store.set_container_skills(OWNER, identifier, given)
        check_equal(await store.container_skills(OWNER, "cntr_1", with_bundles=True), given)
        names = [(one.name, one.bundle) for one in await store.container_skills(OWNER, "cntr_1")]
        check_equal(names, [("a", b""), ("b", b"")])
        check_equal(await store.container_skills(OTHER_TENANT, "cntr_1"), [])
        await store.delete_container(OWNER, "cntr_1")
        check_equal(await store.container_skills(OWNER, "cntr_1"), [])
        await store.expire_containers(1e12)
        check_equal(await store.container_skills(OWNER, "cntr_2"), [])


async def _over_quota(work: Awaitable[object]) -> None:
    try:
        await work
    except OverQuota as error:
        check_equal(error.what, "skills")
        return
    raise AssertionError("expected OverQuota")
