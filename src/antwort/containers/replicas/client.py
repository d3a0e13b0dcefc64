"""Client of other replicas: runs operations in the process that holds the sandbox, over HTTP.

One hop: the replica that is called does not pass the call on. Where it does not answer, the call waits for the
membership to tell whether it has died. If so, and nothing was sent, the operation can run here, in a new sandbox; if it
was sent, it may have been executed, and is not repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, NoReturn, Self, TypeVar

import httpx2
import msgspec

from antwort.containers.replicas.calls import (
    ARGUMENTS_HEADER,
    AUTH_SCHEME,
    CALL_ERROR_STATUS,
    CALLS_PATH,
    Call,
    CallError,
    CallTokens,
    CopyFilesCall,
    DeleteFileCall,
    ExecuteCall,
    PrepareCall,
    PutFileCall,
    ReadFilesCall,
    ReleaseCall,
    RunCommandCall,
    SyncFilesCall,
    UnpackCall,
    encode_call,
    encode_header,
)
from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    PythonCode,
    SandboxLost,
    SandboxUnavailable,
    ShellCommand,
)
from antwort.engine.replicas.port import ReplicaDirectory
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, FileRecord, Owner, SandboxRef
from antwort.net.errors import EventTooLong
from antwort.net.http_transport import HttpTransport
from antwort.net.sse import EventReader, ServerEvent

T = TypeVar("T")

CALL_KEEP_ALIVE: Final = 5.0
"""Interval of the comments in a reply without events."""
MAX_ARGUMENTS: Final = 64 << 20
"""Maximum bytes of the arguments of a call."""

_MAX_EVENT_BYTES: Final = 256 << 20
_CONNECT_TIMEOUT: Final = 5.0
_READ_TIMEOUT: Final = 30.0
_KEEPALIVE_EXPIRY: Final = 4.0  # shorter than the 5 s of the server, so that no request meets its close
_LIVENESS_INTERVAL: Final = 0.25
_VERDICT_TIMEOUT: Final = 8.0  # more than the lease of a replica
_UNKNOWN_URL_TIMEOUT: Final = 2.0  # more than the interval in which the membership learns of a new or removed replica
_MAX_ERROR_BYTES: Final = 64 << 10
_RELEASE_TIMEOUT: Final = 5.0
_INLINE_BYTES: Final = 64 << 10
_NOT_ACCEPTED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class HolderEnded(Exception):
    """The replica that held the sandbox has ended before it received the call: nothing was done."""


class ReplicaUnavailable(SandboxUnavailable):
    """The replica that holds the sandbox lives, and cannot be reached or does not answer."""

    metric_label = "replica"


class _NotSent(Exception):
    """The call did not reach the replica, for this reason."""


class _Broken(Exception):
    """The reply broke off, or did not come: the call may have been executed."""


class ReplicaClient:
    """`ContainerOperations` in other replicas."""

    def __init__(self, replicas: ReplicaDirectory, tokens: CallTokens) -> None:
        self._replicas = replicas
        self._tokens = tokens
        self._client = httpx2.AsyncClient(
            headers={"accept-encoding": "identity"},  # a compressed reply could be a decompression bomb
            transport=HttpTransport(idle_timeout=_KEEPALIVE_EXPIRY),
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def execute(
        self, owner: Owner, record: ContainerRecord, program: PythonCode | ShellCommand, *, seconds: float
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        if isinstance(program, ShellCommand):
            call: Call = RunCommandCall(program.command, seconds)
        else:
            call = ExecuteCall(program.code, program.requirements, seconds)
        async with self._called(owner, record, call) as reply:
            result: ExecutionResult | None = None
            async for event in _events(reply):
                if event.name == "output":
                    yield _decode(event.data, Output)
                else:
                    result = _decode(event.data, ExecutionResult)
            if result is None:
                raise _Broken("it ended without a result")
            yield result

    async def put_file(
        self, owner: Owner, record: ContainerRecord, path: str, content: AsyncIterator[bytes]
    ) -> ContainerFileRecord:
        return await self._value(owner, record, PutFileCall(path), ContainerFileRecord, content)

    async def copy_files(
        self, owner: Owner, record: ContainerRecord, files: Sequence[FileRecord], *, again: bool
    ) -> list[ContainerFileRecord]:
        call = CopyFilesCall([file.id for file in files], again)
        return await self._value(owner, record, call, list[ContainerFileRecord])

    async def unpack(
        self, owner: Owner, record: ContainerRecord, tar: AsyncIterator[bytes]
    ) -> list[ContainerFileRecord]:
        return await self._value(owner, record, UnpackCall(), list[ContainerFileRecord], tar)

    async def delete_file(self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord) -> None:
        await self._value(owner, record, DeleteFileCall(file.id), type(None))

    async def prepare(self, owner: Owner, record: ContainerRecord) -> None:
        await self._value(owner, record, PrepareCall(), type(None))

    async def read(
        self, owner: Owner, record: ContainerRecord, file: ContainerFileRecord | None
    ) -> AsyncGenerator[bytes, None]:
        async with self._called(owner, record, ReadFilesCall(None if file is None else file.id)) as reply:
            async for chunk in reply.aiter_raw():
                yield chunk

    async def sync_files(self, owner: Owner, record: ContainerRecord) -> None:
        await self._value(owner, record, SyncFilesCall(), type(None))

    async def release(self, owner: Owner, record: ContainerRecord) -> None:
        """End the sandbox of a deleted container. Waits a bounded time: its holder also notices that by itself."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._value(owner, record, ReleaseCall(), type(None))
        except TimeoutError as error:
            raise ReplicaUnavailable("The replica that runs the container does not answer.") from error

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _value(
        self,
        owner: Owner,
        record: ContainerRecord,
        call: Call,
        kind: type[T],
        content: AsyncIterator[bytes] | None = None,
    ) -> T:
        """The result of a call that has one value."""
        async with self._called(owner, record, call, content) as reply:
            values = [_decode(event.data, kind) async for event in _events(reply)]
            if not values:
                raise _Broken("it ended without a result")
            return values[0]

    @asynccontextmanager
    async def _called(
        self, owner: Owner, record: ContainerRecord, call: Call, content: AsyncIterator[bytes] | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """The reply of the replica that holds the sandbox. Errors of the connection become those of the operation."""
        holder = SandboxRef(record.replica or "", record.sandbox or "")
        try:
            async with self._sent(owner, record.id, holder, call, content) as reply:
                yield reply
        except _NotSent as error:
            wait = _VERDICT_TIMEOUT if self._replicas.url(holder.replica) else _UNKNOWN_URL_TIMEOUT
            if await self._has_ended(holder.replica, wait):
                raise HolderEnded from error
            raise ReplicaUnavailable(f"The container runs on the replica {holder.replica}, {error}") from error
        except (_Broken, httpx2.TransportError, httpx2.StreamError, EventTooLong, msgspec.DecodeError) as error:
            if await self._has_ended(holder.replica, _VERDICT_TIMEOUT):
                raise SandboxLost("The server that ran it has stopped.") from error
            raise ReplicaUnavailable(
                f"The container runs on the replica {holder.replica}, whose reply broke off."
            ) from error

    async def _has_ended(self, replica: str, timeout: float) -> bool:  # noqa: ASYNC109 - a bound of the polls
        """Whether the replica has died or left, as the membership tells within this time."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self._replicas.is_live(replica):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_LIVENESS_INTERVAL)
        return True

    @asynccontextmanager
    async def _sent(
        self,
        owner: Owner,
        container_id: str,
        holder: SandboxRef,
        call: Call,
        content: AsyncIterator[bytes] | None,
    ) -> AsyncGenerator[httpx2.Response]:
        url = self._replicas.url(holder.replica)
        if url is None:
            raise _NotSent("which has no `server.replica_url`.")
        arguments = encode_call(call)
        if len(arguments) > _INLINE_BYTES:
            token = await asyncio.to_thread(self._tokens.issue, owner, container_id, holder, arguments)
        else:
            token = self._tokens.issue(owner, container_id, holder, arguments)
        headers = {"authorization": f"{AUTH_SCHEME} {token}", "content-type": "application/json"}
        if content is not None:
            # The content is not read before the replica asks for it: the container may be locked for long.
            headers |= {ARGUMENTS_HEADER: encode_header(arguments), "expect": "100-continue"}
        request = self._client.build_request(
            "POST",
            url.rstrip("/") + CALLS_PATH + container_id,
            content=arguments if content is None else content,
            headers=headers,
            timeout=httpx2.Timeout(_READ_TIMEOUT, connect=_CONNECT_TIMEOUT, pool=_CONNECT_TIMEOUT, write=None),
        )
        async with _Watch(self._replicas, holder.replica) as watch:
            try:
                reply = await watch.head(self._client.send(request, stream=True))
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.InvalidURL) as error:
                raise _NotSent("which cannot be reached at its `server.replica_url`.") from error
            try:
                if reply.status_code != HTTPStatus.OK:
                    await _raise_error(reply)
                yield reply
            finally:
                await reply.aclose()


class _Watch:
    """Ends a call when the membership declares the replica dead: one that is stopped keeps its connections open."""

    def __init__(self, replicas: ReplicaDirectory, replica: str) -> None:
        self._replicas = replicas
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        self._is_waiting = False
        self._reply: httpx2.Response | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._closing is not None:
            await self._closing

    def _check(self) -> None:
        if not self._replicas.is_live(self._replica):
            if self._is_waiting:
                self._scope.reschedule(self._loop.time())
                return
            if self._reply is not None:
                self._closing = self._loop.create_task(self._reply.aclose())
                return
        self._timer = self._loop.call_later(_LIVENESS_INTERVAL, self._check)

    async def head(self, sending: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
        """Send the request, and wait for the head of the reply."""
        self._is_waiting = True
        try:
            async with self._scope:
                self._reply = await sending
        except TimeoutError as error:
            raise _Broken("it has died") from error
        finally:
            self._is_waiting = False
        return self._reply


async def _raise_error(reply: httpx2.Response) -> NoReturn:
    """Raise the error of a reply that is not a success."""
    if reply.status_code in _NOT_ACCEPTED:
        raise _NotSent("which does not accept calls of this one: do its `server.replica_url` and its clock agree?")
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    if reply.status_code == CALL_ERROR_STATUS:
        raise msgspec.json.decode(body, type=CallError).to_exception()
    if reply.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        raise ReplicaUnavailable("The replica that runs the container has too many requests; try again.")
    raise _Broken(f"it answered with status {reply.status_code}")


async def _events(reply: httpx2.Response) -> AsyncGenerator[ServerEvent, None]:
    """The events of a reply, to its end, so that the connection can be reused; an `error` event is raised."""
    reader = EventReader(_MAX_EVENT_BYTES)
    async for chunk in reply.aiter_raw():
        for event in reader.feed(chunk):
            if event.name == "error":
                raise _decode(event.data, CallError).to_exception()
            yield event


def _decode(data: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(data, type=kind)
