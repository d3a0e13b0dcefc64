"""What the server tells of everything that is no response: conversations, files, models, pages, and what is gone."""

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
    """A model that requests may name."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antwort"


class ModelList(Struct, kw_only=True):
    """All of them: there are too few for pages."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class Page(Struct, kw_only=True):
    """Some of a list."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemPage(Page, kw_only=True):
    """Some of a list of items. `last_id` is what to ask for more with."""

    data: list[Raw]


class FilePage(Page, kw_only=True):
    """Some of the files."""

    data: list[FileObject]


class Deleted(Struct, kw_only=True):
    """Something is gone."""

    id: str
    object: Literal["response", "conversation.deleted", "file", "container.deleted", "container.file.deleted"]
    deleted: bool = True


class InputTokens(Struct, kw_only=True):
    """How long an input is."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Health(Struct, kw_only=True):
    """How the server is."""

    status: Literal["ok", "ready"]
