"""Sandboxes of this machine: starts, supervises and stops a sandbox server as a child process.

It is a process of its own because it runs untrusted code: if it dies, the server continues and
starts another one. It listens on a Unix socket that only this user can connect to, and it
ends with this process, and its sandboxes with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from antwort.containers.sandboxes.port import (
    IncompleteReply,
    JailUnavailable,
    Sandbox,
    SandboxError,
    SandboxUnavailable,
)
from antwort.containers.sandboxes.remote import RemoteSandboxes

_logger = logging.getLogger(__name__)

_START_TIMEOUT: Final = 30.0
_POLL_SECONDS: Final = 0.02
_STOP_TIMEOUT: Final = 10.0
_EXIT_TIMEOUT: Final = 1.0
_MAX_STDERR_BYTES: Final = 1 << 12

# The child runs untrusted code, so it inherits only the variables that it needs: no API keys of models, for one.
_INHERITED_ENV: Final = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR"}
_INHERITED_PREFIXES: Final = ("SANDBOX_", "LC_")
_RESERVED_ENV: Final = {"SANDBOX_HOST", "SANDBOX_PORT", "SANDBOX_UDS", "SANDBOX_TOKEN"}
# Containers have quotas of their own, for each owner; idle sandboxes cost little.
_DEFAULT_ENV: Final = {"SANDBOX_MAX_SESSIONS": "256", "SANDBOX_MAX_SESSIONS_PER_TENANT": "256"}

_MIN_OUTPUT_BYTES: Final = 1024
_MAX_SOCKET_PATH: Final = 100  # bytes; the kernel allows a few more
_SHORT_TMPDIR: Final = "/tmp"  # noqa: S108 - a private directory is created in it


class LocalSandboxes:
    """`Sandboxes` in the jail of this machine. `start` detects early whether there is one."""

    def __init__(
        self, state: Path, *, max_output: int, max_seconds: float = 3600.0, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._state = state
        self._max_output = max_output
        self._max_seconds = max_seconds
        self._environment = environment
        self._child: _SandboxProcess | None = None
        self._start_lock = asyncio.Lock()
        self._closed = False
        self._socket_dir: tempfile.TemporaryDirectory[str] | None = None
        self._state_lock: int | None = None

    async def is_stateful(self) -> bool:
        return True

    async def start(self) -> None:
        """Start the child now; `JailUnavailable` says why it cannot be started."""
        await self._running_child()

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            child = await self._running_child()
            left = max(0.0, deadline - loop.time())
            try:
                return await child.sandboxes.acquire(tenant=tenant, memory_limit=memory_limit, timeout=left)
            except IncompleteReply:
                if not await child.has_exited():
                    raise

    async def release(self, sandbox: Sandbox) -> None:
        if self._child is not None:  # the sandboxes of an earlier child ended with it
            await self._child.sandboxes.release(sandbox)

    async def sweep(self, ended: Collection[str]) -> None:
        """Nothing: the sandbox server of a process ends with it."""

    async def aclose(self) -> None:
        self._closed = True
        async with self._start_lock:
            if self._child is not None:
                await self._child.stop()
            if self._socket_dir is not None:
                self._socket_dir.cleanup()
            if self._state_lock is not None:
                os.close(self._state_lock)
                self._state_lock = None

    async def _running_child(self) -> _SandboxProcess:
        async with self._start_lock:
            if self._closed:
                raise SandboxUnavailable("The server is stopping.")
            if self._child is None or not self._child.is_alive:
                if self._child is not None:
                    _logger.error("the sandbox server has ended; it is started again")
                    await self._child.stop()
                path = await asyncio.to_thread(self._socket_path)
                self._child = await _SandboxProcess.start(path, self._child_environment())
            return self._child

    def _socket_path(self) -> Path:
        """In the state directory, where the next child removes a stale socket.

        Elsewhere if that path is too long, or if another server has the same state directory. Blocks briefly.
        """
        directory = (self._state / "run").absolute()
        path = directory / "sandbox.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH and self._has_locked(directory):
            return path
        if self._socket_dir is None:
            tmpdir = tempfile.gettempdir()
            parent = tmpdir if len(os.fsencode(tmpdir)) <= _MAX_SOCKET_PATH // 2 else _SHORT_TMPDIR
            self._socket_dir = tempfile.TemporaryDirectory(prefix="antwort-", dir=parent)
        return Path(self._socket_dir.name, "sandbox.sock")

    def _has_locked(self, directory: Path) -> bool:
        """Lock the directory for the life of this process; False if another one has locked it."""
        if self._state_lock is None:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # the child says what is wrong with the state directory
                return False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._state_lock = descriptor
        return True

    def _child_environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in self._environment.items()
            if name not in _RESERVED_ENV and (name in _INHERITED_ENV or name.startswith(_INHERITED_PREFIXES))
        }
        max_output = max(_MIN_OUTPUT_BYTES, self._max_output)  # a smaller limit is applied to the result
        fixed = {
            "SANDBOX_STATE": str(self._state.absolute()),
            "SANDBOX_MAX_OUTPUT_BYTES": str(max_output),
            "SANDBOX_MAX_TIMEOUT_SECONDS": str(math.ceil(self._max_seconds)),
        }
        return {**_DEFAULT_ENV, **inherited, **fixed}


class _SandboxProcess:
    """The child process and the client of its server."""

    def __init__(self, process: asyncio.subprocess.Process, sandboxes: RemoteSandboxes) -> None:
        self.sandboxes = sandboxes
        self._process = process
        self._stderr = b""
        self._reading = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, path: Path, environment: Mapping[str, str]) -> _SandboxProcess:
        """Start the process, and wait until its server answers."""
        sandboxes = await asyncio.to_thread(  # reads certificate files
            RemoteSandboxes, "http://sandbox", uds=str(path), is_child=True
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "antwort", "sandbox", "--uds", str(path), "--with-parent"),
            env=environment,
            stdin=asyncio.subprocess.PIPE,  # the child ends when this pipe is closed
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process, which stops the child in order
        )
        child = cls(process, sandboxes)
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                await child._wait_until_ready()
        except TimeoutError as error:
            await child.stop()
            raise JailUnavailable(f"The sandbox server did not come up within {_START_TIMEOUT:.0f} s.") from error
        except BaseException:
            await child.stop()
            raise
        return child

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def has_exited(self) -> bool:
        """Whether the process has exited, which the kernel may report with a delay."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await self._process.wait()
        return not self.is_alive

    async def stop(self) -> None:
        """Stop the process and everything that it has started."""
        await self.sandboxes.aclose()
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(_STOP_TIMEOUT):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _wait_until_ready(self) -> None:
        while True:
            if not self.is_alive:
                await asyncio.gather(self._reading, return_exceptions=True)
                raise JailUnavailable(self._exit_message())
            try:
                await self.sandboxes.check()
            except SandboxError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return

    async def _read_stderr(self) -> None:
        """Keep the tail of stderr for the error of a failed start. Logged at debug level only: it may quote code."""
        assert self._process.stderr is not None  # noqa: S101 - a pipe was requested
        while chunk := await self._process.stderr.read(_MAX_STDERR_BYTES):
            self._stderr = (self._stderr + chunk)[-_MAX_STDERR_BYTES:]
            _logger.debug("sandbox server: %s", chunk.decode(errors="replace").rstrip())

    def _exit_message(self) -> str:
        """The last line of stderr, in the format of click's errors."""
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1].removeprefix("Error: ") if lines else ""
        return message or f"the sandbox server ended with {self._process.returncode}"
