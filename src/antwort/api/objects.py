"""API types of conversations, files, models, list pages, deletions, token counts and health."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antwort.api.items import Raw


class ConversationObject(Struct, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class FileObject(Struct, kw_only=True):
    """An uploaded file, without its content."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    status: str


class ModelObject(Struct, kw_only=True):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antwort"


class ModelList(Struct, kw_only=True):
    """All models, without paging."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class Page(Struct, kw_only=True):
    """A page of a list."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemPage(Page, kw_only=True):
    """A page of items. `last_id` is the cursor of the next page."""

    data: list[Raw]


class FilePage(Page, kw_only=True):
    """A page of files."""

    data: list[FileObject]


class Deleted(Struct, kw_only=True):
    """A deleted object."""

    id: str
    object: Literal[
        "response", "conversation.deleted", "file", "container.deleted", "container.file.deleted", "skill.deleted"
    ]
    deleted: bool = True


class InputTokens(Struct, kw_only=True):
    """Token count of an input."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Health(Struct, kw_only=True):
    """Liveness or readiness of the server."""

    status: Literal["ok", "ready"]


# ── skills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
