"""Supervisor of the llama.cpp process: starts it with the first request, restarts it when it died, stops it."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from antwort.engine.ports import ModelFault
from antwort.models.embedded.server import LlamaSettings, Ready
from antwort.models.upstream import Upstream

_log = structlog.get_logger(__name__)
SERVER_COMMAND: Final = (sys.executable, "-m", "antwort.models.embedded.server")
_START_TIMEOUT: Final = 180.0
_STOP_TIMEOUT: Final = 5.0
_MAX_STDERR_LINES: Final = 20
_CHUNK: Final = 64 * 1024


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Supervisor:
    """Runs at most one process. `upstream` returns a client for it."""

    def __init__(
        self,
        weights: Path,
        *,
        context: int = 8192,
        parallel: int = 2,
        threads: int | None = None,
        command: Sequence[str] = SERVER_COMMAND,
    ) -> None:
        key, threads = secrets.token_urlsafe(32), threads or usable_cores()
        self._settings = LlamaSettings(
            weights=str(weights), key=key, context=context, parallel=parallel, threads=threads
        )
        self._command = tuple(command)
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._upstream: Upstream | None = None
        self._stderr_task: asyncio.Task[None] | None = None
        self._stderr_tail: deque[str] = deque(maxlen=_MAX_STDERR_LINES)
        """The last lines of stderr, for the log."""
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process id; None if the process is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def upstream(self) -> Upstream:
        """A client for the process, which is started if it is not running."""
        async with self._lock:
            if self._upstream is None or self.pid is None:
                await self._stop()
                self._upstream = await self._start()
            return self._upstream

    async def aclose(self) -> None:
        """Stop the process for good. One that is still loading weights is killed."""
        self._is_closed = True
        if self._upstream is None and self._process is not None and self._process.returncode is None:
            self._process.kill()
        async with self._lock:
            await self._stop()

    async def _start(self) -> Upstream:
        if self._is_closed:
            raise ModelFault("The server is stopping.", status=503, retryable=True)
        _log.info("model_starts", weights=Path(self._settings.weights).name)
        self._stderr_tail.clear()
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C reaches the server only, which then stops this process
                )
                self._stderr_task = asyncio.create_task(_read_stderr(process, self._stderr_tail))
                ready = await self._handshake(process)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            await self._stop()
            _log.error("model_did_not_start", error=str(error), stderr=list(self._stderr_tail))
            message = "The embedded model did not start. The server's log contains the reason."
            raise ModelFault(message, status=503) from error
        except BaseException:
            await self._stop()
            raise
        _log.info("model_ready", pid=process.pid)
        # It closes the connection after a streamed answer without announcing it, so connections are not reused.
        headers = {"connection": "close"}
        name = Path(self._settings.weights).name
        return Upstream(ready.address, name=name, api_key=self._settings.key, headers=headers, direct=True)

    async def _handshake(self, process: asyncio.subprocess.Process) -> Ready:
        assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        await process.stdin.drain()
        return msgspec.json.decode(await process.stdout.readline(), type=Ready)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()
        if process is None:
            return
        exit_code = process.returncode if upstream is not None else None
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._stderr_task is not None:
            # It ends with the process, after its last output.
            await asyncio.wait([self._stderr_task], timeout=_STOP_TIMEOUT)
            self._stderr_task.cancel()
        if exit_code is not None:
            _log.warning("model_died", exit_code=exit_code, stderr=list(self._stderr_tail))


async def _read_stderr(process: asyncio.subprocess.Process, lines: deque[str]) -> None:
    """Read stderr continuously: a full pipe would block the process."""
    assert process.stderr is not None  # noqa: S101 - for the type checker: it is a pipe
    while chunk := await process.stderr.read(_CHUNK):
        lines.extend(chunk.decode(errors="replace").splitlines())
