"""Store protocols (responses, conversations, files, containers) and the records that they read and write.

`antwort.storage` implements them; `antwort.testing.store` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from antwort.api.items import Raw
from antwort.api.responses import Response


class Owner(Struct, frozen=True):
    """The tenant and API key that an object belongs to. Every look-up takes one."""

    tenant: str
    key_id: str


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response and its request.

    `input` holds the request's own items, each with an id; `request` the rest, without secrets.
    """

    response: Response
    input: list[Raw]
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    had_secrets: bool = False
    """The request had tool secrets, which are not stored: the response cannot be resumed."""
    resumed: int = 0
    """How often the response was resumed after a restart."""


class RecordPage(Struct, frozen=True):
    """One page of a list."""

    data: list[Any]
    has_more: bool


class PageQuery(Struct, frozen=True):
    """Pagination: the entries behind the cursor `after`, or the nearest ones in front of `before`, in `order`.

    A store raises `UnknownCursor` where the list has no such id.
    """

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None


class StoreFault(Exception):
    """The store failed: a full disk, a locked or lost database. Worth a retry later."""


class ResponseNotStored(StoreFault):
    """The work on a response has ended, and its end could not be stored yet; the write is retried."""


class UnknownCursor(ValueError):
    """A cursor of a `PageQuery` is not in the list: the client's fault. `param` is the field."""

    def __init__(self, param: Literal["after", "before"], value: str) -> None:
        super().__init__(f"No item with id {value!r} found in this list.")
        self.param: Literal["after", "before"] = param
        self.value = value


MAX_EVENT_READ_BYTES = 1024 * 1024
"""Bytes of events that are read at a time, which bounds the memory of a slow follower."""


class ResponseStore(Protocol):
    """Store of responses. An object of another owner is reported as missing."""

    async def begin_response(self, owner: Owner, stored: StoredResponse) -> None:
        """Store a response that has begun. Durable when this returns. A response of the same id is replaced."""
        ...

    async def finish_response(
        self,
        owner: Owner,
        response: Response,
        *,
        appended: Sequence[Raw] = (),
        events: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Update a response, usually with its end. Durable when this returns. A deleted response stays deleted.

        In the same transaction `appended` is added to its conversation, if that exists, and `events` are stored.
        """
        ...

    async def get_response(self, owner: Owner, response_id: str) -> StoredResponse | None: ...

    async def delete_response(self, owner: Owner, response_id: str) -> bool:
        """Delete it with its input and events; whether it existed."""
        ...

    async def history(self, owner: Owner, response_id: str) -> list[Raw] | None:
        """Input and output of the `previous_response_id` chain that ends here, oldest first; None if it is missing.

        A chain begins behind its last deleted response.
        """
        ...

    async def input_items(self, owner: Owner, response_id: str, query: PageQuery) -> RecordPage | None: ...

    async def find_items(self, owner: Owner, ids: Sequence[str]) -> dict[str, Raw]:
        """Items of the owner's responses and conversations, by id; missing ones are left out.

        Of several items with one id the newest, and a conversation's before a response's. References do not count.
        """
        ...

    async def append_events(self, owner: Owner, response_id: str, events: Sequence[tuple[int, bytes]]) -> None:
        """Store events of a background response: (sequence number, SSE frame). Does nothing if it was deleted."""
        ...

    async def read_events(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        """Events behind a sequence number, in order; -1 for all.

        Returns about `MAX_EVENT_READ_BYTES`, and at least one event; call it again for more.
        """
        ...

    async def unfinished_responses(self) -> list[tuple[Owner, StoredResponse]]:
        """Responses that are `queued` or `in_progress`: at start, those that an earlier process left."""
        ...


class ConversationRecord(Struct, frozen=True):
    """A conversation, without its items."""

    id: str
    created_at: int
    metadata: dict[str, str]


class ConversationStore(Protocol):
    """Store of conversations, with their items in the order of arrival."""

    async def create_conversation(self, owner: Owner, record: ConversationRecord, items: Sequence[Raw]) -> None: ...

    async def get_conversation(self, owner: Owner, conversation_id: str) -> ConversationRecord | None: ...

    async def update_conversation(
        self, owner: Owner, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationRecord | None: ...

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> bool: ...

    async def add_items(self, owner: Owner, conversation_id: str, items: Sequence[Raw]) -> bool:
        """Append items; False if there is no such conversation. Items that it already has, by id, are unchanged."""
        ...

    async def list_items(self, owner: Owner, conversation_id: str, query: PageQuery) -> RecordPage | None: ...

    async def all_items(self, owner: Owner, conversation_id: str) -> list[Raw] | None: ...

    async def get_item(self, owner: Owner, conversation_id: str, item_id: str) -> dict[str, Any] | None: ...

    async def delete_item(self, owner: Owner, conversation_id: str, item_id: str) -> bool: ...


class FileRecord(Struct, frozen=True, kw_only=True):
    """An uploaded file, without its content."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    status: str = "processed"


class FileStore(Protocol):
    """Store of uploaded files. Content is read and written in chunks, never as a whole.

    A file past its `expires_at` is missing, whether or not it was deleted yet.
    """

    async def create_file(self, owner: Owner, record: FileRecord, content: AsyncIterator[bytes]) -> FileRecord:
        """Store content and record; returns the record with the real size. A failed upload leaves nothing."""
        ...

    async def get_file(self, owner: Owner, file_id: str) -> FileRecord | None: ...

    async def list_files(self, owner: Owner, query: PageQuery, purpose: str | None = None) -> RecordPage: ...

    async def read_file(self, owner: Owner, file_id: str) -> AsyncIterator[bytes] | None: ...

    async def delete_file(self, owner: Owner, file_id: str) -> bool: ...

    async def delete_expired_files(self) -> int:
        """Delete the expired files of all owners; their number. To be called periodically."""
        ...


AUTO_CONTAINER = "antwort:auto"
"""The name of a container that a tool created for itself. The name is the eviction policy: when a tenant is over its
quota, the least recently used idle container of this name expires early, and no other. A client that gives its own
container this name chooses that policy for it."""


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """A container, without its files. One that was idle for `expires_after` seconds has expired, swept or not."""

    id: str
    name: str
    created_at: int
    last_active_at: float
    expires_after: float
    memory_limit: str
    memory: int
    """The memory limit in bytes."""
    status: Literal["running", "expired"] = "running"
    sandbox: str | None = None
    """The id of its sandbox in logs; None before its first use, and after the loss of a sandbox."""
    lost: str | None = None
    """Why its earlier content is gone, if it ever lost a sandbox."""

    @property
    def is_auto(self) -> bool:
        """Whether it may be evicted: see `AUTO_CONTAINER`."""
        return self.name == AUTO_CONTAINER


class ContainerFileRecord(Struct, frozen=True, kw_only=True):
    """A file in a container, as of the last sync. A changed content is a new file with a new id."""

    id: str
    container_id: str
    path: str
    """Relative to `/mnt/data`."""
    bytes: int
    created_at: int
    source: Literal["user", "assistant"]
    modified: int
    """Nanoseconds, by the clock of the sandbox: detects that it was written again."""
    file_id: str | None = None
    """The uploaded file that was copied to this path, if any."""


class ContainerUse(Struct, frozen=True):
    """The usage or quota of an owner's running containers: number, memory, bytes of files."""

    containers: int
    memory: int
    disk: int


class OverQuota(Exception):
    """An owner would exceed the quota `what`: the client's fault."""

    def __init__(self, what: Literal["containers", "memory", "disk"]) -> None:
        super().__init__(f"over the quota of {what}")
        self.what: Literal["containers", "memory", "disk"] = what


class ContainerStore(Protocol):
    """Store of container records and of the records of their files; not of file contents.

    `now` decides which containers have expired. A container that `expire_containers` has
    returned keeps its file records and does not change any more; it is only deleted or forgotten.
    """

    async def create_container(self, owner: Owner, record: ContainerRecord, most: ContainerUse, now: float) -> None:
        """Store a container; `OverQuota` where the owner's running containers would exceed `most` (except its disk).

        Atomic: two concurrent calls cannot both take the last slot.
        """
        ...

    async def get_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None: ...

    async def find_containers(self, owner: Owner, ids: Sequence[str], now: float) -> dict[str, ContainerRecord]:
        """The owner's existing containers of these ids."""
        ...

    async def list_containers(
        self, owner: Owner, query: PageQuery, now: float, name: str | None = None
    ) -> RecordPage: ...

    async def touch_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None:
        """Restart the idle time of a container, unless it has expired; its record, None if it is missing."""
        ...

    async def set_sandbox(self, owner: Owner, container_id: str, sandbox: str) -> bool:
        """Store the new sandbox of a container, and drop its file records. False if it is missing or has expired."""
        ...

    async def mark_sandbox_lost(self, owner: Owner, container_id: str, why: str) -> None:
        """Store the loss of its sandbox, and drop its file records."""
        ...

    async def mark_all_sandboxes_lost(self, why: str) -> list[tuple[Owner, ContainerRecord]]:
        """The same for the containers of all owners, at start; the changed containers."""
        ...

    async def delete_container(self, owner: Owner, container_id: str) -> bool:
        """Delete it and its file records; whether it existed."""
        ...

    async def container_use(self, owner: Owner, now: float) -> ContainerUse: ...

    async def expire_containers(self, now: float) -> list[tuple[Owner, ContainerRecord]]:
        """Mark the idle containers of all owners as expired; those that were not marked before."""
        ...

    async def expire_least_recently_used(
        self, owner: Owner, name: str, now: float, excluded: Sequence[str] = ()
    ) -> ContainerRecord | None:
        """Expire the least recently used container of this name; None if there is none.

        Not one of `excluded`, and not one that was used after `now`, when the caller computed `excluded`.
        """
        ...

    async def forget_containers(self, before: float) -> int:
        """Delete the containers of all owners that expired before this time; their number."""
        ...

    async def change_container_files(
        self, owner: Owner, container_id: str, *, put: Sequence[ContainerFileRecord], dropped: Sequence[str] = ()
    ) -> bool:
        """Drop file records by id, and put others, each of which replaces the record of its path. Atomic.

        False if the container is missing or has expired.
        """
        ...

    async def list_container_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage | None: ...

    async def get_container_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord | None: ...


class Store(ResponseStore, ConversationStore, FileStore, ContainerStore, Protocol):
    """The complete store."""

    async def check_writable(self) -> None:
        """Do a write that changes nothing; `StoreFault` where it fails."""
        ...

    async def aclose(self) -> None:
        """Finish pending writes and close."""
        ...
