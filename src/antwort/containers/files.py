"""Files of containers: transfers in and out, and the sync of their records with the sandbox.

The callers hold the lock of the container, except where a method says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Literal, Protocol, TypeAlias

from antwort.api.errors import ApiError, invalid
from antwort.api.ids import new_id
from antwort.containers.paths import changes, path_for
from antwort.containers.quotas import DiskQuota
from antwort.containers.registry import ContainerAndSkillStore, ContainerState, SandboxRegistry, container_not_found
from antwort.containers.sandboxes.port import Sandbox, SandboxError, SandboxFile, SandboxLost, SandboxRefused
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    FileRecord,
    FileStore,
    Owner,
    StoreFault,
)
from antwort.telemetry import Metrics, audit, log

Source: TypeAlias = Literal["user", "assistant"]


class ContainerAndFileStore(ContainerAndSkillStore, FileStore, Protocol):
    """A store of containers, and of the uploaded files and skills that are copied into them."""


class FileStream:
    """Content that is read from a container, in chunks. Must be closed, also if no chunk was read."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], first: bytes) -> None:
        self._chunks = chunks
        self._first = first

    @classmethod
    async def start(cls, chunks: AsyncGenerator[bytes, None]) -> FileStream:
        """Read the first chunk, so that an error is raised before the stream begins."""
        return cls(chunks, await anext(chunks, b""))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()


class ContainerFiles:
    """The files of all containers."""

    def __init__(
        self,
        store: ContainerAndFileStore,
        registry: SandboxRegistry,
        disk: DiskQuota,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._registry = registry
        self._disk = disk
        self._metrics = metrics
        self._clock = clock

    async def put(
        self,
        state: ContainerState,
        record: ContainerRecord,
        path: str,
        content: AsyncIterator[bytes],
        file_id: str | None = None,
    ) -> ContainerFileRecord:
        """Write or replace a file."""
        sandbox = await self._registry.sandbox(state, record)
        async with self._disk.metered(state.owner, state.id, content) as metered:
            async with self._registry.watch(state, record, sandbox):
                try:
                    file = await sandbox.write_file(path, metered)
                except BaseException:
                    await self._sync_after_failure(state, sandbox, "assistant")
                    raise
            written = self._record(state, file, "user", file_id)
            await self._change(state, sandbox, [written])
        audit("container.file.create", written.id, container_id=state.id, bytes=written.bytes)
        return written

    async def copy(
        self, state: ContainerState, record: ContainerRecord, file: FileRecord, *, again: bool
    ) -> ContainerFileRecord:
        """Copy an uploaded file into the container; one that was copied before only with `again`."""
        await self._registry.sandbox(state, record)  # a new sandbox is empty, so it is acquired before the look-up
        copied = next((known for known in state.files.values() if known.file_id == file.id), None)
        if copied is not None and not again:
            return copied
        path = copied.path if copied is not None else path_for(file, state.files.__contains__)
        content = await self._store.read_file(state.owner, file.id)
        if content is None:
            raise unknown_file(file.id, "file_id" if again else "file_ids")
        return await self.put(state, record, path, content, file_id=file.id)

    async def unpack(
        self, state: ContainerState, record: ContainerRecord, tar: AsyncIterator[bytes]
    ) -> list[ContainerFileRecord]:
        """Extract a tar archive; the new files."""
        sandbox = await self._registry.sandbox(state, record)
        async with (
            self._disk.metered(state.owner, state.id, tar) as metered,
            self._registry.watch(state, record, sandbox),
        ):
            try:
                await sandbox.unpack(metered)
            except BaseException:
                await self._sync_after_failure(state, sandbox, "user")
                raise
            return await self.sync(state, sandbox, source="user", is_upload=True)

    async def remove(self, state: ContainerState, record: ContainerRecord, file: ContainerFileRecord) -> None:
        """Remove a file; one that is gone already is no error."""
        sandbox = state.sandbox
        if sandbox is None:
            await self._store.change_container_files(state.owner, state.id, put=[], dropped=[file.id])
            return
        async with self._registry.watch(state, record, sandbox):
            await sandbox.delete_file(file.path)
        await self._change(state, sandbox, [], [file.id])

    async def read(
        self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord | None
    ) -> AsyncGenerator[bytes, None]:
        """The content of one file, or of all files as one tar archive. Does not take the lock of the container."""
        with self._registry.use(owner, record.id) as state:
            sandbox = state.sandbox
            if sandbox is None:
                raise container_not_found(record.id) if file is None else file_not_found(record.id, file.id)
            try:
                async with (
                    self._registry.watch(state, record, sandbox),
                    aclosing(sandbox.pack() if file is None else sandbox.read_file(file.path)) as chunks,
                ):
                    async for chunk in chunks:
                        self._metrics.container_bytes.labels("out").inc(len(chunk))
                        yield chunk
            except SandboxRefused as refused:
                if file is not None and refused.why == "missing":
                    raise file_not_found(record.id, file.id) from refused
                raise

    async def sync_if_idle(self, owner: Owner, record: ContainerRecord) -> None:
        """Sync unless the container is locked: a background thread of the code may have written files.

        Takes the lock itself. Where the sandbox does not answer, the known records are good enough.
        """
        with self._registry.use(owner, record.id) as state:
            if state.sandbox is None or state.lock.locked():
                return
            sandbox = state.sandbox
            async with state.lock:
                try:
                    async with self._registry.watch(state, record, sandbox):
                        await self.sync(state, sandbox)
                except SandboxError:
                    log.info("the files of a container could not be listed", container_id=record.id)

    async def _sync_after_failure(self, state: ContainerState, sandbox: Sandbox, source: Source) -> None:
        """After a failed or cancelled transfer, which may have changed some files."""
        try:
            await asyncio.shield(asyncio.ensure_future(self.sync(state, sandbox, source=source)))
        except (ApiError, SandboxError, StoreFault):  # the first failure is raised; the next sync finds the rest
            log.info("the files of a container could not be listed", container_id=state.id)

    async def sync(
        self, state: ContainerState, sandbox: Sandbox, *, source: Source = "assistant", is_upload: bool = False
    ) -> list[ContainerFileRecord]:
        """Store what has changed in the sandbox since the last sync; the new and changed files.

        After an upload also where nothing has changed, which ends its reservation of disk.
        """
        found = changes(state.files, await sandbox.list_files())
        upload_ids = {path: record.file_id for path, record in state.files.items()}
        put = [self._record(state, file, source, upload_ids.get(file.path)) for file in found.written]
        if put or found.removed_ids or is_upload:
            await self._change(state, sandbox, put, found.removed_ids)
        return put

    def _record(
        self, state: ContainerState, file: SandboxFile, source: Source, file_id: str | None
    ) -> ContainerFileRecord:
        return ContainerFileRecord(
            id=new_id("cfile_"),
            container_id=state.id,
            path=file.path,
            bytes=file.size,
            created_at=int(self._clock()),
            source=source,
            modified=file.modified,
            file_id=file_id,
        )

    async def _change(
        self,
        state: ContainerState,
        sandbox: Sandbox,
        put: list[ContainerFileRecord],
        removed_ids: Sequence[str] = (),
    ) -> None:
        """Store new records, which replace those of the same path, and drop the records of removed files."""
        is_stored = await self._store.change_container_files(
            state.owner, state.id, put=put, dropped=removed_ids, sandbox=self._registry.ref(sandbox)
        )
        if not is_stored:
            await self._raise_if_given_up(state, sandbox)
            state.closed = True
        state.raise_if_closed()
        if removed := set(removed_ids):
            state.files = {path: record for path, record in state.files.items() if record.id not in removed}
        state.files.update((record.path, record) for record in put)

    async def _raise_if_given_up(self, state: ContainerState, sandbox: Sandbox) -> None:
        """`SandboxLost` where the container goes on without this sandbox: another replica took this one for dead."""
        current = await self._store.get_container(state.owner, state.id, self._clock())
        is_running = current is not None and current.status == "running"
        if is_running and state.sandbox is sandbox:
            raise SandboxLost("The server that ran it did not respond for too long.")


async def uploaded_files(store: FileStore, owner: Owner, ids: Sequence[str], param: str) -> list[FileRecord]:
    """The records of uploaded files; `ApiError` 400 that names a missing one."""
    files: list[FileRecord] = []
    for identifier in dict.fromkeys(ids):
        record = await store.get_file(owner, identifier)
        if record is None:
            raise unknown_file(identifier, param)
        files.append(record)
    return files


def file_not_found(container_id: str, file_id: str) -> ApiError:
    """404, with OpenAI's message."""
    return ApiError(404, f"File {file_id} not found on container {container_id}.", code="not_found")


def unknown_file(file_id: str, param: str) -> ApiError:
    """400: a request names an uploaded file that does not exist, or is another owner's."""
    return invalid(f"File with id '{file_id}' not found.", param=param)
