"""Container operations in this process: those that change a container hold its lock, in the order of arrival.

An execution sees the files that were added before it, and two executions never overlap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from antwort.containers.files import ContainerAndFileStore, ContainerFiles
from antwort.containers.quotas import DiskQuota
from antwort.containers.registry import ContainerState, SandboxRegistry
from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    PythonCode,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxRefused,
    ShellCommand,
)
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, FileRecord, Owner
from antwort.telemetry import Metrics, SandboxSpan, audit, log


class LocalOperations:
    """`ContainerOperations` in sandboxes of this process."""

    def __init__(
        self,
        store: ContainerAndFileStore,
        registry: SandboxRegistry,
        disk: DiskQuota,
        metrics: Metrics,
        max_output: int,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._disk = disk
        self._metrics = metrics
        self._max_output = max_output
        self._clock = clock
        self._files = ContainerFiles(store, registry, disk, metrics, clock)

    async def execute(
        self, owner: Owner, record: ContainerRecord, program: PythonCode | ShellCommand, *, seconds: float
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run code or a command under the lock of the container.

        `SandboxLost` where the sandbox dies meanwhile; one that had died before the code began is replaced, once.
        """
        async with self._locked(owner, record) as state:
            await self._disk.check(owner)
            work = SandboxSpan(self._metrics, "execute", record.id, record.memory_limit)
            status, printed = "abandoned", 0
            result: ExecutionResult | None = None
            try:
                for attempt in (1, 2):
                    sandbox = await self._registry.sandbox(state, record)
                    run = _start(sandbox, program, seconds)
                    try:
                        async with self._registry.watch(state, record, sandbox), aclosing(run) as steps:
                            async for step in steps:
                                if isinstance(step, Output):
                                    shown = step.text[: max(0, self._max_output - printed)]
                                    printed += len(step.text)
                                    if shown:
                                        yield msgspec.structs.replace(step, text=shown)
                                else:
                                    result = await self._completed(state, record, sandbox, step)
                                    break  # a fault after the result does not lose it
                        break
                    except SandboxLost as lost:
                        if lost.begun or attempt > 1:
                            raise
                if result is not None:
                    status = result.status
                    work.ended(status, printed=printed, files=len(result.files))
                    yield result
            except SandboxError as error:
                status = error.metric_label
                work.failed(status)
                raise
            finally:
                ms, tier = round(work.close() * 1000), record.memory_limit
                audit("container.execute", record.id, tier=tier, status=status, ms=ms, printed=printed)

    async def _completed(
        self, state: ContainerState, record: ContainerRecord, sandbox: Sandbox, result: ExecutionResult
    ) -> ExecutionResult:
        """The result with the files that the code wrote. Stores these, or that the sandbox has ended."""
        state.raise_if_closed()
        replaced, state.sandbox_replaced = state.sandbox_replaced, False
        files: list[ContainerFileRecord] = []
        if not result.sandbox_alive:
            why = f"The sandbox has ended ({result.reason or result.status})."
            await self._registry.mark_lost(state, sandbox, why, record.memory_limit)
        else:
            try:
                async with self._registry.watch(state, record, sandbox):
                    files = await self._files.sync(state, sandbox)
            except SandboxRefused as refused:  # there are too many
                note = f"the files that the code has written are not listed: {refused}"
                result = msgspec.structs.replace(result, notes=(*result.notes, note))
            except SandboxError:  # the result is known and valid; the next sync finds the files
                log.warning("what code has written could not be listed", container_id=state.id)
        return msgspec.structs.replace(result, files=tuple(files), sandbox_replaced=replaced)

    async def put_file(
        self, owner: Owner, record: ContainerRecord, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        """Write or replace a file. An upload that fails leaves no part of the file."""
        async with self._locked(owner, record) as state:
            return await self._files.put(state, record, path, content)

    async def copy_files(
        self, owner: Owner, record: ContainerRecord, files: Sequence[FileRecord], *, again: bool
    ) -> list[ContainerFileRecord]:
        async with self._locked(owner, record) as state:
            return [await self._files.copy(state, record, file, again=again) for file in files]

    async def unpack(
        self, owner: Owner, record: ContainerRecord, tar: AsyncIterator[bytes]
    ) -> list[ContainerFileRecord]:
        """Extract a tar archive; the new files. If a member is refused, those before it stay."""
        async with self._locked(owner, record) as state:
            files = await self._files.unpack(state, record, tar)
        audit("container.unpack", record.id, files=len(files), bytes=sum(file.bytes for file in files))
        return files

    async def delete_file(self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord) -> None:
        async with self._locked(owner, record) as state:
            await self._files.remove(state, record, file)
            audit("container.file.delete", file.id, container_id=record.id)

    async def prepare(self, owner: Owner, record: ContainerRecord) -> None:
        async with self._locked(owner, record) as state:
            await self._registry.sandbox(state, record)

    def read(
        self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord | None
    ) -> AsyncGenerator[bytes, None]:
        return self._files.read(owner, record, file)

    async def sync_files(self, owner: Owner, record: ContainerRecord) -> None:
        await self._files.sync_if_idle(owner, record)

    async def release(self, owner: Owner, container_id: str) -> None:
        """End the sandbox of a deleted container, with the code that runs in it."""
        if releasing := self._registry.release(owner, container_id):
            await releasing

    @asynccontextmanager
    async def _locked(self, owner: Owner, record: ContainerRecord) -> AsyncGenerator[ContainerState]:
        """The state of a running container, under its lock."""
        with self._registry.use(owner, record.id) as state:
            async with state.lock:
                state.raise_if_closed()
                await self._registry.check_held(state, record, self._clock())
                yield state


def _start(
    sandbox: Sandbox, program: PythonCode | ShellCommand, seconds: float
) -> AsyncGenerator[Output | ExecutionResult, None]:
    if isinstance(program, ShellCommand):
        return sandbox.run_command(program.command, timeout=seconds)
    return sandbox.run(program.code, requirements=program.requirements, timeout=seconds)
