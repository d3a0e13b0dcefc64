"""Transport of a program that speaks MCP on standard input and output, in a bubblewrap jail.

The program sees a read-only `/usr`, an empty `/tmp`, and the folders of its configuration at their own paths. It has no
network unless the configuration says so, an environment of its own, no capabilities, and it ends with the session.
Its memory, processes and files are limited like those of a container: by rlimits, and by a cgroup where the server may
use one without moving its own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from antwort.sandbox.errors import CannotStart
from antwort.sandbox.host.cgroups import Cgroup, CgroupsUnavailable, detect
from antwort.sandbox.host.process import descendants
from antwort.sandbox.limits import ContainerLimits
from antwort.tools.mcp.client.jail import jailed, limits_of, missing_folder
from antwort.tools.mcp.client.targets import (
    INTERNAL_ERROR,
    McpFault,
    SessionLimits,
    StdioTarget,
    protocol_error,
    unreachable,
)

_logger = logging.getLogger(__name__)

Incoming: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing: TypeAlias = MemoryObjectReceiveStream[SessionMessage]

_EXIT_TIMEOUT: Final = 2.0
_MAX_STDERR: Final = 4_000


@asynccontextmanager
async def stdio_transport(
    target: StdioTarget, limits: SessionLimits
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """A transport of the SDK: starts the program, and kills it with all of its children in the end."""
    process, cgroup = await _start_or_end(target, limits)
    incoming_writer, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_reader = anyio.create_memory_object_stream[SessionMessage](0)
    stderr = asyncio.create_task(_read_stderr(process))
    try:
        async with incoming_writer, incoming, outgoing, outgoing_reader, anyio.create_task_group() as group:
            group.start_soon(_read, process, incoming_writer)
            group.start_soon(_write, process, outgoing_reader)
            try:
                yield incoming, outgoing
            finally:
                group.cancel_scope.cancel()
    finally:
        await asyncio.shield(_end(process, cgroup, stderr, target))


async def _start_or_end(target: StdioTarget, limits: SessionLimits) -> tuple[Process, Cgroup | None]:
    """Start the program. A start that is cancelled is completed, so that all of what it has made is released."""
    starting = asyncio.create_task(_start(target, limits))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(_end_unused(starting, target))
        raise


async def _end_unused(starting: asyncio.Task[tuple[Process, Cgroup | None]], target: StdioTarget) -> None:
    with contextlib.suppress(McpFault):
        process, cgroup = await starting
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await _end(process, cgroup, asyncio.create_task(_read_stderr(process)), target)


async def _start(target: StdioTarget, limits: SessionLimits) -> tuple[Process, Cgroup | None]:
    """Start the program, and let it run when it is in its cgroup, if it gets one."""
    folder = await asyncio.to_thread(missing_folder, target)
    if folder is not None:
        _logger.error("the folder %s of the MCP server %s does not exist", folder, target.command[0])
        raise unreachable("the server's program could not be started")
    waiting, go = os.pipe()
    try:
        launch = await asyncio.to_thread(jailed, target, waiting)
        waiting = -1  # the launch closes it
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=limits.max_bytes,
                pass_fds=launch.descriptors,
                start_new_session=True,
                env={},
                cwd="/",
            )
        finally:
            launch.close()
        try:
            cgroup = await asyncio.to_thread(_limit, process.pid, limits_of(target))
        except BaseException:
            process.kill()
            raise
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the reader notices
            os.write(go, b"1")
    except (CannotStart, OSError) as error:
        _logger.error("the MCP server %s could not be started: %s", target.command[0], error)  # noqa: TRY400 - no trace
        raise unreachable("the server's program could not be started") from error
    finally:
        for descriptor in (waiting, go):
            if descriptor >= 0:
                os.close(descriptor)
    return process, cgroup


def _limit(pid: int, limits: ContainerLimits) -> Cgroup | None:
    """Move the program, which does not run yet, into a cgroup; None where there is none. Blocks."""
    try:
        manager = detect()
        if manager.must_move:
            return None
        manager.claim()
        cgroup = manager.create([])
    except (CgroupsUnavailable, OSError):
        return None
    try:
        cgroup.limit(limits)
        for _ in range(2):  # a child that was born meanwhile is found the second time
            cgroup.add(descendants(pid))
    except OSError as error:
        _logger.warning("the cgroup of an MCP server cannot be used: %s", error)
        cgroup.release()
        return None
    return cgroup


async def _read(process: Process, incoming: Incoming) -> None:
    """Read one message per line. A line that is too long ends the session."""
    assert process.stdout is not None  # noqa: S101 - a pipe was requested
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with incoming:
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError as error:
                    raise protocol_error(INTERNAL_ERROR, "a message of the server is too long") from error
                if not line:
                    return
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:  # a line of a log, mostly
                    await incoming.send(error)
                else:
                    await incoming.send(SessionMessage(message))


async def _write(process: Process, outgoing: Outgoing) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe was requested
    with contextlib.suppress(OSError):  # it has ended, which the reader notices
        async for message in outgoing:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(data.encode() + b"\n")
            await process.stdin.drain()


async def _read_stderr(process: Process) -> str:
    """The tail of stderr, read to the end, so that the process never blocks on a full pipe."""
    kept = b""
    while process.stderr is not None and (piece := await process.stderr.read(1 << 16)):
        kept = (kept + piece)[-_MAX_STDERR:]
    return kept.decode(errors="replace")


async def _drain(process: Process) -> None:
    """Read standard output to the end, so that the program can end, and its pipe is closed."""
    while process.stdout is not None and await process.stdout.read(1 << 16):
        pass


async def _end(process: Process, cgroup: Cgroup | None, stderr: asyncio.Task[str], target: StdioTarget) -> None:
    """Close standard input, wait shortly, kill what is left, and release the cgroup."""
    has_ended = process.returncode is not None
    stdout = asyncio.create_task(_drain(process))
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    _, pending = await asyncio.wait([stdout, stderr], timeout=_EXIT_TIMEOUT)
    for task in pending:
        task.cancel()
    if has_ended and stderr not in pending:
        _logger.warning(
            "the MCP server %s ended with code %s: %s", target.command[0], process.returncode, stderr.result()[-500:]
        )
    if cgroup is not None:
        await asyncio.to_thread(cgroup.release)
