"""Sandbox port: the protocols `Sandbox` and `Sandboxes`, the execution result, and the errors.

    SandboxError
    ├── SandboxLost                 the sandbox or its server died: its content is gone, a new one can be acquired
    ├── SandboxUnavailable          not now: no capacity, no reply. Worth a retry; nothing is lost
    │   ├── IncompleteReply         no complete reply: it is unknown whether the request was executed
    │   │   ├── SandboxConnectError     no connection: the request was not sent
    │   │   ├── SandboxTimeout
    │   │   └── SandboxProtocolError    the connection broke, or the reply is malformed
    │   ├── SandboxAuthError        the server rejects the token
    │   └── JailUnavailable         the sandbox server does not start on this machine
    └── SandboxRefused              the caller's fault: a path, a size, a tier

What the code does is never an exception: a traceback, a timeout and an out-of-memory kill
are all an `ExecutionResult`. `antwort.testing.sandbox_backend` is the conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from antwort.engine.stores import ContainerFileRecord

ExecutionStatus: TypeAlias = Literal["ok", "error", "exit", "interrupted", "timeout", "oom", "ended"]
RefusalReason: TypeAlias = Literal["missing", "path", "size", "tier", "request"]


class SandboxError(Exception):
    """A sandbox could not do what it was asked for. The message may be shown to a client."""

    metric_label: ClassVar[str] = "trouble"


class SandboxLost(SandboxError):
    """The sandbox is gone with its content. The next one starts empty.

    `begun` is False only where it is certain that the sandbox was gone before the request reached it.
    """

    metric_label = "lost"

    def __init__(self, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


class SandboxUnavailable(SandboxError):
    """Not possible now: every sandbox is in use, or the server does not answer. Worth a retry later."""

    metric_label = "fault"


class IncompleteReply(SandboxUnavailable):
    """No complete reply of the sandbox server. It is unknown whether it executed the request."""

    metric_label = "noanswer"


class SandboxConnectError(IncompleteReply):
    """No connection to the sandbox server: the request was not sent."""

    metric_label = "unreached"


class SandboxTimeout(IncompleteReply):
    """The sandbox server did not answer in time."""


class SandboxProtocolError(IncompleteReply):
    """The connection to the sandbox server broke, or its reply is malformed."""


class SandboxAuthError(SandboxUnavailable):
    """The sandbox server rejects the token."""

    metric_label = "wrongtoken"


class JailUnavailable(SandboxUnavailable):
    """The sandbox server does not start on this machine. The message is its own."""

    metric_label = "nojail"


class SandboxRefused(SandboxError):
    """Not possible at all, by the caller's fault. `why` is the kind of the fault."""

    metric_label = "refused"

    def __init__(self, message: str, why: RefusalReason = "request") -> None:
        super().__init__(message)
        self.why: RefusalReason = why


class Output(Struct, frozen=True):
    """Output that the code printed."""

    stream: Literal["stdout", "stderr"]
    text: str


class Figure(Struct, frozen=True):
    """A figure that the code displayed."""

    mime: str
    data: bytes


class TextFile(Struct, frozen=True):
    """A text file that a run has produced, by its path below `/mnt/data`."""

    path: str
    text: str


class PythonCode(Struct, frozen=True):
    """Code for the interpreter of a sandbox, and the packages that it needs."""

    code: str
    requirements: Sequence[str] = ()


class ShellCommand(Struct, frozen=True):
    """A command for a shell, which runs in a process of its own in `/mnt/data`."""

    command: str


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of one execution; always the last value of a run.

    `ok` and `exit` (`SystemExit`) are the code's own ends, `error` is an exception whose
    traceback is in `output`; a requirement that cannot be installed is an `error` too.
    Field names on the sandbox protocol are given where they differ.
    """

    status: ExecutionStatus
    output: tuple[Output, ...] = ()
    """Everything printed to both streams, in order; if it was too long, its head and tail with a mark of the cut."""
    echo: str | None = field(default=None, name="result")
    """The `repr` of the last expression."""
    figures: tuple[Figure, ...] = field(default=(), name="images")
    exit_code: int = 0
    """As a process would end: 0, 1 for an exception, the code of `SystemExit`, or -1 for code that was stopped."""
    duration_ms: int = field(default=0, name="execution_time_ms")
    sandbox_alive: bool = True
    """Whether the sandbox keeps running with its variables and files; if not, `reason` says why."""
    reason: str | None = None
    keeps_variables: bool = True
    """Whether the next run has the variables of this one, if the sandbox is alive."""
    text_files: tuple[TextFile, ...] = ()
    """Text files of a run whose files are part of its result: those of the base protocol."""
    notes: tuple[str, ...] = ()
    """What the backend reports beside the output, such as files that it could not keep."""
    cut_bytes: int = 0
    files: tuple[ContainerFileRecord, ...] = ()
    """Files that the code created or changed. Set by `Containers.execute`."""
    sandbox_replaced: bool = False
    """The sandbox before this one was lost: the code ran in a new, empty one. Set by `Containers.execute`."""


class SandboxFile(Struct, frozen=True):
    """A regular file, by its path below `/mnt/data`."""

    path: str
    size: int
    modified: int
    """Nanoseconds since the epoch; detects that the file was written again."""


class Sandbox(Protocol):
    """One running interpreter with its `/mnt/data`. Every method may raise `SandboxLost` and `SandboxUnavailable`."""

    @property
    def id(self) -> str:
        """Its id in logs. Not a secret, and not sufficient to access it."""
        ...

    def run(
        self, code: str, *, requirements: Sequence[str] = (), timeout: float
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run code: its output as it is printed, then the `ExecutionResult`. Variables persist from run to run.

        The code is interrupted after `timeout` seconds, and when the generator is closed
        before its end (`contextlib.aclosing`). Runs of one sandbox must not overlap.
        """
        ...

    def run_command(self, command: str, *, timeout: float) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run a shell command: its output as it is printed, then the `ExecutionResult`, which has its exit code.

        A command that ends by itself has the status `exit`. After `timeout` seconds it is killed with everything that
        it has started, and when the generator is closed before its end. Neither variables nor the directory of a
        command are those of a later one; only files are. `SandboxRefused` where the sandbox server runs no commands.
        """
        ...

    async def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the running code, if any."""
        ...

    async def list_files(self) -> list[SandboxFile]:
        """Every regular file, recursively; symbolic links and undecodable names are left out."""
        ...

    async def write_file(self, path: str, content: AsyncIterator[bytes]) -> SandboxFile:
        """Write or replace a file, and create its parent directories; the file as `list_files` has it.

        `SandboxRefused` for a path outside of `/mnt/data` and for a full disk; then no part of the file is left.
        """
        ...

    def read_file(self, path: str) -> AsyncGenerator[bytes, None]:
        """The content of a file; `SandboxRefused` (`missing`) before the first chunk if there is none."""
        ...

    async def delete_file(self, path: str) -> bool:
        """Remove a file, or a directory with its content; whether it existed."""
        ...

    async def unpack(self, tar: AsyncIterator[bytes]) -> None:
        """Extract a tar archive; `SandboxRefused` for a member outside of `/mnt/data`."""
        ...

    async def add_skill(self, name: str, tar: AsyncIterator[bytes]) -> None:
        """Add the files of a tar archive to `$SKILLS_DIR/{name}`, where code can read them and not change them.

        `SandboxRefused` where the sandbox server has no skills.
        """
        ...

    def pack(self) -> AsyncGenerator[bytes, None]:
        """All files as one tar archive."""
        ...


class Sandboxes(Protocol):
    """A backend that provides sandboxes: the jail of this machine, or a sandbox server elsewhere."""

    async def is_stateful(self) -> bool:
        """Whether variables persist from run to run; files always do. True where the backend does not answer."""
        ...

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - each backend waits in its own way
        """A new sandbox for this tenant alone, within `timeout` seconds.

        `SandboxRefused` (`tier`) for an unknown memory limit, `SandboxUnavailable` without capacity.
        """
        ...

    async def release(self, sandbox: Sandbox) -> None:
        """End a sandbox and delete its content. One that has ended already is no error."""
        ...

    async def sweep(self, ended: Collection[str]) -> None:
        """Release the sandboxes that these replicas, which have ended, left behind. `SandboxUnavailable` if not now."""
        ...

    async def aclose(self) -> None:
        """Release all sandboxes, connections and processes."""
        ...
