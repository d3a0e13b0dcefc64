"""What containers ask of whoever runs their code: the port `Sandboxes`, and the values that cross it.

    SandboxTrouble
    ├── SandboxLost       it has died, or whoever ran it: what was in it is gone, a new one can be had
    ├── SandboxFault      not now: no room, no answer. Worth another try; nothing is lost
    └── SandboxRefused    the caller's fault: a path, a size, a tier

What the code does is never an exception: it printed, failed, ran past its time or took too
much memory, and all of that is an `Outcome`. `antwort.testing.sandbox_backend`
has the tests that every implementation passes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

OutcomeStatus: TypeAlias = Literal["ok", "error", "exit", "interrupted", "timeout", "oom", "ended"]
Refusal: TypeAlias = Literal["missing", "path", "size", "tier", "request"]


class SandboxTrouble(Exception):
    """A sandbox could not do what it was asked for. The message is ours, and fit for a caller."""


class SandboxLost(SandboxTrouble):
    """It is gone with all that was in it. The next one starts empty.

    `begun` is False only where it is certain that it was gone before it did anything of what it was asked for.
    """

    def __init__(self, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


class SandboxFault(SandboxTrouble):
    """It cannot be done now: everything is in use, or there is no answer. Worth another try later."""


class SandboxRefused(SandboxTrouble):
    """It cannot be done at all, and the caller is who can change that. `why` says what kind of thing is wrong."""

    def __init__(self, message: str, why: Refusal = "request") -> None:
        super().__init__(message)
        self.why: Refusal = why


class Output(Struct, frozen=True):
    """Something that the code printed."""

    stream: Literal["stdout", "stderr"]
    text: str


class Figure(Struct, frozen=True):
    """A picture that the code has shown."""

    mime: str
    data: bytes


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run came to. Always the last thing that comes of it.

    `ok` and `exit` (the code asked to leave) are the code's own ends, `error` is an exception
    whose traceback is in `output`; also a requirement that cannot be installed is an `error`.
    """

    status: OutcomeStatus
    output: tuple[Output, ...] = ()
    """All that was printed, in order, both streams; where it was too much, its head and tail with the cut marked."""
    echo: str | None = None
    """The value of the last expression, as the interpreter shows it."""
    figures: tuple[Figure, ...] = ()
    seconds: float = 0.0
    alive: bool = True
    """Whether the sandbox lives on with its variables and files; if not, `reason` says why."""
    reason: str | None = None
    cut_bytes: int = 0


class SandboxFile(Struct, frozen=True):
    """A regular file, by its path below `/mnt/data`."""

    path: str
    size: int
    modified: int
    """Nanoseconds since the epoch; enough to see that it was written again."""


class Sandbox(Protocol):
    """One live interpreter with its `/mnt/data`. Every method may raise `SandboxLost` and `SandboxFault`."""

    @property
    def id(self) -> str:
        """How logs call it. Not a secret, and not enough to reach it."""
        ...

    def run(
        self, code: str, *, requirements: Sequence[str] = (), timeout: float
    ) -> AsyncGenerator[Output | Outcome, None]:
        """Run code: what it prints as it prints it, then its `Outcome`. Variables live on from run to run.

        Past `timeout` seconds it is interrupted. Whoever stops before the end closes the
        generator (`contextlib.aclosing`), which interrupts the code too. Runs of one sandbox
        must follow each other.
        """
        ...

    async def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in what runs, if anything does."""
        ...

    async def list_files(self) -> list[SandboxFile]:
        """Every regular file, also those in directories; links and odd names are left out."""
        ...

    async def write_file(self, path: str, content: AsyncIterator[bytes]) -> int:
        """Write a file and the directories above it, replacing what was there; how many bytes it has.

        `SandboxRefused` for a path that leaves `/mnt/data`, and where there is no room; then nothing is left of it.
        """
        ...

    def read_file(self, path: str) -> AsyncGenerator[bytes, None]:
        """The content of a file; `SandboxRefused` (`missing`) before the first piece where there is none."""
        ...

    async def delete_file(self, path: str) -> bool:
        """Remove a file, or a directory with all that is in it; whether it was there."""
        ...

    async def unpack(self, tar: AsyncIterator[bytes]) -> None:
        """Put the members of a tar where they belong; `SandboxRefused` for one that would leave `/mnt/data`."""
        ...

    def pack(self) -> AsyncGenerator[bytes, None]:
        """All files as one tar."""
        ...


class Sandboxes(Protocol):
    """A place to run code: this machine's jail, a server elsewhere, a cluster."""

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - each place waits in its own way
        """A fresh one, for this tenant alone, within so many seconds.

        `SandboxRefused` (`tier`) for a memory limit that this place does not have, `SandboxFault` where it has no room.
        """
        ...

    async def release(self, sandbox: Sandbox) -> None:
        """It is needed no more and is gone with all that is in it. Releasing what is gone already is fine."""
        ...

    async def aclose(self) -> None:
        """Release what is left, and let go of connections and processes."""
        ...
