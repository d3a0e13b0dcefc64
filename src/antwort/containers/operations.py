"""Operations that need the sandbox of a container: the protocol that the own process and other replicas implement.

The state of a container with a sandbox (lock, known files, users) is in one process, which holds the sandbox.
`Containers` passes each operation to `LocalOperations` or, for a sandbox of another replica, to `ReplicaClient`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from antwort.containers.sandboxes.port import ExecutionResult, Output, PythonCode, ShellCommand
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, FileRecord, Owner


class ContainerOperations(Protocol):
    """Operations on running containers. `HeldElsewhere` before anything is done, where another replica has the sandbox.

    The record is the caller's, who has checked that the container exists and runs.
    """

    def execute(
        self, owner: Owner, record: ContainerRecord, program: PythonCode | ShellCommand, *, seconds: float
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run code or a command: its output as it is printed, then the result. Closing the generator interrupts it."""
        ...

    async def put_file(
        self, owner: Owner, record: ContainerRecord, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        """Write or replace a file."""
        ...

    async def copy_files(
        self, owner: Owner, record: ContainerRecord, files: Sequence[FileRecord], *, again: bool
    ) -> list[ContainerFileRecord]:
        """Copy uploaded files; those that were copied before only with `again`."""
        ...

    async def unpack(
        self, owner: Owner, record: ContainerRecord, tar: AsyncIterator[bytes]
    ) -> list[ContainerFileRecord]:
        """Extract a tar archive; the new files."""
        ...

    async def delete_file(self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord) -> None:
        """Delete a file."""
        ...

    async def prepare(self, owner: Owner, record: ContainerRecord) -> None:
        """Make sure that the container has a sandbox, after the operations before this one."""
        ...

    def read(
        self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord | None
    ) -> AsyncGenerator[bytes, None]:
        """The content of a file, or of all files as a tar archive. Does not wait for other operations."""
        ...

    async def sync_files(self, owner: Owner, record: ContainerRecord) -> None:
        """Store what code has written, unless an operation runs. Where the sandbox does not answer, nothing changes."""
        ...
