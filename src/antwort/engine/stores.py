"""Store protocols (responses, conversations, files, containers) and the records that they read and write.

`antwort.storage` implements them; `antwort.testing.store` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from antwort.api.responses import Response


class Owner(Struct, frozen=True):
    """Whom an object belongs to. Every look-up takes one."""

    tenant: str
    key_id: str


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response and its request.

    `input` holds the request's own items, each with an id; `request` the rest, without secrets.
    """

    response: Response
    input: list[dict[str, Any]]
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    had_secrets: bool = False
    """The request had tool secrets, which are not stored: the response cannot be resumed."""
    resumed: int = 0
    """How often the response was resumed after a restart."""


class Page(Struct, frozen=True):
    """Some of a list, and whether there is more."""

    data: list[Any]
    has_more: bool


class PageQuery(Struct, frozen=True):
    """Which part of a list: what follows `after`, or the nearest that precede `before`, as `order` has them.

    A store answers `UnknownCursor` where the list has no such id.
    """

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None


class StoreFault(Exception):
    """The store cannot do its work now: a full disk, a locked or lost database. Worth another try later."""


class ResponseNotStored(StoreFault):
    """The work on a response has ended, and its end could not be stored yet; the write is retried."""


class UnknownCursor(ValueError):
    """A `PageQuery` names a place that the list does not have: the caller's fault. Says which of its fields."""

    def __init__(self, param: Literal["after", "before"], value: str) -> None:
        super().__init__(f"No item with id {value!r} found in this list.")
        self.param: Literal["after", "before"] = param
        self.value = value


EVENTS_AT_ONCE = 1024 * 1024
"""Bytes of events that are read at a time: a follower who does not read on must not cost memory."""


class ResponseStore(Protocol):
    """Where responses live. What is not the owner's is not there, and nothing tells the two apart."""

    async def begin_response(self, owner: Owner, stored: StoredResponse) -> None:
        """Write a response that has just begun. Durable when this returns. Begun again, it starts anew."""
        ...

    async def finish_response(
        self,
        owner: Owner,
        response: Response,
        *,
        appended: Sequence[dict[str, Any]] = (),
        events: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Write how it stands now, usually how it ended. Durable when this returns. A deleted one stays deleted.

        `appended` goes to its conversation, if that is still there, and `events` are kept as `append_events` keeps
        them: with the response or not at all.
        """
        ...

    async def get_response(self, owner: Owner, response_id: str) -> StoredResponse | None: ...

    async def delete_response(self, owner: Owner, response_id: str) -> bool:
        """Forget it with its input and events; whether it was there."""
        ...

    async def history(self, owner: Owner, response_id: str) -> list[dict[str, Any]] | None:
        """Input and output of the chain that ends with this response, oldest first; None where it is not there.

        A chain with a deleted response in it begins behind that one.
        """
        ...

    async def input_items(self, owner: Owner, response_id: str, query: PageQuery) -> Page | None: ...

    async def find_items(self, owner: Owner, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Items of the owner's responses and conversations, by id; those that are not there are left out.

        Of several with one id the newest, and a conversation's rather than a response's. References are no items.
        """
        ...

    async def append_events(self, owner: Owner, response_id: str, events: Sequence[tuple[int, bytes]]) -> None:
        """Keep the events of a background response: (sequence number, SSE frame). Nothing, where it was deleted."""
        ...

    async def read_events(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        """Those with a higher sequence number, in order; -1 for all.

        As many as come to about `EVENTS_AT_ONCE` bytes, and at least one: for more, ask again behind the last.
        """
        ...

    async def unfinished(self) -> list[tuple[Owner, StoredResponse]]:
        """What is `queued` or `in_progress`: asked at start, it is what a process that is gone has left."""
        ...


class ConversationRecord(Struct, frozen=True):
    """A conversation, without its items."""

    id: str
    created_at: int
    metadata: dict[str, str]


class ConversationStore(Protocol):
    """Where conversations live, and their items in the order of arrival."""

    async def create_conversation(
        self, owner: Owner, record: ConversationRecord, items: Sequence[dict[str, Any]]
    ) -> None: ...

    async def get_conversation(self, owner: Owner, conversation_id: str) -> ConversationRecord | None: ...

    async def update_conversation(
        self, owner: Owner, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationRecord | None: ...

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> bool: ...

    async def add_items(self, owner: Owner, conversation_id: str, items: Sequence[dict[str, Any]]) -> bool:
        """Append; False where there is no such conversation. What it already has, by id, stays as it is."""
        ...

    async def list_items(self, owner: Owner, conversation_id: str, query: PageQuery) -> Page | None: ...

    async def all_items(self, owner: Owner, conversation_id: str) -> list[dict[str, Any]] | None: ...

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
    """Where uploaded files live. Content goes in and out in chunks, never whole through memory.

    A file whose `expires_at` has come is gone, whether or not it has been swept.
    """

    async def create_file(self, owner: Owner, record: FileRecord, content: AsyncIterator[bytes]) -> FileRecord:
        """Write content and record; the record comes back with the real size. Nothing is left of one that fails."""
        ...

    async def get_file(self, owner: Owner, file_id: str) -> FileRecord | None: ...

    async def list_files(self, owner: Owner, query: PageQuery, purpose: str | None = None) -> Page: ...

    async def read_file(self, owner: Owner, file_id: str) -> AsyncIterator[bytes] | None: ...

    async def delete_file(self, owner: Owner, file_id: str) -> bool: ...

    async def sweep_files(self) -> int:
        """Let go of what expired files take up, everybody's; how many they were. To be called now and then."""
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
    """Bytes that the limit stands for."""
    status: Literal["running", "expired"] = "running"
    sandbox: str | None = None
    """The sandbox that it has now, as logs call it; None before its first use, and when it has lost one."""
    lost: str | None = None
    """Why its earlier content is gone, if it ever lost a sandbox."""

    @property
    def is_auto(self) -> bool:
        """Whether it may be evicted: see `AUTO_CONTAINER`."""
        return self.name == AUTO_CONTAINER


class ContainerFileRecord(Struct, frozen=True, kw_only=True):
    """A file in a container, as it was when it was last looked at. Another content is another file, with another id."""

    id: str
    container_id: str
    path: str
    """Below `/mnt/data`, without a slash in front."""
    bytes: int
    created_at: int
    source: Literal["user", "assistant"]
    modified: int
    """Nanoseconds, by the clock of the sandbox: to see that it was written again."""
    file_id: str | None = None
    """The uploaded file that was copied to this place, if one was."""


class ContainerUse(Struct, frozen=True):
    """What an owner's running containers take: how many, their memory, and the bytes of their files."""

    containers: int
    memory: int
    disk: int


class OverQuota(Exception):
    """An owner would have more than is allowed: the caller's to mend. Says of what."""

    def __init__(self, what: Literal["containers", "memory", "disk"]) -> None:
        super().__init__(f"over the quota of {what}")
        self.what: Literal["containers", "memory", "disk"] = what


class ContainerStore(Protocol):
    """Where containers are written down, and which files are in them; never what is in the files.

    `now` decides on what has expired. One that `expire_containers` has told of keeps the
    records of its files and changes no more; it is only deleted or forgotten.
    """

    async def create_container(self, owner: Owner, record: ContainerRecord, most: ContainerUse, now: float) -> None:
        """Write it; `OverQuota` where the owner's running ones would then be more than `most` (disk is not looked at).

        Two that come at once cannot both be the last.
        """
        ...

    async def get_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None: ...

    async def find_containers(self, owner: Owner, ids: Sequence[str], now: float) -> dict[str, ContainerRecord]:
        """Those of the owner's that there are, by id."""
        ...

    async def list_containers(self, owner: Owner, query: PageQuery, now: float, name: str | None = None) -> Page: ...

    async def touch_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None:
        """It is being used: idleness begins anew, unless it has expired. As it is then; None where there is none."""
        ...

    async def give_sandbox(self, owner: Owner, container_id: str, sandbox: str) -> bool:
        """It has this sandbox now, and no files. False where there is no such container, or it was told of."""
        ...

    async def lose_sandbox(self, owner: Owner, container_id: str, why: str) -> None:
        """What was in it is gone, with the records of its files."""
        ...

    async def lose_sandboxes(self, why: str) -> list[tuple[Owner, ContainerRecord]]:
        """Everybody's: for a start, when those of the process before are gone. The containers, as they are now."""
        ...

    async def delete_container(self, owner: Owner, container_id: str) -> bool:
        """Forget it and its files; whether it was there."""
        ...

    async def container_use(self, owner: Owner, now: float) -> ContainerUse: ...

    async def expire_containers(self, now: float) -> list[tuple[Owner, ContainerRecord]]:
        """Write down which of everybody's have expired since it was last asked; these are they."""
        ...

    async def expire_idlest(
        self, owner: Owner, name: str, now: float, spared: Sequence[str] = ()
    ) -> ContainerRecord | None:
        """Let the one of this name expire now that was not used for longest; None without one.

        None of `spared`, and none that was used after `now`: whoever asks has looked then for what is to be spared.
        """
        ...

    async def forget_containers(self, before: float) -> int:
        """Delete everybody's that expired before this moment; how many they were."""
        ...

    async def change_container_files(
        self, owner: Owner, container_id: str, *, put: Sequence[ContainerFileRecord], dropped: Sequence[str] = ()
    ) -> bool:
        """Drop some by id and add others, each in the place of the one that had its path; all of it or nothing.

        False where there is no such container, or it was told of as expired.
        """
        ...

    async def list_container_files(self, owner: Owner, container_id: str, query: PageQuery) -> Page | None: ...

    async def get_container_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord | None: ...


class Store(ResponseStore, ConversationStore, FileStore, ContainerStore, Protocol):
    """All of it."""

    async def try_to_write(self) -> None:
        """Write something that changes nothing; `StoreFault` where nothing could be written."""
        ...

    async def aclose(self) -> None:
        """Finish what is under way and let go."""
        ...
