"""What is in containers: files in, files out, and the record of which there are. Only within a container's turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Literal, Protocol, TypeAlias

from antwort.api.errors import ApiError, invalid
from antwort.api.ids import new_id
from antwort.containers.paths import changes, place_for
from antwort.containers.quotas import Disk
from antwort.containers.registry import ContainerState, SandboxRegistry, gone
from antwort.containers.sandboxes.port import Sandbox, SandboxRefused, SandboxTrouble
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    ContainerStore,
    FileRecord,
    FileStore,
    Owner,
    StoreFault,
)
from antwort.telemetry import Metrics, audit, log

Source: TypeAlias = Literal["user", "assistant"]


class ContainerAndFileStore(ContainerStore, FileStore, Protocol):
    """A store with containers, and with the uploaded files that are copied into them."""


class FileStream:
    """Bytes on their way out of a container: their pieces. To be closed, also when nobody has read any of them."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], first: bytes) -> None:
        self._pieces = pieces
        self._first = first

    @classmethod
    async def begun(cls, pieces: AsyncGenerator[bytes, None]) -> FileStream:
        """Content of which the first piece has come, so that there is some."""
        return cls(pieces, await anext(pieces, b""))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._pieces)

    async def aclose(self) -> None:
        """Read no further."""
        await self._pieces.aclose()


class ContainerFiles:
    """Of all containers."""

    def __init__(
        self,
        store: ContainerAndFileStore,
        holdings: SandboxRegistry,
        disk: Disk,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._disk = disk
        self._metrics = metrics
        self._clock = clock

    async def put(
        self,
        held: ContainerState,
        record: ContainerRecord,
        path: str,
        content: AsyncIterator[bytes],
        file_id: str | None = None,
    ) -> ContainerFileRecord:
        """Write a file, in the place of what was there."""
        async with self._disk.arriving(held.owner, content) as counted:
            sandbox = await self._holdings.sandbox(held, record)
            async with self._holdings.watched(held, record, sandbox):
                try:
                    await sandbox.write_file(path, counted)
                except BaseException:
                    await self._look_once_more(held, sandbox)
                    raise
                files = await self.look(held, sandbox, source="user", path=path, file_id=file_id)
        written = next((file for file in files if file.path == path), None)
        if written is None:
            raise invalid("The container has more files than can be listed. Remove some first.", param="file")
        audit("container.file.create", written.id, container_id=held.id, bytes=written.bytes)
        return written

    async def copy(
        self, held: ContainerState, record: ContainerRecord, file: FileRecord, *, again: bool
    ) -> ContainerFileRecord:
        """Copy an uploaded file; one that was copied before only if it is to be copied again."""
        await self._holdings.sandbox(held, record)  # a new one would be empty, so it comes before the look
        there = next((one for one in held.files.values() if one.file_id == file.id), None)
        if there is not None and not again:
            return there
        place = there.path if there is not None else place_for(file, held.files.__contains__)
        content = await self._store.read_file(held.owner, file.id)
        if content is None:
            raise unknown_file(file.id, "file_id" if again else "file_ids")
        return await self.put(held, record, place, content, file_id=file.id)

    async def unpack(
        self, held: ContainerState, record: ContainerRecord, tar: AsyncIterator[bytes]
    ) -> list[ContainerFileRecord]:
        """Unpack an archive; what is new by that."""
        async with self._disk.arriving(held.owner, tar) as counted:
            sandbox = await self._holdings.sandbox(held, record)
            async with self._holdings.watched(held, record, sandbox):
                try:
                    await sandbox.unpack(counted)
                except BaseException:
                    await self._look_once_more(held, sandbox, source="user")
                    raise
                files = await self.look(held, sandbox, source="user")
        return files

    async def remove(self, held: ContainerState, record: ContainerRecord, file: ContainerFileRecord) -> None:
        """Remove a file; one that is gone already is fine."""
        if held.sandbox is not None:
            async with self._holdings.watched(held, record, held.sandbox):
                await held.sandbox.delete_file(file.path)
            held.files.pop(file.path, None)
        await self._store.change_container_files(held.owner, held.id, put=[], dropped=[file.id])

    async def read(
        self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord | None
    ) -> AsyncGenerator[bytes, None]:
        """The content of one file, or all of them as one tar. This alone waits for no turn."""
        with self._holdings.use(owner, record.id) as held:
            sandbox = held.sandbox
            if sandbox is None:
                raise gone(record.id) if file is None else absent(record.id, file.id)
            try:
                async with (
                    self._holdings.watched(held, record, sandbox),
                    aclosing(sandbox.pack() if file is None else sandbox.read_file(file.path)) as pieces,
                ):
                    async for piece in pieces:
                        self._metrics.container_bytes.labels("out").inc(len(piece))
                        yield piece
            except SandboxRefused as refused:
                if file is not None and refused.why == "missing":
                    raise absent(record.id, file.id) from refused
                raise

    async def look_if_idle(self, owner: Owner, record: ContainerRecord) -> None:
        """Code may have left something running that writes. Where it cannot be asked, what is known will do."""
        with self._holdings.use(owner, record.id) as held:
            if held.sandbox is None or held.turn.locked():
                return
            sandbox = held.sandbox
            async with held.turn:
                try:
                    async with self._holdings.watched(held, record, sandbox):
                        await self.look(held, sandbox)
                except SandboxTrouble:
                    log.info("the files of a container could not be listed", container_id=record.id)

    async def _look_once_more(self, held: ContainerState, sandbox: Sandbox, *, source: Source = "assistant") -> None:
        """After a failure, also of a caller who went: what was half done may have changed something."""
        try:
            await asyncio.shield(asyncio.ensure_future(self.look(held, sandbox, source=source)))
        except (ApiError, SandboxTrouble, StoreFault):  # what failed first is told; the next look finds the rest
            log.info("the files of a container could not be listed", container_id=held.id)

    async def look(
        self,
        held: ContainerState,
        sandbox: Sandbox,
        *,
        source: Source = "assistant",
        path: str | None = None,
        file_id: str | None = None,
    ) -> list[ContainerFileRecord]:
        """Write down what has changed since the last look. `source` is of all of it, or only of what is at `path`."""
        known = {place: record for place, record in held.files.items() if place != path}
        found = changes(known, await sandbox.list_files())
        now = int(self._clock())
        put = [
            ContainerFileRecord(
                id=new_id("cfile_"),
                container_id=held.id,
                path=file.path,
                bytes=file.size,
                created_at=now,
                source=source if path in (None, file.path) else "assistant",
                modified=file.modified,
                file_id=file_id if file.path == path else _origin(held.files.get(file.path)),
            )
            for file in found.written
        ]
        if put or found.gone:
            if not await self._store.change_container_files(held.owner, held.id, put=put, dropped=found.gone):
                held.is_over = True
            held.check()
            dropped = set(found.gone)
            held.files = {place: record for place, record in known.items() if record.id not in dropped}
            held.files.update((record.path, record) for record in put)
        return put


def _origin(record: ContainerFileRecord | None) -> str | None:
    return None if record is None else record.file_id


def absent(container_id: str, file_id: str) -> ApiError:
    """404, in the words of the wire."""
    return ApiError(404, f"File {file_id} not found on container {container_id}.", code="not_found")


def unknown_file(file_id: str, param: str) -> ApiError:
    """400: a request names an uploaded file that is not there, or not the caller's."""
    return invalid(f"File with id '{file_id}' not found.", param=param)
