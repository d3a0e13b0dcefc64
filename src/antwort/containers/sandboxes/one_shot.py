"""Sandboxes over the base protocol (`POST /execute`): every run is a new process, and only files persist.

A sandbox server that has no sessions runs code once and forgets it. So the files of the container are kept here, sent
with every run, and updated with the files that the run produced (those that it left in `$OUTPUT_DIR`).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

import httpx2
import msgspec
from msgspec import Struct

from antwort.containers.sandboxes.port import (
    ExecutionResult,
    ExecutionStatus,
    Figure,
    Output,
    SandboxFile,
    SandboxLost,
    SandboxProtocolError,
    SandboxRefused,
    SandboxUnavailable,
    TextFile,
)
from antwort.containers.sandboxes.protocol import ErrorReply, decode, read_body
from antwort.containers.sandboxes.spool import MAX_BYTES, FileSpool

T = TypeVar("T")

_IMAGE_TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Raster images only: SVG may contain scripts, so it stays a text file."""
NO_COMMANDS: Final = "The sandbox server of this installation runs no shell commands."
NO_SKILLS: Final = "The sandbox server of this installation has no skills."
_INSTALL_FAILED: Final = "package installation failed: "
_STOPPED: Final = -1
_MAX_REPLY_BYTES: Final = 256 << 20
_REPLY_MARGIN: Final = 30.0
"""Seconds above the time-out of the code: to start, to stop it, and to send its files."""


class SandboxRequests(Protocol):
    """Sends requests to the sandbox server. `RemoteSandboxes` implements it."""

    def request(
        self, method: str, path: str, *, body: bytes | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a request; `ErrorReply` for an error status. `timeout` is for the whole reply."""
        ...


class _Report(Struct):
    """Reply to `POST /execute`."""

    status: str
    exit_code: int
    stdout: str | None = None
    stderr: str | None = None
    execution_time_ms: float | None = None
    files_produced: dict[str, bytes] | None = None


class _Produced(Struct, frozen=True):
    figures: tuple[Figure, ...]
    text_files: tuple[TextFile, ...]
    notes: tuple[str, ...]


class OneShotSandbox:
    """A `Sandbox` without an interpreter of its own. Variables do not persist; files do."""

    def __init__(self, server: SandboxRequests, *, capacity_timeout: float) -> None:
        self.id = f"run-{secrets.token_hex(4)}"
        self._server = server
        self._capacity_timeout = capacity_timeout
        self._spool = FileSpool()
        self._released = False
        self._posting: asyncio.Task[_Report] | None = None

    async def run(
        self,
        code: str,
        *,
        requirements: Sequence[str] = (),
        timeout: float,  # noqa: ASYNC109 - of the code in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        self._check()
        _check_requirements(requirements)
        seconds = math.ceil(timeout)
        # Some servers give the time to the installation and to the run, each.
        reply_timeout = _REPLY_MARGIN + (2 * seconds if requirements else seconds)
        body = await asyncio.to_thread(self._body, code, requirements, seconds)
        report = await self._post(body, reply_timeout)
        if report is None:
            yield ExecutionResult(status="interrupted", exit_code=_STOPPED, keeps_variables=False)
            return
        produced = await asyncio.to_thread(self._keep, report.files_produced or {})
        printed = (Output("stdout", report.stdout or ""), Output("stderr", report.stderr or ""))
        output = tuple(piece for piece in printed if piece.text)
        for piece in output:
            yield piece
        status, reason = _outcome(report, seconds)
        code_note = [f"exit code {report.exit_code}"] if status == "error" and not output else []
        yield ExecutionResult(
            status=status,
            reason=reason,
            output=output,
            figures=produced.figures,
            text_files=produced.text_files,
            notes=(*code_note, *produced.notes),
            exit_code=report.exit_code,
            duration_ms=round(report.execution_time_ms or 0),
            keeps_variables=False,
        )

    async def run_command(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 - of the command in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """The base protocol runs Python only."""
        del command, timeout
        steps: tuple[Output | ExecutionResult, ...] = ()
        for step in steps:
            yield step
        raise SandboxRefused(NO_COMMANDS)

    async def add_skill(self, name: str, tar: AsyncIterator[bytes]) -> None:
        """The base protocol has no place for them."""
        del name, tar
        raise SandboxRefused(NO_SKILLS)

    async def interrupt(self) -> None:
        """Abandon the running request, which ends the code."""
        if self._posting is not None:
            self._posting.cancel()

    async def list_files(self) -> list[SandboxFile]:
        self._check()
        return self._spool.list()

    async def write_file(self, path: str, content: AsyncIterator[bytes]) -> SandboxFile:
        self._check()
        self._spool.check_path(path)
        with self._spool.upload() as arriving:
            size = 0
            async for chunk in content:
                size += len(chunk)
                if size > MAX_BYTES:
                    raise SandboxRefused(f"{path!r} exceeds the {MAX_BYTES >> 20} MiB of one run.", "size")
                await asyncio.to_thread(arriving.write, chunk)
            arriving.seek(0)
            return await asyncio.to_thread(self._spool.store, path, arriving, size)

    async def read_file(self, path: str) -> AsyncGenerator[bytes, None]:
        self._check()
        async for chunk in _in_threads(lambda: self._spool.read(path)):
            yield chunk

    async def delete_file(self, path: str) -> bool:
        self._check()
        return await asyncio.to_thread(self._spool.delete, path)

    async def unpack(self, tar: AsyncIterator[bytes]) -> None:
        self._check()
        with self._spool.upload() as arriving:
            size = 0
            async for chunk in tar:
                size += len(chunk)
                if size > 2 * MAX_BYTES:  # headers and padding of many small files included
                    raise SandboxRefused(f"The archive exceeds {2 * MAX_BYTES >> 20} MiB.", "size")
                await asyncio.to_thread(arriving.write, chunk)
            arriving.seek(0)
            await asyncio.to_thread(self._spool.unpack, arriving)

    async def pack(self) -> AsyncGenerator[bytes, None]:
        self._check()
        async for chunk in _in_threads(self._spool.pack):
            yield chunk

    async def end(self) -> None:
        """Delete the files."""
        if not self._released:
            self._released = True
            await self.interrupt()
            await asyncio.to_thread(self._spool.close)

    def _check(self) -> None:
        if self._released:
            raise SandboxLost("The sandbox was released.", begun=False)

    def _body(self, code: str, requirements: Sequence[str], seconds: int) -> bytes:
        body = {"code": code, "timeout_seconds": seconds}
        if requirements:
            body |= {"requirements": list(requirements)}
        if files := self._spool.encoded():
            body |= {"files": files}
        return msgspec.json.encode(body)

    async def _post(self, body: bytes, reply_timeout: float) -> _Report | None:
        """Send a run, which the generator's close and `interrupt` end; None if it was interrupted."""
        self._posting = posting = asyncio.create_task(self._execute(body, reply_timeout))
        try:
            await asyncio.wait([posting])
        finally:
            self._posting = None
            if not posting.done():
                posting.cancel()
                await asyncio.gather(posting, return_exceptions=True)
        return None if posting.cancelled() else posting.result()

    async def _execute(self, body: bytes, reply_timeout: float) -> _Report:
        """Send a run; while the server is at its capacity, again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._capacity_timeout
        while True:
            try:
                async with self._server.request("POST", "/execute", body=body, timeout=reply_timeout) as reply:
                    received = await read_body(reply, _MAX_REPLY_BYTES)
                return await asyncio.to_thread(decode, received, _Report)
            except ErrorReply as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    raise SandboxProtocolError("The sandbox server has neither /sessions nor /execute.") from error
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise error.as_sandbox_error("request") from error
                if deadline - loop.time() < error.retry_after:
                    raise SandboxUnavailable("Every sandbox is in use; try again later.") from error
                await asyncio.sleep(error.retry_after)

    def _keep(self, files: dict[str, bytes]) -> _Produced:
        """Store the produced files: images become figures, and text becomes output, as the caller has no other view."""
        figures: list[Figure] = []
        texts: list[TextFile] = []
        notes: list[str] = []
        for path in sorted(files):
            content = files[path]
            try:
                self._spool.write(path, content)
            except SandboxRefused as refused:
                notes.append(f"a file was not kept: {refused}")
                continue
            if mime := _IMAGE_TYPES.get(PurePosixPath(path).suffix.lower()):
                figures.append(Figure(mime, content))
            elif (text := _as_text(content)) is not None:
                texts.append(TextFile(path, text))
        return _Produced(tuple(figures), tuple(texts), tuple(notes))


def _check_requirements(requirements: Sequence[str]) -> None:
    """Refuse what is no package name: another server may pass it to its installer as an option."""
    for name in requirements:
        if name.lstrip().startswith("-") or "://" in name:
            raise SandboxRefused(f"{name!r} is not a package name with versions.", "request")


def _outcome(report: _Report, seconds: int) -> tuple[ExecutionStatus, str | None]:
    """The status, and why code that did not end by itself has ended."""
    if report.exit_code < _STOPPED:
        return "ended", f"by signal {-report.exit_code}"
    if report.exit_code != _STOPPED:
        return ("ok" if report.exit_code == 0 and report.status != "error" else "error"), None
    if (report.stderr or "").startswith(_INSTALL_FAILED):
        return "error", None
    if (report.execution_time_ms or 0) >= seconds * 1000:
        return "timeout", None
    return "ended", "the sandbox server stopped it, or could not start it"


def _as_text(content: bytes) -> str | None:
    """The text of a file; None if it is binary."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


async def _in_threads(start: Callable[[], Iterator[bytes]]) -> AsyncGenerator[bytes, None]:
    """Chunks of a blocking iterator."""
    chunks = start()
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk
