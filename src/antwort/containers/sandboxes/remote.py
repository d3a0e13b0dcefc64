"""Sandboxes of a sandbox server, over HTTP: acquires sessions and renews their leases.

A server that speaks only the base protocol has no sessions: see `one_shot`.

A session is leased: it is renewed for as long as it is held, and the server ends a session
that is not renewed. So a process that is killed leaves no sandbox running for long, and the
death of a sandbox is detected early.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from antwort.containers.sandboxes.one_shot import NO_COMMANDS, NO_SKILLS, OneShotSandbox
from antwort.containers.sandboxes.path_rules import is_plain_path
from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    RefusalReason,
    Sandbox,
    SandboxConnectError,
    SandboxError,
    SandboxFile,
    SandboxLost,
    SandboxProtocolError,
    SandboxRefused,
    SandboxTimeout,
    SandboxUnavailable,
)
from antwort.containers.sandboxes.protocol import (
    ErrorReply,
    FileListing,
    ListedFile,
    SandboxHealth,
    SessionCreated,
    SessionListing,
    decode,
    decode_event,
    read_body,
    read_error,
)
from antwort.net.errors import EventTooLong
from antwort.net.http_transport import HttpTransport
from antwort.net.sse import EventReader
from antwort.net.tls import client_ssl_context

_logger = logging.getLogger(__name__)

T = TypeVar("T")
AnySandbox = TypeVar("AnySandbox", "RemoteSandbox", OneShotSandbox)

LEASE_SECONDS: Final = 180
"""The server ends a session that was not renewed for so long."""

RENEW_INTERVAL_SECONDS: Final = LEASE_SECONDS / 6
"""Time between two renewals of a lease; some may fail."""

_MODE: Final = "python"
_SUCCESS: Final = range(200, 300)
_NO_SUCH_ROUTE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_MAX_EVENT_BYTES: Final = 256 << 20  # an execution result with its figures
_MAX_FILES: Final = 100_000  # as many as a sandbox with a quota may have, directories included
_MAX_PATHS: Final = 32 << 20  # characters of all their paths together
_MAX_REPLY_BYTES: Final = 64 << 10  # of a reply that describes one thing: the server, a session, a file
_MAX_LISTING_BYTES: Final = 64 << 20  # a page of files, or all sessions
_READ_TIMEOUT: Final = 60.0  # the server sends a keep-alive comment every 15 s
_REPLY_TIMEOUT: Final = 60.0
_CONNECT_TIMEOUT: Final = 5.0
_END_TIMEOUT: Final = 5.0
_KEEPALIVE_EXPIRY: Final = 4.0  # shorter than the 5 s of the server, so that no request meets its close
_UNPRINTABLE_RE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class RemoteSandboxes:
    """`Sandboxes` of one server. `is_child` is a server that lives and dies with this process.

    `headers` are sent with each request. With `is_router` the URL is that of a router, which has errors of its own.
    `explain_loss` is called when the server does not answer: the reason if the server is gone for good, or None.
    `reply_timeout` limits the time of a whole reply; for an execution it is added to the time-out of the code.
    Closing ends the held sessions; those of a killed process end with their leases.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        uds: str | None = None,
        headers: Mapping[str, str] | None = None,
        is_child: bool = False,
        is_router: bool = False,
        explain_loss: Callable[[], Awaitable[str | None]] | None = None,
        lease_seconds: int = LEASE_SECONDS,
        renew_interval: float = RENEW_INTERVAL_SECONDS,
        reply_timeout: float = _REPLY_TIMEOUT,
    ) -> None:
        self.reply_timeout = reply_timeout
        self._is_child = is_child
        self._is_router = is_router
        self._explain_loss = explain_loss
        self._is_stateful: bool | None = None
        self._lease_seconds = lease_seconds
        self._renew_interval = renew_interval
        self._held: set[RemoteSandbox | OneShotSandbox] = set()
        self._renewing: asyncio.Task[None] | None = None
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=_KEEPALIVE_EXPIRY)
        # Without TLS no certificate is read: loading those of the host takes 30 ms, and each claimed pod has a client.
        verify = client_ssl_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client, self._upload_client = (
            httpx2.AsyncClient(
                base_url=url.rstrip("/"),
                headers={
                    "accept-encoding": "identity",  # a compressed reply could be a decompression bomb
                    **(headers or {}),
                    **({"authorization": f"Bearer {token}"} if token else {}),
                },
                transport=transport,
            )
            for transport in (
                HttpTransport(idle_timeout=_KEEPALIVE_EXPIRY, uds=uds),  # faster, but does not stream request bodies
                httpx2.AsyncHTTPTransport(verify=verify, uds=uds, trust_env=False, limits=limits),
            )
        )

    async def is_stateful(self) -> bool:
        """Whether the server has sessions. Asks it unless that is known."""
        if self._is_stateful is None:
            with suppress(SandboxError):
                await self.check()
        return self._is_stateful is not False

    async def check(self) -> SandboxHealth:
        """The health of the server. Raises `SandboxError` where it does not answer or rejects the token.

        Detects its protocol: other servers use the same paths, so one without the fields of `/health` is not used.
        """
        health = await self._health()
        try:
            decode(await self.call("GET", "/sessions", limit=_MAX_LISTING_BYTES), SessionListing)
            self._is_stateful = True
        except ErrorReply as error:
            if error.status not in _NO_SUCH_ROUTE:
                raise error.as_sandbox_error("request") from error
            self._is_stateful = False
        return health

    async def _health(self) -> SandboxHealth:
        try:
            body = await self.call("GET", "/health")
        except ErrorReply as error:
            if error.status not in _NO_SUCH_ROUTE:
                raise error.as_sandbox_error("request") from error
            raise SandboxUnavailable("It answers, but it is not a sandbox server: there is no /health.") from error
        try:
            health = decode(body, SandboxHealth)
        except SandboxProtocolError as error:
            raise SandboxUnavailable("It answers, but it is not a sandbox server: /health has another form.") from error
        if health.mode != _MODE:
            raise SandboxUnavailable(f"The sandbox server runs {health.mode[:40]!r}, not {_MODE!r}.")
        return health

    async def loss_reason(self) -> str | None:
        """Why a server that does not answer is gone with every sandbox; None if it may answer later."""
        if self._is_child:
            return "The sandbox server has ended."
        return None if self._explain_loss is None else await self._explain_loss()

    async def acquire(
        self,
        *,
        tenant: str,
        memory_limit: str,
        timeout: float,  # noqa: ASYNC109 - bounds the retries for capacity, too
    ) -> RemoteSandbox | OneShotSandbox:
        """A session; or, at a server that has none, a sandbox whose runs are separate processes."""
        body = {"tenant": tenant, "memory": memory_limit, "expires_after_seconds": self._lease_seconds}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            left = deadline - loop.time()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    session = decode(await self.call("POST", "/sessions", json=body), SessionCreated)
                self._is_stateful = True
                return self._lease(session.id)
            except TimeoutError as error:
                raise SandboxUnavailable(f"No sandbox came up within {timeout:g} s.") from error
            except ErrorReply as error:
                if error.status in _NO_SUCH_ROUTE:
                    self._is_stateful = False
                    return self._hold(OneShotSandbox(self, capacity_timeout=timeout))
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise error.as_sandbox_error("tier") from error
                if deadline - loop.time() < error.retry_after:
                    raise SandboxUnavailable("Every sandbox is in use; try again later.") from error
                await asyncio.sleep(error.retry_after)

    async def release(self, sandbox: Sandbox) -> None:
        if isinstance(sandbox, (RemoteSandbox, OneShotSandbox)):
            self._held.discard(sandbox)
            await sandbox.end()

    async def sweep(self, ended: Collection[str]) -> None:
        """Nothing: sessions that are not renewed end by themselves."""

    async def aclose(self) -> None:
        """End the sandboxes, and close the connections. A server that hangs ends the sandboxes with their leases."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        held, self._held = self._held, set()
        if ending := [asyncio.create_task(sandbox.end()) for sandbox in held]:
            _, late = await asyncio.wait(ending, timeout=_END_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
        await self._client.aclose()
        await self._upload_client.aclose()

    def _lease(self, session_id: str) -> RemoteSandbox:
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_leases())
        return self._hold(RemoteSandbox(self, session_id))

    def _hold(self, sandbox: AnySandbox) -> AnySandbox:
        self._held.add(sandbox)
        return sandbox

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._renew_interval)
            for sandbox in tuple(self._held):
                try:
                    if isinstance(sandbox, RemoteSandbox):
                        await sandbox.renew_lease()
                except SandboxError:  # the next operation on the sandbox raises it again
                    continue

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: AsyncIterator[bytes] | None = None,
        limit: int = _MAX_REPLY_BYTES,
    ) -> bytes:
        """Send a request; the body of the reply, which has a maximum size and a time limit. Errors as of `request`."""
        async with self.request(method, path, json=json, content=content, timeout=self.reply_timeout) as reply:
            return await read_body(reply, limit)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        body: bytes | None = None,
        content: AsyncIterator[bytes] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - raises `SandboxTimeout`
    ) -> AsyncGenerator[httpx2.Response]:
        """Send a request; the reply, to be read as a stream. `ErrorReply` for an error status.

        `json` is a value to encode, `body` is encoded JSON, and `content` is a stream of bytes. `timeout` is for all of
        the reply: a server that sends a byte now and then does not extend it. It begins when `content` was sent; the
        time to send a `body` counts.
        """
        if json is not None:
            body = msgspec.json.encode(json)
        headers = {"content-type": "application/json"} if body is not None else {}
        waits = httpx2.Timeout(timeout or _READ_TIMEOUT, connect=_CONNECT_TIMEOUT, pool=_CONNECT_TIMEOUT)
        if self._client.is_closed:
            raise SandboxConnectError("The client of the sandbox server is closed.")
        client = self._client if content is None else self._upload_client
        try:
            async with _time_limit(timeout) as limit:
                if timeout is not None and content is not None:
                    content = _restart_for_each(content, limit, timeout)
                data = content if body is None else body
                async with client.stream(method, path, content=data, headers=headers, timeout=waits) as reply:
                    if reply.status_code not in _SUCCESS:
                        raise await read_error(reply, is_routed=self._is_router)
                    yield reply
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise SandboxConnectError("The sandbox server cannot be reached.") from error
        except httpx2.TimeoutException as error:
            raise SandboxTimeout("The sandbox server does not answer.") from error
        except (httpx2.TransportError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise SandboxProtocolError("The connection to the sandbox server broke off.") from error
        except EventTooLong as error:
            raise SandboxProtocolError("The sandbox server sent a reply that is too long.") from error


class RemoteSandbox:
    """A `Sandbox`: one session of the server. After a failure the session is looked up, to tell what failed."""

    def __init__(self, server: RemoteSandboxes, session_id: str) -> None:
        self._server = server
        self._path = f"/sessions/{quote(session_id, safe='')}"
        self._lost: str | None = None
        self.id = session_id[:13]  # enough for a log; the full id grants access to the session

    async def run(
        self,
        code: str,
        *,
        requirements: Sequence[str] = (),
        timeout: float,  # noqa: ASYNC109 - of the code in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        body: dict[str, Any] = {"code": code, "timeout_seconds": math.ceil(timeout), "stream": True}
        if requirements:
            body["requirements"] = list(requirements)
        async with aclosing(self._run("/execute", body, timeout)) as steps:
            async for step in steps:
                yield step

    async def run_command(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 - of the command in the sandbox, not of this method
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        body = {"command": command, "timeout_ms": math.ceil(timeout * 1000), "stream": True}
        async with aclosing(self._run("/command", body, timeout)) as steps:
            try:
                async for step in steps:
                    yield step
            except SandboxRefused as refused:
                if refused.why == "missing":  # the session exists, so the route does not
                    raise SandboxRefused(NO_COMMANDS) from refused
                raise

    async def _run(
        self,
        path: str,
        body: dict[str, Any],
        timeout: float,  # noqa: ASYNC109 - the same
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        result: ExecutionResult | None = None
        reader = EventReader(_MAX_EVENT_BYTES)
        deadline = _Deadline(timeout + self._server.reply_timeout)
        try:
            async with AsyncExitStack() as stack:
                request = self._server.request("POST", f"{self._path}{path}", json=body)
                reply = await deadline.wait_for(stack.enter_async_context(request))
                chunks = reply.aiter_raw()
                while chunk := await deadline.wait_for(anext(chunks, b"")):  # to the end, to reuse the connection
                    for event in reader.feed(chunk):
                        step = decode_event(event)
                        if isinstance(step, Output):
                            with deadline.extended():
                                yield step
                        else:
                            result = step
            if result is None:
                raise SandboxProtocolError("The connection to the sandbox server broke off.")
        except (ErrorReply, SandboxUnavailable) as error:
            if result is None:
                raise await self._diagnose(error, "request") from error
        if not result.sandbox_alive:
            self._lost = f"The sandbox has ended: {result.reason}."
        yield result

    async def interrupt(self) -> None:
        await self._request("POST", "/interrupt")

    async def list_files(self) -> list[SandboxFile]:
        """All files. `SandboxRefused` for more than `_MAX_FILES`: without namespaces no quota limits their number."""
        files: list[SandboxFile] = []
        after, entries, length = "", 0, 0
        while True:
            page = await self._request("GET", f"/files?{urlencode({'after': after})}", limit=_MAX_LISTING_BYTES)
            listing = decode(page, FileListing)
            entries += len(listing.files)
            length += sum(len(entry.path) for entry in listing.files)
            if entries > _MAX_FILES or length > _MAX_PATHS:
                raise SandboxRefused(f"The container has more than {_MAX_FILES} files, or very long paths.", "size")
            files += [entry.as_file() for entry in listing.files if entry.kind == "file" and is_plain_path(entry.path)]
            if not (listing.has_more and listing.files):
                return files
            after = listing.files[-1].path

    async def write_file(self, path: str, content: AsyncIterator[bytes]) -> SandboxFile:
        written = decode(await self._request("PUT", _file_url(path), content=content, why="path"), ListedFile)
        if written.kind != "file":
            raise SandboxRefused(f"{path!r} was replaced by code in the container while it was written.", "path")
        return written.as_file()

    def read_file(self, path: str) -> AsyncGenerator[bytes, None]:
        return self._download(lambda: _file_url(path))

    async def delete_file(self, path: str) -> bool:
        try:
            await self._request("DELETE", _file_url(path), why="path")
        except SandboxRefused as refused:
            if refused.why == "missing":
                return False
            raise
        return True

    async def unpack(self, tar: AsyncIterator[bytes]) -> None:
        await self._request("PUT", "/archive", content=tar, why="path")

    async def add_skill(self, name: str, tar: AsyncIterator[bytes]) -> None:
        try:
            await self._request("PUT", f"/skills/{quote(name, safe='')}", content=tar, why="path")
        except SandboxRefused as refused:
            if refused.why == "missing":  # the session exists, so the route does not
                raise SandboxRefused(NO_SKILLS) from refused
            raise

    def pack(self) -> AsyncGenerator[bytes, None]:
        return self._download(lambda: "/archive")

    async def renew_lease(self) -> None:
        """Renew the lease; raises `SandboxLost` if the session is gone."""
        await self._request("GET", "")

    async def end(self) -> None:
        """End the session, if it has not ended by itself."""
        if self._lost is None:
            self._lost = "The sandbox was released."
            try:
                await self._server.call("DELETE", self._path)
            except ErrorReply:
                pass  # it has ended already
            except SandboxUnavailable:
                _logger.info("sandbox %s could not be ended; its lease will expire", self.id)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: AsyncIterator[bytes] | None = None,
        why: RefusalReason = "request",
        limit: int = _MAX_REPLY_BYTES,
    ) -> bytes:
        try:
            return await self._server.call(method, self._path + path, content=content, limit=limit)
        except (ErrorReply, SandboxUnavailable) as error:
            raise await self._diagnose(error, why) from error

    async def _download(self, path: Callable[[], str]) -> AsyncGenerator[bytes, None]:
        url = self._path + path()
        try:
            async with self._server.request("GET", url) as reply:
                async for chunk in reply.aiter_raw():
                    yield chunk
        except (ErrorReply, SandboxUnavailable) as error:
            raise await self._diagnose(error, "path") from error

    async def _diagnose(self, error: ErrorReply | SandboxUnavailable, why: RefusalReason) -> SandboxError:
        """The cause of a failure: `SandboxLost` if the session is gone."""
        begun = not isinstance(error, (ErrorReply, SandboxConnectError))
        if self._lost is None:
            try:
                await self._server.call("GET", self._path)
            except ErrorReply as reply:
                if reply.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                    return reply.as_sandbox_error(why)
                self._lost = reply.message
            except SandboxUnavailable as unavailable:
                reason = await self._server.loss_reason()
                if reason is None:
                    return error if isinstance(error, SandboxUnavailable) else unavailable
                self._lost = reason
            else:
                return error if isinstance(error, SandboxUnavailable) else error.as_sandbox_error(why)
        return SandboxLost(self._lost, begun=begun)


class _Deadline:
    """Time limit of an execution, which keep-alive comments and output do not extend. `SandboxTimeout` after it."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._at = self._loop.time() + seconds

    async def wait_for(self, received: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(self._at):
                return await received
        except TimeoutError as error:
            message = f"The sandbox server has not ended the execution within {self._seconds:g} s."
            raise SandboxTimeout(message) from error

    @contextmanager
    def extended(self) -> Generator[None]:
        """Context manager: its block does not count. For the consumer of the output, which may be slow."""
        began = self._loop.time()
        try:
            yield
        finally:
            self._at += self._loop.time() - began


@asynccontextmanager
async def _time_limit(seconds: float | None) -> AsyncGenerator[asyncio.Timeout]:
    """Context manager: a time limit for a reply. `SandboxTimeout` after it."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield limit
    except TimeoutError as error:
        if not limit.expired():  # that of something else
            raise
        raise SandboxTimeout(f"The sandbox server has not sent its reply within {seconds:g} s.") from error


async def _restart_for_each(
    content: AsyncIterator[bytes], limit: asyncio.Timeout, seconds: float
) -> AsyncGenerator[bytes, None]:
    """The content of an upload: the time limit begins again with each chunk, and does not run while one is awaited."""
    loop = asyncio.get_running_loop()
    limit.reschedule(None)
    async for chunk in content:
        limit.reschedule(loop.time() + seconds)
        yield chunk
        limit.reschedule(None)
    limit.reschedule(loop.time() + seconds)


def _file_url(path: str) -> str:
    """The URL of a file. Refuses the paths that URL normalization would change; the server refuses the others."""
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names) or _UNPRINTABLE_RE.search(path):
        raise SandboxRefused(f"{path!r} is not a plain path below /mnt/data.", "path")
    return f"/files/{quote(path)}"
