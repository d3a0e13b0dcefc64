"""SqliteStore: a `Store` of one SQLite database, and a directory of blobs for file contents."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerUse,
    ConversationRecord,
    FileRecord,
    Owner,
    PageQuery,
    RecordPage,
    StoredResponse,
    StoreFault,
)
from antwort.storage.blobs import BlobStore
from antwort.storage.errors import UnusableStore, translate_errors
from antwort.storage.sqlite import containers, conversations, files, responses
from antwort.storage.sqlite.columns import item_rows
from antwort.storage.sqlite.database import Database, connect
from antwort.storage.sqlite.lock import StoreLock
from antwort.storage.sqlite.migrations import check_compatible, check_writable, migrate

LOCK_TIMEOUT = 5.0
"""Seconds to wait for a database lock of another process."""


class SqliteStore:
    """A `Store`, created by `open`."""

    def __init__(self, database: Database, blobs: BlobStore, lock: StoreLock, clock: Callable[[], float]) -> None:
        self._database = database
        self._blobs = blobs
        self._lock = lock
        self._clock = clock

    @classmethod
    async def open(
        cls, path: Path, blobs: Path, *, lock_timeout: float = LOCK_TIMEOUT, clock: Callable[[], float] = time.time
    ) -> SqliteStore:
        """Open or create the database, run migrations, and delete orphaned blobs of a killed process.

        Raises `UnusableStore` if another process has the store open.
        """
        return await asyncio.to_thread(cls._open_blocking, path, blobs, lock_timeout, clock)

    @classmethod
    def _open_blocking(
        cls, path: Path, directory: Path, lock_timeout: float, clock: Callable[[], float]
    ) -> SqliteStore:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same permissions
            blobs = BlobStore(directory)
            with translate_errors(), closing(sqlite3.connect(path, timeout=lock_timeout)) as connection:
                check_compatible(connection)  # before creating any file beside it
            lock = StoreLock(path, directory)
        except OSError as error:
            raise UnusableStore(f"The store cannot be opened: {error}. Fix that, or change `storage`.") from error
        try:
            with translate_errors():
                with closing(connect(path, lock_timeout)) as connection:
                    migrate(connection)
                    blobs.remove_orphans(lambda name: files.is_referenced(connection, name))
                return cls(Database(path, lock_timeout=lock_timeout), blobs, lock, clock)
        except BaseException:
            lock.release()
            raise

    async def check_writable(self) -> None:
        await self._database.write_all_tenants(check_writable)

    async def aclose(self) -> None:
        """Wait for running operations and close the files."""
        await asyncio.to_thread(self._blobs.close)
        await asyncio.to_thread(self._database.close)
        self._lock.release()

    # ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin_response(self, owner: Owner, stored: StoredResponse) -> None:
        await self._database.write(owner, responses.begin_change(stored))

    async def finish_response(
        self,
        owner: Owner,
        response: Response,
        *,
        appended: Sequence[Raw] = (),
        events: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        await self._database.write(owner, responses.finish_change(response, appended, list(events)))

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

    async def append_events(self, owner: Owner, response_id: str, events: Sequence[tuple[int, bytes]]) -> None:
        frames = list(events)
        await self._database.write(owner, lambda rows: responses.append_events(rows, response_id, frames))

    async def read_events(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        return await self._database.read(owner, lambda rows: responses.read_events(rows, response_id, after))

    async def unfinished_responses(self) -> list[tuple[Owner, StoredResponse]]:
        return await self._database.read_all_tenants(responses.unfinished)

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
        await self._database.write(owner, lambda rows: files.insert(rows, stored, upload.name), upload.close)
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
            raise StoreFault("The content of a file is missing.")
        return content

    async def delete_file(self, owner: Owner, file_id: str) -> bool:
        now, deletion = self._now(), _BlobDeletion(self._blobs)
        deleted = await self._database.write(
            owner, lambda rows: deletion.collect(files.delete(rows, file_id, now)), deletion.on_done
        )
        return deleted > 0

    async def delete_expired_files(self) -> int:
        now, deletion = self._now(), _BlobDeletion(self._blobs)
        return await self._database.write_all_tenants(
            lambda connection: deletion.collect(files.delete_expired(connection, now)), deletion.on_done
        )

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

    async def touch_container(self, owner: Owner, container_id: str, now: float) -> ContainerRecord | None:
        return await self._database.write(owner, lambda rows: containers.touch(rows, container_id, now))

    async def set_sandbox(self, owner: Owner, container_id: str, sandbox: str) -> bool:
        return await self._database.write(owner, lambda rows: containers.set_sandbox(rows, container_id, sandbox))

    async def mark_sandbox_lost(self, owner: Owner, container_id: str, why: str) -> None:
        await self._database.write(owner, lambda rows: containers.mark_sandbox_lost(rows, container_id, why))

    async def mark_all_sandboxes_lost(self, why: str) -> list[tuple[Owner, ContainerRecord]]:
        return await self._database.write_all_tenants(lambda connection: containers.mark_all_lost(connection, why))

    async def delete_container(self, owner: Owner, container_id: str) -> bool:
        return await self._database.write(owner, lambda rows: rows.delete("containers", container_id))

    async def container_use(self, owner: Owner, now: float) -> ContainerUse:
        return await self._database.read(owner, lambda rows: containers.use(rows, now))

    async def expire_containers(self, now: float) -> list[tuple[Owner, ContainerRecord]]:
        return await self._database.write_all_tenants(lambda connection: containers.expire(connection, now))

    async def expire_least_recently_used(
        self, owner: Owner, name: str, now: float, excluded: Sequence[str] = ()
    ) -> ContainerRecord | None:
        excluded = list(excluded)
        return await self._database.write(owner, lambda rows: containers.expire_lru(rows, name, now, excluded))

    async def forget_containers(self, before: float) -> int:
        return await self._database.write_all_tenants(lambda connection: containers.delete_expired(connection, before))

    async def change_container_files(
        self, owner: Owner, container_id: str, *, put: Sequence[ContainerFileRecord], dropped: Sequence[str] = ()
    ) -> bool:
        added, deleted = list(put), list(dropped)
        return await self._database.write(
            owner, lambda rows: containers.change_files(rows, container_id, added, deleted)
        )

    async def list_container_files(self, owner: Owner, container_id: str, query: PageQuery) -> RecordPage | None:
        return await self._database.read(owner, lambda rows: containers.file_page(rows, container_id, query))

    async def get_container_file(self, owner: Owner, container_id: str, file_id: str) -> ContainerFileRecord | None:
        return await self._database.read(owner, lambda rows: containers.get_file(rows, container_id, file_id))


class _BlobDeletion:
    """Deletes blobs once the change that deleted their records is committed, even if its caller was cancelled."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._names: list[str] = []

    def collect(self, names: list[str]) -> int:
        self._names = names
        return len(names)

    def on_done(self, committed: bool) -> None:  # noqa: FBT001 - the writer thread calls it with the outcome
        if committed:
            self._blobs.remove(self._names)
