"""SQL statements for skills, their versions, and the copies of skills in containers; scoped to one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antwort.engine.stores import (
    ContainerSkill,
    OverQuota,
    PageQuery,
    RecordPage,
    SkillQuota,
    SkillRecord,
    SkillVersionRecord,
)
from antwort.storage.sql.paging import PagedQuery, read_page
from antwort.storage.sql.rows import Rows, TenantRows

_VERSION_COLUMNS = "id, version, name, description, created_at, bytes"
_SKILL_COLUMNS = "key, id, created_at, default_version"


def create(rows: TenantRows, skill_id: str, version: SkillVersionRecord, bundle: bytes, most: SkillQuota) -> None:
    """Insert a skill with its first version."""
    rows.lock_tenant()
    _check_quota(rows, len(bundle), most, new_skills=1)
    rows.execute(
        "INSERT INTO skills (tenant, key_id, id, created_at, default_version)"
        " VALUES (:tenant, :key_id, :id, :created_at, :version)",
        id=skill_id,
        created_at=version.created_at,
        version=version.version,
    )
    _insert_version(rows, rows.key("skills", skill_id), version, bundle)


def add_version(
    rows: TenantRows, skill_id: str, version: SkillVersionRecord, bundle: bytes, most: SkillQuota, *, is_default: bool
) -> int | None:
    """Insert the next version of a skill; its number, or None if there is no such skill."""
    rows.lock_tenant()
    key = rows.key("skills", skill_id, lock=True)
    if key is None:
        return None
    _check_quota(rows, len(bundle), most)
    found = rows.fetchone(
        "SELECT last_version FROM skills WHERE tenant = :tenant AND key = :key",
        key=key,
    )
    number = int(found[0]) + 1 if found else 1
    rows.execute(
        "UPDATE skills SET last_version = :number WHERE tenant = :tenant AND key = :key",
        key=key,
        number=number,
    )
    _insert_version(rows, key, version, bundle, number)
    if is_default:
        set_default(rows, skill_id, number)
    return number


def _insert_version(
    rows: TenantRows, skill: int | None, version: SkillVersionRecord, bundle: bytes, number: int = 1
) -> None:
    rows.execute(
        "INSERT INTO skill_versions (tenant, skill, id, version, name, description, created_at, bytes, body)"
        " VALUES (:tenant, :skill, :id, :version, :name, :description, :created_at, :bytes, :body)",
        skill=skill,
        id=version.id,
        version=number,
        name=version.name,
        description=version.description,
        created_at=version.created_at,
        bytes=len(bundle),
        body=bundle,
    )


def _check_quota(rows: TenantRows, size: int, most: SkillQuota, new_skills: int = 0) -> None:
    skills = rows.fetchone("SELECT count(*) FROM skills WHERE tenant = :tenant") or (0,)
    versions = rows.fetchone("SELECT count(*), coalesce(sum(bytes), 0) FROM skill_versions WHERE tenant = :tenant")
    count, stored = versions or (0, 0)
    if skills[0] + new_skills > most.skills or count + 1 > most.versions or stored + size > most.bytes:
        raise OverQuota("skills")


def get(rows: TenantRows, skill_id: str) -> SkillRecord | None:
    """A skill, with the name and description of its default version."""
    found = rows.fetchone(
        f"SELECT {_SKILL_COLUMNS} FROM skills WHERE tenant = :tenant AND id = :id",  # noqa: S608 - constant columns
        id=skill_id,
    )
    return None if found is None else _skill(rows, found)


def skill_page(rows: TenantRows, query: PageQuery) -> RecordPage:
    """A page of the skills, in order of creation."""
    listing = PagedQuery("skills", "1 = 1", {})
    return read_page(rows, listing, _SKILL_COLUMNS, query, lambda found: [_skill(rows, row) for row in found])


def _skill(rows: TenantRows, row: Sequence[Any]) -> SkillRecord:
    key, identifier, created_at, default = row
    shown = rows.fetchone(
        "SELECT name, description FROM skill_versions WHERE tenant = :tenant AND skill = :skill AND version = :version",
        skill=key,
        version=default,
    )
    latest = rows.fetchone(
        "SELECT max(version) FROM skill_versions WHERE tenant = :tenant AND skill = :skill", skill=key
    )
    name, description = shown or ("", "")
    return SkillRecord(
        id=identifier,
        created_at=created_at,
        default_version=default,
        latest_version=default if latest is None else latest[0],
        name=name,
        description=description,
    )


def set_default(rows: TenantRows, skill_id: str, version: int) -> SkillRecord | None:
    """Set the default version; None if there is no such skill or version."""
    key = rows.key("skills", skill_id, lock=True)
    if key is None or get_version(rows, skill_id, version) is None:
        return None
    rows.execute(
        "UPDATE skills SET default_version = :version WHERE tenant = :tenant AND key = :key", key=key, version=version
    )
    return get(rows, skill_id)


def get_version(rows: TenantRows, skill_id: str, version: int) -> SkillVersionRecord | None:
    """A version of a skill."""
    found = rows.fetchone(
        f"SELECT {_VERSION_COLUMNS} FROM skill_versions WHERE tenant = :tenant AND version = :version AND skill ="  # noqa: S608 - constant columns
        " (SELECT key FROM skills WHERE tenant = :tenant AND id = :id)",
        id=skill_id,
        version=version,
    )
    return None if found is None else _version(skill_id, found)


def version_page(rows: TenantRows, skill_id: str, query: PageQuery) -> RecordPage | None:
    """A page of the versions; None if there is no such skill."""
    key = rows.key("skills", skill_id)
    if key is None:
        return None
    listing = PagedQuery("skill_versions", "skill = :skill", {"skill": key})
    return read_page(rows, listing, _VERSION_COLUMNS, query, lambda found: [_version(skill_id, row) for row in found])


def _version(skill_id: str, row: Sequence[Any]) -> SkillVersionRecord:
    identifier, number, name, description, created_at, size = row
    return SkillVersionRecord(
        id=identifier,
        skill_id=skill_id,
        version=number,
        name=name,
        description=description,
        created_at=created_at,
        bytes=size,
    )


def delete_version(rows: TenantRows, skill_id: str, version: int) -> bool:
    """Delete a version that is not the default one; whether it existed."""
    key = rows.key("skills", skill_id, lock=True)
    deleted = rows.execute(
        "DELETE FROM skill_versions WHERE tenant = :tenant AND skill = :skill AND version = :version"
        " AND version <> (SELECT default_version FROM skills WHERE tenant = :tenant AND key = :skill)",
        skill=key,
        version=version,
    )
    return deleted.rowcount > 0


def read(rows: TenantRows, skill_id: str, version: int) -> bytes | None:
    """The archive of a version."""
    found = rows.fetchone(
        "SELECT body FROM skill_versions WHERE tenant = :tenant AND version = :version AND skill ="
        " (SELECT key FROM skills WHERE tenant = :tenant AND id = :id)",
        id=skill_id,
        version=version,
    )
    return None if found is None else bytes(found[0])


# ── skills of containers ─────────────────────────────────────────────────────────────────────────────────────────────


def put_in_container(rows: TenantRows, container_id: str, skills: Sequence[ContainerSkill]) -> None:
    """Replace the skills of a container."""
    key = rows.key("containers", container_id, lock=True)
    if key is None:
        return
    rows.execute("DELETE FROM container_skills WHERE tenant = :tenant AND container = :container", container=key)
    rows.executemany(
        "INSERT INTO container_skills (tenant, container, number, name, description, body)"
        " VALUES (:tenant, :container, :number, :name, :description, :body)",
        [
            {
                "container": key,
                "number": number,
                "name": skill.name,
                "description": skill.description,
                "body": skill.bundle,
            }
            for number, skill in enumerate(skills)
        ],
    )


def of_container(rows: TenantRows, container_id: str, *, with_bundles: bool) -> list[ContainerSkill]:
    """The skills of a container, without their archives unless they are asked for."""
    body = "body" if with_bundles else "NULL"
    found = rows.execute(
        f"SELECT name, description, {body} FROM container_skills WHERE tenant = :tenant AND container ="  # noqa: S608 - constant columns
        " (SELECT key FROM containers WHERE tenant = :tenant AND id = :id) ORDER BY number",
        id=container_id,
    )
    return [ContainerSkill(name, description, bytes(data or b"")) for name, description, data in found.fetchall()]


def delete_of_expired(rows: Rows) -> None:
    """Delete the skills of the expired containers of all tenants."""
    rows.execute(
        "DELETE FROM container_skills WHERE container IN (SELECT key FROM containers WHERE status = 'expired')"
    )
