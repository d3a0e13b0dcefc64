"""Sandboxes of this machine: a sandbox server as our own child, started, watched and ended here.

It is another process because it runs what nobody has read: whatever becomes of it, the
server goes on, and starts another when one is needed. It listens on a socket that only we
can reach, and dies with us, in whatever way, and its containers with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from antwort.containers.sandboxes.client import NoAnswer, SandboxServer
from antwort.containers.sandboxes.port import Sandbox, SandboxFault, SandboxTrouble
from antwort.containers.sandboxes.remote import RemoteSandboxes

_logger = logging.getLogger(__name__)

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02
_STOP_SECONDS: Final = 10.0
_DEATH_SECONDS: Final = 1.0
_LAST_WORDS: Final = 1 << 12

# The child runs what nobody has read, so it is handed nothing that it does not need: no keys of models, for one.
_HANDED_ON: Final = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_PREFIXES: Final = ("SANDBOX_", "LC_")
_OURS_TO_SAY: Final = frozenset({"SANDBOX_HOST", "SANDBOX_PORT", "SANDBOX_UDS", "SANDBOX_TOKEN"})
# Containers have quotas of their own, for each owner; idle ones cost little.
_ROOM: Final = {"SANDBOX_MAX_SESSIONS": "256", "SANDBOX_MAX_SESSIONS_PER_TENANT": "256"}

_LEAST_OUTPUT: Final = 1024
_LONGEST_SOCKET: Final = 100  # bytes of a path; the system takes a few more
_SHORT: Final = "/tmp"  # noqa: S108 - a directory of our own is made there, for us alone


class JailUnavailable(SandboxFault):
    """The sandbox server does not start on this machine. The message is its own."""


class LocalSandboxes:
    """`Sandboxes` of this machine's jail. `start` tells early whether there is one."""

    def __init__(
        self,
        state: Path,
        *,
        max_output: int,
        max_seconds: float = 3600.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._state = state
        self._max_output = max_output
        self._max_seconds = max_seconds
        self._environment = environment
        self._child: _Child | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._elsewhere: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Start the child now; `NoJail` says why that cannot be."""
        await self._running()

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            child = await self._running()
            left = max(0.0, deadline - loop.time())
            try:
                return await child.sandboxes.acquire(tenant=tenant, memory_limit=memory_limit, timeout=left)
            except NoAnswer:
                if not await child.has_died():
                    raise

    async def release(self, sandbox: Sandbox) -> None:
        if self._child is not None:  # those of one that has died are gone
            await self._child.sandboxes.release(sandbox)

    async def aclose(self) -> None:
        self._closed = True
        async with self._starting:
            if self._child is not None:
                await self._child.stop()
            if self._elsewhere is not None:
                self._elsewhere.cleanup()

    async def _running(self) -> _Child:
        async with self._starting:
            if self._closed:
                raise SandboxFault("The server is stopping.")
            if self._child is None or not self._child.alive:
                if self._child is not None:
                    _logger.error("the sandbox server has ended; it is started again")
                    await self._child.stop()
                self._child = await _Child.started(self._socket(), self._command_environment())
            return self._child

    def _socket(self) -> Path:
        """Beside what it installs, where the next one finds what a killed one leaves; elsewhere if that is too far."""
        path = (self._state / "run" / "sandbox.sock").absolute()
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            return path
        if self._elsewhere is None:
            usual = tempfile.gettempdir()
            place = usual if len(os.fsencode(usual)) <= _LONGEST_SOCKET // 2 else _SHORT
            self._elsewhere = tempfile.TemporaryDirectory(prefix="antwort-", dir=place)
        return Path(self._elsewhere.name, "sandbox.sock")

    def _command_environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self._environment.items()
            if name not in _OURS_TO_SAY and (name in _HANDED_ON or name.startswith(_PREFIXES))
        }
        output = max(_LEAST_OUTPUT, self._max_output)  # what is more than was asked for is cut afterwards
        ours = {
            "SANDBOX_STATE": str(self._state.absolute()),
            "SANDBOX_MAX_OUTPUT_BYTES": str(output),
            "SANDBOX_MAX_TIMEOUT_SECONDS": str(math.ceil(self._max_seconds)),
        }
        return {**_ROOM, **kept, **ours}


class _Child:
    """The process, and the way to it."""

    def __init__(self, process: asyncio.subprocess.Process, sandboxes: RemoteSandboxes) -> None:
        self.sandboxes = sandboxes
        self._process = process
        self._said = b""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def started(cls, path: Path, environment: Mapping[str, str]) -> _Child:
        """Start it, and wait until it answers."""
        server = await asyncio.to_thread(SandboxServer, "http://sandbox", uds=str(path), own=True)  # reads files
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "antwort", "sandbox", "--uds", str(path), "--with-parent"),
            env=environment,
            stdin=asyncio.subprocess.PIPE,  # it ends when nobody holds the other end any more
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for us; we end it in good order
        )
        child = cls(process, RemoteSandboxes(server))
        try:
            async with asyncio.timeout(_START_SECONDS):
                await child._answers()
        except TimeoutError as error:
            await child.stop()
            raise JailUnavailable(f"The sandbox server did not come up within {_START_SECONDS:.0f} s.") from error
        except BaseException:
            await child.stop()
            raise
        return child

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def has_died(self) -> bool:
        """Whether that is why it does not answer; the system may need a moment to tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._process.wait()
        return not self.alive

    async def stop(self) -> None:
        """End it with everything that it has started."""
        await self.sandboxes.aclose()
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _answers(self) -> None:
        while True:
            if not self.alive:
                await asyncio.gather(self._listening, return_exceptions=True)
                raise JailUnavailable(self._last_words())
            try:
                return await self.sandboxes.check()
            except SandboxTrouble:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _listen(self) -> None:
        """Its last words are kept, to say why it would not start. They are no log of ours: they may quote code."""
        assert self._process.stderr is not None  # noqa: S101 - it was asked for
        while piece := await self._process.stderr.read(_LAST_WORDS):
            self._said = (self._said + piece)[-_LAST_WORDS:]
            _logger.debug("the sandbox server says: %s", piece.decode(errors="replace").rstrip())

    def _last_words(self) -> str:
        """The last line, as click writes an error."""
        lines = self._said.decode(errors="replace").strip().splitlines()
        said = lines[-1].removeprefix("Error: ") if lines else ""
        return said or f"the sandbox server ended with {self._process.returncode}"
