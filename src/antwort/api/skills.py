"""API types of /v1/skills."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antwort.api.objects import Page


class UpdateSkill(Struct, forbid_unknown_fields=True):
    """`POST /v1/skills/{id}`."""

    default_version: str


class SkillObject(Struct, kw_only=True):
    """A skill. Name and description are those of its default version."""

    id: str
    object: Literal["skill"] = "skill"
    created_at: int
    default_version: str
    latest_version: str
    name: str
    description: str


class SkillPage(Page, kw_only=True):
    """A page of skills."""

    data: list[SkillObject]


class SkillVersionObject(Struct, kw_only=True):
    """A version of a skill."""

    id: str
    object: Literal["skill.version"] = "skill.version"
    created_at: int
    skill_id: str
    version: str
    name: str
    description: str


class SkillVersionPage(Page, kw_only=True):
    """A page of versions."""

    data: list[SkillVersionObject]


class DeletedSkillVersion(Struct, kw_only=True):
    """A version that was deleted."""

    id: str
    object: Literal["skill.version.deleted"] = "skill.version.deleted"
    deleted: bool = True
    version: str
