"""Looks after the model's process: starts it with the first request, starts it again when it has died, ends it."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from antwort.engine.ports import ModelFault
from antwort.models.embedded.server import Ready, Settings
from antwort.models.upstream import Upstream

_log = structlog.get_logger(__name__)
COMMAND: Final = (sys.executable, "-m", "antwort.models.embedded.server")
_PATIENCE: Final = 180.0
_GRACE: Final = 5.0


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
        self._settings = Settings(
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
        """End it, and start none again."""
        self._closed = True
        async with self._lock:
            await self._end()

    async def _start(self) -> Upstream:
        if self._closed:
            raise ModelFault("The server is stopping.", status=503, retryable=True)
        _log.info("model_starts", weights=Path(self._settings.weights).name)
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                ready = await self._greet(process)
        except BaseException:
            await self._end()
            raise
        _log.info("model_ready", pid=process.pid)
        return Upstream(ready.address, api_key=self._settings.key)

    async def _greet(self, process: asyncio.subprocess.Process) -> Ready:
        assert process.stdin is not None  # noqa: S101 - for the type checker: it was asked for
        assert process.stdout is not None  # noqa: S101 - likewise
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        try:
            await process.stdin.drain()
            return msgspec.json.decode(await process.stdout.readline(), type=Ready)
        except (OSError, msgspec.MsgspecError) as error:
            code = await process.wait()
            _log.error("model_did_not_start", exit_code=code)
            raise ModelFault(
                "The embedded model did not start. `antwort doctor` says more.", status=503, retryable=True
            ) from error

    async def _end(self) -> None:
        process, self._process = self._process, None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if process.returncode:
            _log.warning("model_died", exit_code=process.returncode)
