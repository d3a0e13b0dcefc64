"""Store protocols (responses, conversations, files, containers) and the records that they read and write.

`antwort.storage` implements them; `antwort.testing.store` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct, field

from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.replicas.port import ReplicaStore


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
    first_sequence: int = 0
    """Of a resumed response: the sequence number of the first event since then. No event before it has a higher one."""


class StoredStep(Struct, frozen=True):
    """One step of the checkpoint of a background response: what changed since the step before it."""

    number: int
    """0, 1, 2, …"""
    sequence: int
    """The last event that the step includes."""
    body: bytes


class ClaimedResponse(NamedTuple):
    """An unfinished response that this process has taken over from one that has ended."""

    owner: Owner
    stored: StoredResponse
    cancel_requested: bool
    """It is not to be resumed: a client has cancelled it."""


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


class ContentFault(StoreFault):
    """The contents of files cannot be read or written, and everything else can: an object store that is away."""


class ResponseNotStored(StoreFault):
    """The work on a response has ended, and its end could not be stored yet; the write is retried."""


class ResponseTakenOver(Exception):
    """The process must not go on with the response.

    Another replica works on it, because this process did not answer for too long; or it has ended, or was deleted.
    """


class UnknownCursor(ValueError):
    """A cursor of a `PageQuery` is not in the list: the client's fault. `param` is the field."""

    def __init__(self, param: Literal["after", "before"], value: str) -> None:
        super().__init__(f"No item with id {value!r} found in this list.")
        self.param: Literal["after", "before"] = param
        self.value = value


MAX_EVENT_READ_BYTES = 1024 * 1024
"""Bytes of events that are read at a time, which bounds the memory of a slow follower."""


class ResponseStore(Protocol):
    """Store of responses. An object of another owner is reported as missing.

    A response belongs to the process that began or claimed it: `begin_response`, `finish_response` and `append_events`
    raise `ResponseTakenOver` if that is another one.
    """

    @property
    def replica_id(self) -> str:
        """The id of this process, new for each open store; also a valid label of Kubernetes."""
        ...

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

        In the same transaction `appended` is added to its conversation, if that exists, and `events` are stored. The
        steps of a response that has ended are deleted. One that has ended with another status is not changed.
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

    async def append_events(
        self,
        owner: Owner,
        response_id: str,
        events: Sequence[tuple[int, bytes]],
        steps: Sequence[StoredStep] = (),
    ) -> None:
        """Store events of a background response, (sequence number, SSE frame), and steps of its checkpoint.

        In one transaction, and durable when this returns. Does nothing if the response was deleted.
        """
        ...

    async def read_events(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        """Events behind a sequence number, in order; -1 for all.

        Returns about `MAX_EVENT_READ_BYTES`, and at least one event; call it again for more.
        """
        ...

    async def is_unfinished(self, owner: Owner, response_id: str) -> bool:
        """Whether a response is `queued` or `in_progress`; False if it is missing."""
        ...

    async def read_steps(self, owner: Owner, response_id: str) -> list[StoredStep]:
        """The steps of the checkpoint, in order. None are left once the response has ended."""
        ...

    async def resume_response(self, owner: Owner, stored: StoredResponse, *, after: int | None = None) -> int:
        """Store that a background response is resumed; the sequence number of its next event.

        Deletes its events behind the sequence number `after`, if that is given. The next number is above those that
        were ever stored, and is the `first_sequence` from now on. The state and `resumed` are those of `stored`; the
        items and the steps stay. `ResponseTakenOver` if it has ended or was deleted.
        """
        ...

    async def claim_responses(self, limit: int, excluded: Sequence[str] = ()) -> list[ClaimedResponse]:
        """Take over unfinished responses of all owners, oldest first, whose process has ended, except some ids.

        From then on they belong to this process. Several processes that call this at once get different ones. After a
        `StoreFault` the next call also returns what was taken over nevertheless.
        """
        ...

    async def request_cancel(self, owner: Owner, response_id: str) -> str | None:
        """Store that an unfinished response is to be cancelled; the id of its process, None if it is not unfinished."""
        ...

    async def own_unfinished(self) -> dict[str, bool]:
        """The ids of this process's unfinished responses, and whether they are to be cancelled."""
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

    async def delete_orphans(self) -> int:
        """Delete contents that killed processes left without a record; their number. To be called periodically.

        Each call looks at a bounded number of contents, and the next one continues there.
        """
        ...


AUTO_CONTAINER = "antwort:auto"
"""The name of a container that a tool created for itself. The name is the eviction policy: when a tenant is over its
quota, the least recently used idle container of this name expires early, and no other. A client that gives its own
container this name chooses that policy for it."""


SEVERAL_REPLICAS = "*"
"""`ContainerRecord.used_by` of a container that several replicas used within a short time."""


class SandboxRef(Struct, frozen=True):
    """A sandbox of a container: the replica that holds it, and its id in logs."""

    replica: str
    sandbox: str


class ReplicaUse(Struct, frozen=True):
    """A use of a container by a replica. A use by another replica counts for as long as it is not before `since`."""

    replica: str
    since: float


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
    replica: str | None = None
    """The replica whose process holds its sandbox; None without a sandbox."""
    used_by: str | None = None
    """The replica that used it last, or `SEVERAL_REPLICAS`: decides which replica may evict it at once."""

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

    def __init__(self, what: Literal["containers", "memory", "disk", "skills"]) -> None:
        super().__init__(f"over the quota of {what}")
        self.what: Literal["containers", "memory", "disk", "skills"] = what


class SkillQuota(Struct, frozen=True):
    """The most that one owner may store."""

    skills: int
    versions: int
    """Of all skills together."""
    bytes: int
    """Of the archives of all versions."""


class SkillRecord(Struct, frozen=True, kw_only=True):
    """A skill. Name and description are those of its default version."""

    id: str
    created_at: int
    default_version: int
    latest_version: int
    name: str
    description: str


class SkillVersionRecord(Struct, frozen=True, kw_only=True):
    """A version of a skill, without its archive."""

    id: str
    skill_id: str
    name: str
    description: str
    created_at: int
    version: int = 1
    bytes: int = 0


class ContainerSkill(Struct, frozen=True):
    """A skill of a container, with its ZIP archive."""

    name: str
    description: str
    bundle: bytes = b""


class SkillStore(Protocol):
    """Store of skills with their versions, and of the skills of containers, which are copies."""

    async def create_skill(
        self, owner: Owner, skill_id: str, version: SkillVersionRecord, bundle: bytes, most: SkillQuota
    ) -> None:
        """Store a skill with its first version, which is the default; `OverQuota`."""
        ...

    async def add_skill_version(
        self,
        owner: Owner,
        skill_id: str,
        version: SkillVersionRecord,
        bundle: bytes,
        most: SkillQuota,
        *,
        is_default: bool,
    ) -> int | None:
        """Store the next version; its number, or None if there is no such skill. A number is not used twice."""
        ...

    async def get_skill(self, owner: Owner, skill_id: str) -> SkillRecord | None: ...

    async def list_skills(self, owner: Owner, query: PageQuery) -> RecordPage: ...

    async def set_default_skill_version(self, owner: Owner, skill_id: str, version: int) -> SkillRecord | None: ...

    async def delete_skill(self, owner: Owner, skill_id: str) -> bool: ...

    async def get_skill_version(self, owner: Owner, skill_id: str, version: int) -> SkillVersionRecord | None: ...

    async def list_skill_versions(self, owner: Owner, skill_id: str, query: PageQuery) -> RecordPage | None: ...

    async def delete_skill_version(self, owner: Owner, skill_id: str, version: int) -> bool:
        """Delete a version; False if there is none, or if it is the default one."""
        ...

    async def read_skill(self, owner: Owner, skill_id: str, version: int) -> bytes | None:
        """The ZIP archive of a version."""
        ...

    async def set_container_skills(self, owner: Owner, container_id: str, bundles: Sequence[ContainerSkill]) -> None:
        """Replace the skills of a container. They are deleted with it, and when it expires."""
        ...

    async def container_skills(
        self, owner: Owner, container_id: str, *, with_bundles: bool = False
    ) -> list[ContainerSkill]: ...


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

    async def touch_container(
        self, owner: Owner, container_id: str, now: float, use: ReplicaUse
    ) -> ContainerRecord | None:
        """Restart the idle time of a container, unless it has expired; its record, None if it is missing.

        `used_by` becomes the replica, or `SEVERAL_REPLICAS` if another one has used it since `use.since`.
        """
        ...

    async def set_sandbox(self, owner: Owner, container_id: str, sandbox: SandboxRef) -> ContainerRecord | None:
        """Store the new sandbox of a container, and drop its file records; the record afterwards.

        A sandbox of another replica is not replaced: of two that set one at once, the first wins. None if the
        container is missing or has expired.
        """
        ...

    async def mark_sandbox_lost(self, owner: Owner, container_id: str, sandbox: SandboxRef, why: str) -> bool:
        """Store the loss of this sandbox, and drop its file records. False if the container does not have it."""
        ...

    async def mark_sandboxes_lost(self, replicas: Sequence[str], why: str) -> list[tuple[Owner, ContainerRecord]]:
        """The same for all sandboxes of these replicas, of all owners; the changed containers."""
        ...

    async def sandbox_replicas(self) -> list[str]:
        """The replicas that hold sandboxes; an empty id for sandboxes of an earlier version."""
        ...

    async def held_sandboxes(self, replica: str) -> set[tuple[str, str, str]]:
        """The sandboxes that a replica holds: tenant, container id and sandbox."""
        ...

    async def reserve_disk(self, owner: Owner, container_id: str, size: int, most: int, now: float) -> bool:
        """Count an upload of `size` bytes in progress as disk use of the container, until its files are stored.

        False, without a change, where the owner's disk use would exceed `most`. Zero bytes end the reservation.
        """
        ...

    async def delete_container(self, owner: Owner, container_id: str) -> bool:
        """Delete it and its file records; whether it existed."""
        ...

    async def container_use(self, owner: Owner, now: float) -> ContainerUse: ...

    async def expire_containers(self, now: float) -> list[tuple[Owner, ContainerRecord]]:
        """Mark the idle containers of all owners as expired; those that were not marked before."""
        ...

    async def expire_least_recently_used(
        self, owner: Owner, name: str, now: float, use: ReplicaUse, excluded: Sequence[str] = ()
    ) -> ContainerRecord | None:
        """Expire the least recently used container of this name; None if there is none.

        Not one of `excluded`, not one that was used after `now`, when the caller computed `excluded`, and not one that
        another replica has used since `use.since`.
        """
        ...

    async def has_live_containers(self, owner: Owner, name: str, now: float, excluded: Sequence[str]) -> bool:
        """Whether there is a running container of this name that is not one of `excluded`."""
        ...

    async def forget_containers(self, before: float) -> int:
        """Delete the containers of all owners that expired before this time; their number."""
        ...

    async def change_container_files(
        self,
        owner: Owner,
        container_id: str,
        *,
        put: Sequence[ContainerFileRecord],
        dropped: Sequence[str] = (),
        sandbox: SandboxRef | None = None,
    ) -> bool:
        """Drop file records by id, and put others, each of which replaces the record of its path. Atomic.

        Ends the reservation of disk. False, without a change, if the container is missing, has expired, or has another
        sandbox than the given one.
        """
        ...

    async def list_container_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage | None: ...

    async def get_container_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord | None: ...


class Store(ResponseStore, ConversationStore, FileStore, ContainerStore, SkillStore, Protocol):
    """The complete store."""

    @property
    def replicas(self) -> ReplicaStore | None:
        """The other processes that have the store open; None if there is only this one."""
        ...

    async def check_writable(self) -> None:
        """Do a write that changes nothing; `StoreFault` where it fails."""
        ...

    async def aclose(self) -> None:
        """Finish pending writes and close."""
        ...
