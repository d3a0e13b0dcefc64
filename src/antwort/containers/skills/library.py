"""The skills of all owners: stores them, and finds those that a request names."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct, structs

from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.ids import new_id
from antwort.api.tools import InlineSkill, Skill
from antwort.containers.skills.bundle import MAX_ARCHIVE_BYTES, SkillBundle, read_archive, unpacked_size
from antwort.engine.stores import (
    ContainerSkill,
    OverQuota,
    Owner,
    SkillQuota,
    SkillRecord,
    SkillStore,
    SkillVersionRecord,
)
from antwort.telemetry import audit

MAX_CONTAINER_BYTES: Final = 32 << 20
"""Of the archives of all skills of a container."""
MAX_CONTAINER_UNPACKED_BYTES: Final = 96 << 20
"""Of their files. A sandbox has space for somewhat more."""
_MAX_VERSION_DIGITS: Final = 9


class ResolvedSkill(Struct, frozen=True):
    """A skill that a request names or brings, without its archive: `SkillLibrary.load` reads that again."""

    name: str
    description: str
    digest: str
    source: Skill
    """With the number of the version."""

    def is_in(self, present: Sequence[ContainerSkill]) -> bool:
        """Whether these skills, which have their archives, contain this one."""
        return any(
            (skill.name, skill.description) == (self.name, self.description) and _digest(skill.bundle) == self.digest
            for skill in present
        )


class SkillLibrary:
    """The skills of all owners."""

    def __init__(self, store: SkillStore, quota: SkillQuota, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._quota = quota
        self._clock = clock

    async def create(self, owner: Owner, bundle: SkillBundle) -> SkillRecord:
        """Store a new skill; `ApiError` 429 over the quota."""
        skill_id = new_id("skill_")
        try:
            await self._store.create_skill(
                owner, skill_id, self._version(skill_id, bundle), bundle.archive, self._quota
            )
        except OverQuota as error:
            raise self._over_quota() from error
        audit("skill.create", skill_id, bytes=len(bundle.archive))
        return await self.get(owner, skill_id)

    async def add_version(
        self, owner: Owner, skill_id: str, bundle: SkillBundle, *, is_default: bool
    ) -> SkillVersionRecord:
        """Store the next version of a skill."""
        version = self._version(skill_id, bundle)
        try:
            number = await self._store.add_skill_version(
                owner, skill_id, version, bundle.archive, self._quota, is_default=is_default
            )
        except OverQuota as error:
            raise self._over_quota() from error
        if number is None:
            raise not_found("Skill", skill_id)
        audit("skill.version", skill_id, bytes=len(bundle.archive))
        return await self.get_version(owner, skill_id, str(number))

    async def get(self, owner: Owner, skill_id: str) -> SkillRecord:
        """A skill of the owner; 404 otherwise."""
        record = await self._store.get_skill(owner, skill_id)
        if record is None:
            raise not_found("Skill", skill_id)
        return record

    async def get_version(self, owner: Owner, skill_id: str, version: str | int | None) -> SkillVersionRecord:
        """A version by its number, `latest`, or None for the default; 404 if there is none."""
        skill = await self.get(owner, skill_id)
        number = _number(skill, version)
        record = None if number is None else await self._store.get_skill_version(owner, skill_id, number)
        if record is None:
            raise not_found("Skill version", str(version)[:40])
        return record

    async def set_default(self, owner: Owner, skill_id: str, version: str) -> SkillRecord:
        """Set the default version."""
        wanted = await self.get_version(owner, skill_id, version)
        record = await self._store.set_default_skill_version(owner, skill_id, wanted.version)
        if record is None:
            raise not_found("Skill version", version[:40])
        return record

    async def delete(self, owner: Owner, skill_id: str) -> None:
        """Delete a skill with its versions. Containers keep their copies."""
        if not await self._store.delete_skill(owner, skill_id):
            raise not_found("Skill", skill_id)
        audit("skill.delete", skill_id)

    async def delete_version(self, owner: Owner, skill_id: str, version: str) -> SkillVersionRecord:
        """Delete a version, unless it is the default one; what it was."""
        record = await self.get_version(owner, skill_id, version)
        if not await self._store.delete_skill_version(owner, skill_id, record.version):
            message = (
                "The default version of a skill cannot be deleted: set another default first, or delete the skill."
            )
            raise invalid(message, param="version")
        audit("skill.version.delete", skill_id)
        return record

    async def read(self, owner: Owner, skill_id: str, version: str | None) -> tuple[SkillVersionRecord, bytes]:
        """A version and its ZIP archive."""
        record = await self.get_version(owner, skill_id, version)
        archive = await self._store.read_skill(owner, skill_id, record.version)
        if archive is None:
            raise not_found("Skill version", str(version)[:40])
        return record, archive

    async def resolve(self, owner: Owner, skills: Sequence[Skill], param: str) -> list[ResolvedSkill]:
        """The skills that a request names or brings; `ApiError` 400 that names the one that is not possible.

        Without their archives: many requests that wait for a model would keep many megabytes each.
        """
        found: dict[str, ResolvedSkill] = {}
        packed = unpacked = 0
        for at, skill in enumerate(skills):
            place = f"{param}[{at}]"
            source, loaded = await self._load(owner, skill, place)
            if loaded.name in found:
                raise invalid(f"Two skills have the name '{loaded.name}'.", param=place)
            digest = await asyncio.to_thread(_digest, loaded.bundle)
            found[loaded.name] = ResolvedSkill(loaded.name, loaded.description, digest, source)
            packed += len(loaded.bundle)
            unpacked += await asyncio.to_thread(unpacked_size, loaded.bundle)
            if packed > MAX_CONTAINER_BYTES:
                raise invalid(f"The skills have more than {MAX_CONTAINER_BYTES} bytes.", param=place)
            if unpacked > MAX_CONTAINER_UNPACKED_BYTES:
                message = f"The files of the skills have more than {MAX_CONTAINER_UNPACKED_BYTES} bytes."
                raise invalid(message, param=place)
        return [*found.values()]

    async def read_all(self, owner: Owner, skills: Sequence[Skill], param: str) -> list[ContainerSkill]:
        """The same with their archives, for a container that is created now."""
        return await self.load(owner, await self.resolve(owner, skills, param))

    async def load(self, owner: Owner, skills: Sequence[ResolvedSkill]) -> list[ContainerSkill]:
        """The skills with their archives; `ApiError` if one was deleted meanwhile."""
        return [(await self._load(owner, skill.source, "skills"))[1] for skill in skills]

    async def _load(self, owner: Owner, skill: Skill, param: str) -> tuple[Skill, ContainerSkill]:
        """A skill with its archive, and its source with the number of the version."""
        if isinstance(skill, InlineSkill):
            bundle = await asyncio.to_thread(_read_inline, skill, f"{param}.source.data")
            return skill, ContainerSkill(bundle.name, bundle.description, bundle.archive)
        try:
            version = None if skill.version is None else str(skill.version)
            record, archive = await self.read(owner, skill.skill_id, version)
        except ApiError as error:
            field: Literal["version", "skill_id"] = "version" if "version" in error.message else "skill_id"
            raise invalid(error.message, param=f"{param}.{field}") from error
        source = structs.replace(skill, version=str(record.version))
        return source, ContainerSkill(record.name, record.description, archive)

    def _version(self, skill_id: str, bundle: SkillBundle) -> SkillVersionRecord:
        return SkillVersionRecord(
            id=new_id("skillver_"),
            skill_id=skill_id,
            name=bundle.name,
            description=bundle.description,
            created_at=int(self._clock()),
        )

    def _over_quota(self) -> ApiError:
        quota = self._quota
        message = (
            f"You exceeded your quota of skills: at most {quota.skills} skills, {quota.versions} versions and "
            f"{quota.bytes} bytes may be stored. Delete some."
        )
        return ApiError(429, message, kind="insufficient_quota", code="insufficient_quota", should_retry=False)


def _number(skill: SkillRecord, version: str | int | None) -> int | None:
    if version is None:
        return skill.default_version
    if version == "latest":
        return skill.latest_version
    text = str(version)
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS
    return int(text) if is_number else None


def _digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def _read_inline(skill: InlineSkill, param: str) -> SkillBundle:
    if len(skill.source.data) > MAX_ARCHIVE_BYTES * 4 // 3 + 4:
        raise invalid(f"Invalid skill: it has more than {MAX_ARCHIVE_BYTES} bytes.", param=param)
    try:
        data = base64.b64decode(skill.source.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("Invalid skill: it is not base64.", param=param) from error
    return read_archive(data, param, name=skill.name, description=skill.description)
