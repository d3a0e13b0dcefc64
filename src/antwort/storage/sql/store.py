"""SqlStore: a `Store` of one SQL database, and blobs for file contents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from antwort.api.ids import new_id
from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.replicas.port import ReplicaStore
from antwort.engine.stores import (
    ClaimedResponse,
    ContainerFileRecord,
    ContainerRecord,
    ContainerSkill,
    ContainerUse,
    ContentFault,
    ConversationRecord,
    FileRecord,
    Owner,
    PageQuery,
    RecordPage,
    ReplicaUse,
    SandboxRef,
    SkillQuota,
    SkillRecord,
    SkillVersionRecord,
    StoredResponse,
    StoredStep,
    StoreFault,
)
from antwort.storage.blobs import BlobStore
from antwort.storage.sql import containers, conversations, files, identity, replicas, responses, skills
from antwort.storage.sql.columns import item_rows
from antwort.storage.sql.database import Committed, Database
from antwort.storage.sql.rows import Rows, TenantRows
from antwort.telemetry import log

_SWEEP_SIZE = 10_000
"""Blobs that one call of `delete_orphans` looks at."""
_REMOVAL_TIMEOUT = 5.0
"""Seconds that a deletion waits for its blobs, and the end of the store for all of them."""


class SqlStore:
    """A `Store`; `SqliteStore.open` and `PostgresStore.open` create one."""

    def __init__(self, database: Database, blobs: BlobStore, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._replica_id = new_id("rep_")
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsure_claims: set[str] = set()
        """Ids of responses that a failed claim may have claimed: nothing works on them."""
        self._unreadable: set[str] = set()
        """Ids of responses that this process does not claim, because it cannot decode them."""

    @property
    def replica_id(self) -> str:
        return self._replica_id

    @property
    def replicas(self) -> ReplicaStore | None:
        return None

    async def check_writable(self) -> None:
        await self._database.check_writable()

    async def aclose(self) -> None:
        """Wait for running operations and close the files and connections."""
        await asyncio.to_thread(self._database.close)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_REMOVAL_TIMEOUT)
        await self._blobs.aclose()

    async def claim_blobs(self) -> str:
        """At start: identifies where the blobs are; `UnusableStore` if they belong to another database."""
        return await self._blobs.claim(await self._database.read_all_tenants(identity.get), self._known_blobs)

    # ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin_response(self, owner: Owner, stored: StoredResponse) -> None:
        await self._database.write(owner, responses.begin_change(stored, self._replica_id))

    async def finish_response(
        self,
        owner: Owner,
        response: Response,
        *,
        appended: Sequence[Raw] = (),
        events: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        change = responses.finish_change(response, appended, list(events), self._replica_id)
        await self._database.write(owner, change)

    async def get_response(self, owner: Owner, response_id: str) -> StoredResponse | None:
        return await self._database.read(owner, lambda rows: responses.get(rows, response_id))

    async def delete_response(self, owner: Owner, response_id: str) -> bool:
        return await self._database.write(owner, lambda rows: rows.delete("responses", response_id))

    async def history(self, owner: Owner, response_id: str) -> list[Raw] | None:
        return await self._database.read(owner, lambda rows: responses.history(rows, response_id))

    async def input_items(self, owner: Owner, response_id: str, query: PageQuery) -> RecordPage | None:
        return await self._database.read(owner, lambda rows: responses.input_page(rows, response_id, query))

    async def find_items(self, owner: Owner, ids: Sequence[str]) -> dict[str, Raw]:
        return await self._database.read(owner, lambda rows: responses.find_items(rows, ids))

    async def append_events(
        self,
        owner: Owner,
        response_id: str,
        events: Sequence[tuple[int, bytes]],
        steps: Sequence[StoredStep] = (),
    ) -> None:
        frames, new_steps, replica = list(events), list(steps), self._replica_id
        await self._database.write(
            owner, lambda rows: responses.append_events(rows, response_id, frames, new_steps, replica)
        )

    async def read_events(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        return await self._database.read(owner, lambda rows: responses.read_events(rows, response_id, after))

    async def is_unfinished(self, owner: Owner, response_id: str) -> bool:
        return await self._database.read(owner, lambda rows: responses.is_unfinished(rows, response_id))

    async def read_steps(self, owner: Owner, response_id: str) -> list[StoredStep]:
        return await self._database.read(owner, lambda rows: responses.read_steps(rows, response_id))

    async def resume_response(self, owner: Owner, stored: StoredResponse, *, after: int | None = None) -> int:
        return await self._database.write(owner, responses.resume_change(stored, after, self._replica_id))

    async def claim_responses(self, limit: int, excluded: Sequence[str] = ()) -> list[ClaimedResponse]:
        running, before = list(excluded), list(self._unsure_claims)
        while True:
            outcome = await self._claim(limit, [*running, *self._unreadable], before)
            for identifier, error in outcome.unreadable.items():
                log.error("response_unreadable", response=identifier, reason=str(error))
            self._unreadable.update(outcome.unreadable)
            if outcome.claimed or not outcome.unreadable:  # others may be behind those
                return outcome.claimed

    async def _claim(
        self, limit: int, excluded: Sequence[str], claimed_before: Sequence[str]
    ) -> replicas.ResponseClaims:
        outcome = replicas.ResponseClaims()

        def claim(rows: Rows) -> None:
            nonlocal outcome
            outcome = replicas.claim(rows, self._replica_id, limit, excluded=excluded, claimed_before=claimed_before)

        try:
            await self._database.write_all_tenants(claim)
        except StoreFault:  # perhaps of the commit, and it was committed
            self._unsure_claims.update(one.stored.response.id for one in outcome.claimed)
            raise
        self._unsure_claims.difference_update(one.stored.response.id for one in outcome.claimed)
        return outcome

    async def request_cancel(self, owner: Owner, response_id: str) -> str | None:
        return await self._database.write(owner, lambda rows: replicas.request_cancel(rows, response_id))

    async def own_unfinished(self) -> dict[str, bool]:
        return await self._database.read_all_tenants(lambda rows: replicas.own_unfinished(rows, self._replica_id))

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_conversation(self, owner: Owner, record: ConversationRecord, items: Sequence[Raw]) -> None:
        await self._database.write(owner, conversations.create_change(record, items))

    async def get_conversation(self, owner: Owner, conversation_id: str) -> ConversationRecord | None:
        return await self._database.read(owner, lambda rows: conversations.get(rows, conversation_id))

    async def update_conversation(
        self, owner: Owner, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationRecord | None:
        body = msgspec.json.encode(metadata)
        return await self._database.write(owner, lambda rows: conversations.update(rows, conversation_id, body))

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> bool:
        return await self._database.write(owner, lambda rows: rows.delete("conversations", conversation_id))

    async def add_items(self, owner: Owner, conversation_id: str, items: Sequence[Raw]) -> bool:
        added = item_rows(items)
        return await self._database.write(owner, lambda rows: conversations.append(rows, conversation_id, added))

    async def list_items(self, owner: Owner, conversation_id: str, query: PageQuery) -> RecordPage | None:
        return await self._database.read(owner, lambda rows: conversations.item_page(rows, conversation_id, query))

    async def all_items(self, owner: Owner, conversation_id: str) -> list[Raw] | None:
        return await self._database.read(owner, lambda rows: conversations.all_items(rows, conversation_id))

    async def get_item(self, owner: Owner, conversation_id: str, item_id: str) -> Raw | None:
        return await self._database.read(owner, lambda rows: conversations.get_item(rows, conversation_id, item_id))

    async def delete_item(self, owner: Owner, conversation_id: str, item_id: str) -> bool:
        return await self._database.write(owner, lambda rows: conversations.delete_item(rows, conversation_id, item_id))

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_file(self, owner: Owner, record: FileRecord, content: AsyncIterator[bytes]) -> FileRecord:
        upload = await self._blobs.write(content)
        stored = msgspec.structs.replace(record, bytes=upload.size)

        def insert(rows: TenantRows) -> None:
            upload.check_fresh()
            files.insert(rows, stored, upload.name)

        await self._database.write(owner, insert, _AfterCommit(upload.close, self._tasks).on_done)
        return stored

    async def get_file(self, owner: Owner, file_id: str) -> FileRecord | None:
        found = await self._file(owner, file_id)
        return None if found is None else found[0]

    async def list_files(self, owner: Owner, query: PageQuery, purpose: str | None = None) -> RecordPage:
        now = self._now()
        return await self._database.read(owner, lambda rows: files.file_page(rows, query, purpose, now))

    async def read_file(self, owner: Owner, file_id: str) -> AsyncIterator[bytes] | None:
        found = await self._file(owner, file_id)
        if found is None:
            return None
        content = await self._blobs.open(found[1])
        if content is None and await self._file(owner, file_id) is not None:
            raise ContentFault("The content of a file is missing.")
        return content

    async def delete_file(self, owner: Owner, file_id: str) -> bool:
        now, deletion = self._now(), _BlobDeletion(self._blobs)
        removal = _AfterCommit(deletion.run, self._tasks)
        deleted = await self._database.write(
            owner, lambda rows: deletion.collect(files.delete(rows, file_id, now)), removal.on_done
        )
        await removal.wait()
        return deleted > 0

    async def delete_expired_files(self) -> int:
        now, deletion = self._now(), _BlobDeletion(self._blobs)
        removal = _AfterCommit(deletion.run, self._tasks)
        deleted = await self._database.write_all_tenants(
            lambda rows: deletion.collect(files.delete_expired(rows, now)), removal.on_done
        )
        await removal.wait()
        return deleted

    async def delete_orphans(self) -> int:
        unowned = await self._blobs.unowned(_SWEEP_SIZE)
        if not unowned:
            return 0
        kept = await self._known_blobs(unowned)
        orphans = [name for name in unowned if name not in kept]
        await self._blobs.remove(orphans)
        return len(orphans)

    async def _known_blobs(self, names: Sequence[str]) -> set[str]:
        return await self._database.read_all_tenants(lambda rows: files.referenced(rows, names))

    async def _file(self, owner: Owner, file_id: str) -> tuple[FileRecord, str] | None:
        now = self._now()
        return await self._database.read(owner, lambda rows: files.get(rows, file_id, now))

    def _now(self) -> int:
        return int(self._clock())

    # ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_container(self, owner: Owner, record: ContainerRecord, most: ContainerUse, now: float) -> None:
        await self._database.write(owner, lambda rows: containers.create(rows, record, most, now))

    async def get_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None:
        return await self._database.read(owner, lambda rows: containers.get(rows, container_id, now))

    async def find_containers(self, owner: Owner, ids: Sequence[str], now: float) -> dict[str, ContainerRecord]:
        return await self._database.read(owner, lambda rows: containers.find(rows, ids, now))

    async def list_containers(self, owner: Owner, query: PageQuery, now: float, name: str | None = None) -> RecordPage:
        return await self._database.read(owner, lambda rows: containers.container_page(rows, query, name, now))

    async def touch_container(
        self, owner: Owner, container_id: str, now: float, use: ReplicaUse
    ) -> ContainerRecord | None:
        return await self._database.write(owner, lambda rows: containers.touch(rows, container_id, now, use))

    async def set_sandbox(self, owner: Owner, container_id: str, sandbox: SandboxRef) -> ContainerRecord | None:
        return await self._database.write(owner, lambda rows: containers.set_sandbox(rows, container_id, sandbox))

    async def mark_sandbox_lost(self, owner: Owner, container_id: str, sandbox: SandboxRef, why: str) -> bool:
        return await self._database.write(
            owner, lambda rows: containers.mark_sandbox_lost(rows, container_id, sandbox, why)
        )

    async def mark_sandboxes_lost(self, replicas: Sequence[str], why: str) -> list[tuple[Owner, ContainerRecord]]:
        ended = list(replicas)
        return await self._database.write_all_tenants(lambda rows: containers.mark_all_lost(rows, ended, why))

    async def sandbox_replicas(self) -> list[str]:
        return await self._database.read_all_tenants(containers.sandbox_replicas)

    async def held_sandboxes(self, replica: str) -> set[tuple[str, str, str]]:
        return await self._database.read_all_tenants(lambda rows: containers.held_sandboxes(rows, replica))

    async def reserve_disk(self, owner: Owner, container_id: str, size: int, most: int, now: float) -> bool:
        return await self._database.write(
            owner, lambda rows: containers.reserve_disk(rows, container_id, size, most, now)
        )

    async def delete_container(self, owner: Owner, container_id: str) -> bool:
        return await self._database.write(owner, lambda rows: rows.delete("containers", container_id))

    async def container_use(self, owner: Owner, now: float) -> ContainerUse:
        return await self._database.read(owner, lambda rows: containers.use(rows, now))

    async def expire_containers(self, now: float) -> list[tuple[Owner, ContainerRecord]]:
        def expire(rows: Rows) -> list[tuple[Owner, ContainerRecord]]:
            expired = containers.expire(rows, now)
            skills.delete_of_expired(rows)
            return expired

        return await self._database.write_all_tenants(expire)

    async def expire_least_recently_used(
        self, owner: Owner, name: str, now: float, use: ReplicaUse, excluded: Sequence[str] = ()
    ) -> ContainerRecord | None:
        excluded = list(excluded)
        return await self._database.write(owner, lambda rows: containers.expire_lru(rows, name, now, use, excluded))

    async def has_live_containers(self, owner: Owner, name: str, now: float, excluded: Sequence[str]) -> bool:
        excluded = list(excluded)
        return await self._database.read(owner, lambda rows: containers.has_live(rows, name, now, excluded))

    async def forget_containers(self, before: float) -> int:
        return await self._database.write_all_tenants(lambda rows: containers.delete_expired(rows, before))

    async def change_container_files(
        self,
        owner: Owner,
        container_id: str,
        *,
        put: Sequence[ContainerFileRecord],
        dropped: Sequence[str] = (),
        sandbox: SandboxRef | None = None,
    ) -> bool:
        added, deleted = list(put), list(dropped)
        return await self._database.write(
            owner, lambda rows: containers.change_files(rows, container_id, added, deleted, sandbox)
        )

    async def list_container_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage | None:
        return await self._database.read(owner, lambda rows: containers.file_page(rows, container_id, query))

    async def get_container_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord | None:
        return await self._database.read(owner, lambda rows: containers.get_file(rows, container_id, file_id))

    # ── skills ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_skill(
        self, owner: Owner, skill_id: str, version: SkillVersionRecord, bundle: bytes, most: SkillQuota
    ) -> None:
        await self._database.write(owner, lambda rows: skills.create(rows, skill_id, version, bundle, most))

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
        return await self._database.write(
            owner, lambda rows: skills.add_version(rows, skill_id, version, bundle, most, is_default=is_default)
        )

    async def get_skill(self, owner: Owner, skill_id: str) -> SkillRecord | None:
        return await self._database.read(owner, lambda rows: skills.get(rows, skill_id))

    async def list_skills(self, owner: Owner, query: PageQuery) -> RecordPage:
        return await self._database.read(owner, lambda rows: skills.skill_page(rows, query))

    async def set_default_skill_version(self, owner: Owner, skill_id: str, version: int) -> SkillRecord | None:
        return await self._database.write(owner, lambda rows: skills.set_default(rows, skill_id, version))

    async def delete_skill(self, owner: Owner, skill_id: str) -> bool:
        return await self._database.write(owner, lambda rows: rows.delete("skills", skill_id))

    async def get_skill_version(self, owner: Owner, skill_id: str, version: int) -> SkillVersionRecord | None:
        return await self._database.read(owner, lambda rows: skills.get_version(rows, skill_id, version))

    async def list_skill_versions(self, owner: Owner, skill_id: str, query: PageQuery) -> RecordPage | None:
        return await self._database.read(owner, lambda rows: skills.version_page(rows, skill_id, query))

    async def delete_skill_version(self, owner: Owner, skill_id: str, version: int) -> bool:
        return await self._database.write(owner, lambda rows: skills.delete_version(rows, skill_id, version))

    async def read_skill(self, owner: Owner, skill_id: str, version: int) -> bytes | None:
        return await self._database.read(owner, lambda rows: skills.read(rows, skill_id, version))

    async def set_container_skills(self, owner: Owner, container_id: str, bundles: Sequence[ContainerSkill]) -> None:
        given = list(bundles)
        await self._database.write(owner, lambda rows: skills.put_in_container(rows, container_id, given))

    async def container_skills(
        self, owner: Owner, container_id: str, *, with_bundles: bool = False
    ) -> list[ContainerSkill]:
        return await self._database.read(
            owner, lambda rows: skills.of_container(rows, container_id, with_bundles=with_bundles)
        )


class _BlobDeletion:
    """Deletes blobs once the change that deleted their records is committed."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._names: list[str] = []

    def collect(self, names: list[str]) -> int:
        self._names = names
        return len(names)

    async def run(self, committed: Committed) -> None:
        if committed:
            await self._blobs.remove(self._names)


class _AfterCommit:
    """Runs a coroutine with the outcome of a change, on the event loop, even if the caller of the change is cancelled.

    What is not run because the loop has ended leaves an orphan.
    """

    def __init__(self, work: Callable[[Committed], Awaitable[None]], tasks: set[asyncio.Task[None]]) -> None:
        self._work = work
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def on_done(self, committed: Committed) -> None:
        """Start the work. Called in a thread of the database."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._start, committed)

    async def wait(self) -> None:
        """Wait for the work, within limits. It has started when the result of the change is there."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_REMOVAL_TIMEOUT)

    def _start(self, committed: Committed) -> None:
        self._task = self._loop.create_task(self._run(committed))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self, committed: Committed) -> None:
        await self._work(committed)
