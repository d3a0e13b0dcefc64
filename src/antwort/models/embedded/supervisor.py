"""Looks after the model's process: starts it with the first request, starts it again when it has died, ends it."""

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
COMMAND: Final = (sys.executable, "-m", "antwort.models.embedded.server")
_PATIENCE: Final = 180.0
_GRACE: Final = 5.0
_LINES: Final = 20
_CHUNK: Final = 64 * 1024


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Supervisor:
    """One process at most. `upstream` is the way to it."""

    def __init__(
        self,
        weights: Path,
        *,
        context: int = 8192,
        parallel: int = 2,
        threads: int | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._settings = LlamaSettings(
            weights=str(weights),
            key=secrets.token_urlsafe(32),
            context=context,
            parallel=parallel,
            threads=threads or usable_cores(),
        )
        self._command = tuple(command)
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._upstream: Upstream | None = None
        self._listener: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=_LINES)
        """The end of what it has printed, for the log."""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def upstream(self) -> Upstream:
        """The way to a live process; one is started where there is none."""
        async with self._lock:
            if self._upstream is None or self.pid is None:
                await self._end()
                self._upstream = await self._start()
            return self._upstream

    async def aclose(self) -> None:
        """End it, and start none again. One that is still loading is not waited for."""
        self._closed = True
        if self._upstream is None and self._process is not None and self._process.returncode is None:
            self._process.kill()
        async with self._lock:
            await self._end()

    async def _start(self) -> Upstream:
        if self._closed:
            raise ModelFault("The server is stopping.", status=503, retryable=True)
        _log.info("model_starts", weights=Path(self._settings.weights).name)
        self._said.clear()
        try:
            async with asyncio.timeout(_PATIENCE):
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,  # an interrupt from a terminal is for the server, which ends it in order
                )
                self._listener = asyncio.create_task(_listen(process, self._said))
                ready = await self._greet(process)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            await self._end()
            _log.error("model_did_not_start", error=str(error), said=list(self._said))
            raise ModelFault("The embedded model did not start. The server's log says why.", status=503) from error
        except BaseException:
            await self._end()
            raise
        _log.info("model_ready", pid=process.pid)
        # It hangs up after a streamed answer, though it does not say so: no connection is used twice.
        once = {"connection": "close"}
        return Upstream(ready.address, api_key=self._settings.key, headers=once, direct=True)

    async def _greet(self, process: asyncio.subprocess.Process) -> Ready:
        assert process.stdin is not None  # noqa: S101 - for the type checker: it was asked for
        assert process.stdout is not None  # noqa: S101 - so was this
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        await process.stdin.drain()
        return msgspec.json.decode(await process.stdout.readline(), type=Ready)

    async def _end(self) -> None:
        process, self._process = self._process, None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()
        if process is None:
            return
        died = process.returncode if upstream is not None else None
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._listener is not None:
            await asyncio.wait(
                [self._listener], timeout=_GRACE
            )  # it ends with the process, and has heard its last words
            self._listener.cancel()
        if died is not None:
            _log.warning("model_died", exit_code=died, said=list(self._said))


async def _listen(process: asyncio.subprocess.Process, said: deque[str]) -> None:
    """Read what it prints: a pipe that nobody empties would stop it."""
    assert process.stderr is not None  # noqa: S101 - for the type checker: it was asked for
    while chunk := await process.stderr.read(_CHUNK):
        said.extend(chunk.decode(errors="replace").splitlines())
