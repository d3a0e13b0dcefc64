"""The client of a sandbox server's sessions, and the only way from here to one: HTTP, wherever the server runs.

A session is leased: as long as it is held here it is asked for now and then, and a server
that is no longer asked ends it by itself. So a process that is killed leaves nothing
running for long, and a sandbox that died is found out early.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import httpx2
import msgspec
from msgspec import Struct

from antwort.containers.sandboxes.port import (
    Figure,
    Outcome,
    OutcomeStatus,
    Output,
    Refusal,
    SandboxFault,
    SandboxFile,
    SandboxLost,
    SandboxRefused,
    SandboxTrouble,
)
from antwort.net.errors import EventTooLong
from antwort.net.http_transport import HttpTransport
from antwort.net.sse import EventReader, ServerEvent
from antwort.net.tls import client_ssl_context

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_OK: Final = range(200, 300)
_LONGEST_MESSAGE: Final = 64 * 1024
_LONGEST_ANSWER: Final = 64 << 20
_LONGEST_EVENT: Final = 256 << 20  # the result of a run, with its figures
_SILENCE: Final = 60.0  # the server sends a sign of life every 15 s
_CONNECT: Final = 5.0
_IDLE: Final = 4.0  # the server hangs up on connections that are idle for five; what we send must never meet that

_UNSPEAKABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_STATUSES: Final[dict[str, OutcomeStatus]] = {
    "success": "ok",
    "error": "error",
    "exit": "exit",
    "interrupted": "interrupted",
    "timeout": "timeout",
}


class _Printed(Struct):
    stream: Literal["stdout", "stderr"]
    text: str


class _Image(Struct):
    mime: str
    data: bytes


class _Report(Struct):
    """How a run ended, as the server tells it."""

    status: str
    output: list[_Printed]
    result: str | None = None
    images: list[_Image] = msgspec.field(default_factory=list[_Image])
    execution_time_ms: int = 0
    reason: str | None = None
    cut_bytes: int = 0

    def outcome(self) -> Outcome:
        ended: OutcomeStatus = "oom" if self.reason == "oom" else "ended"
        return Outcome(
            status=_STATUSES.get(self.status, ended),
            output=tuple(Output(one.stream, one.text) for one in self.output),
            echo=self.result,
            figures=tuple(Figure(one.mime, one.data) for one in self.images),
            seconds=self.execution_time_ms / 1000,
            alive=self.status in _STATUSES and self.reason is None,
            reason=self.reason,
            cut_bytes=self.cut_bytes,
        )


class _Entry(Struct):
    path: str
    kind: str
    size: int
    modified: float


class _Listing(Struct):
    files: list[_Entry]
    has_more: bool = False


class _Session(Struct):
    id: str


class _Written(Struct):
    size: int


class _Complaint(Struct):
    error: str = ""
    reason: str = ""


class _Refused(Exception):
    """The server answered, and not with what was asked for."""

    def __init__(self, status: int, message: str, wait: float) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.wait = wait


class NoAnswer(SandboxFault):
    """The server does not answer, or not to the end. Whether it did what it was asked for is not known."""


class Unreached(NoAnswer):
    """Nothing was asked: there was nobody to ask."""


class WrongToken(SandboxFault):
    """The server is there, and does not let us in."""


class SandboxServer:
    """A sandbox server, by its address. `own` is one that lives and dies with this process."""

    def __init__(self, url: str, *, token: str | None = None, uds: str | None = None, own: bool = False) -> None:
        self.own = own
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=_IDLE)
        uploads = httpx2.AsyncHTTPTransport(verify=client_ssl_context(), uds=uds, trust_env=False, limits=limits)
        self._client, self._uploads = (
            httpx2.AsyncClient(
                base_url=url.rstrip("/"),
                headers={
                    "accept-encoding": "identity",  # a compressed answer could be a bomb
                    **({"authorization": f"Bearer {token}"} if token else {}),
                },
                timeout=httpx2.Timeout(connect=_CONNECT, read=_SILENCE, write=_SILENCE, pool=_CONNECT),
                transport=transport,
            )
            for transport in (
                HttpTransport(idle_timeout=_IDLE, uds=uds),
                uploads,
            )  # ours is quicker, and sends nothing piecemeal
        )

    async def ready(self) -> None:
        """Whether it answers, and takes our token; `SandboxTrouble` says what is wrong."""
        async with self._asked("GET", "/sessions") as answer:
            await _read(answer)

    async def create(
        self,
        *,
        tenant: str,
        memory_limit: str,
        timeout: float,  # noqa: ASYNC109 - waiting for room is one of several things that it limits
        lease: int = 600,
    ) -> RemoteSandbox:
        """A session of its own, as soon as the server has room; it ends when nobody asks for it for `lease` seconds."""
        body = {"tenant": tenant, "memory": memory_limit, "expires_after_seconds": lease}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            left = deadline - loop.time()
            try:
                async with asyncio.timeout(max(0.0, left)), self.call("POST", "/sessions", json=body) as answer:
                    return RemoteSandbox(self, _decoded(await _read(answer), _Session).id)
            except TimeoutError as error:
                raise SandboxFault(f"No sandbox came up within {timeout:g} s.") from error
            except _Refused as refused:
                if refused.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise _explained(refused, "tier") from refused
                if deadline - loop.time() < refused.wait:
                    raise SandboxFault("Every sandbox is in use; try again later.") from refused
                await asyncio.sleep(refused.wait)

    @asynccontextmanager
    async def _asked(self, method: str, path: str) -> AsyncGenerator[httpx2.Response]:
        try:
            async with self.call(method, path) as answer:
                yield answer
        except _Refused as refused:
            raise _explained(refused, "request") from refused

    @asynccontextmanager
    async def call(
        self, method: str, path: str, *, json: object = None, content: AsyncIterator[bytes] | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """Ask, and read the answer piece by piece; `_Refused` where it is none, `SandboxFault` without one."""
        headers = {"content-type": "application/json"} if json is not None else {}
        sent = msgspec.json.encode(json) if json is not None else content
        if self._client.is_closed:
            raise Unreached("The sandbox server is not asked any more.")
        client = self._client if content is None else self._uploads
        try:
            async with client.stream(method, path, content=sent, headers=headers) as answer:
                if answer.status_code not in _OK:
                    raise await _refusal(answer)
                yield answer
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Unreached("The sandbox server cannot be reached.") from error
        except httpx2.TimeoutException as error:
            raise NoAnswer("The sandbox server does not answer.") from error
        except (httpx2.TransportError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise NoAnswer("The sandbox server broke off.") from error
        except EventTooLong as error:
            raise SandboxFault("The sandbox server sent what it should not.") from error

    async def aclose(self) -> None:
        """Let go of its connections."""
        await self._client.aclose()
        await self._uploads.aclose()


class RemoteSandbox:
    """One session: a `Sandbox`. What a failure means is found out by asking for the session itself."""

    def __init__(self, server: SandboxServer, name: str) -> None:
        self._server = server
        self._path = f"/sessions/{quote(name, safe='')}"
        self._lost: str | None = None
        self.id = name[:13]  # enough for a log; the whole of it opens the session

    async def run(
        self,
        code: str,
        *,
        requirements: Sequence[str] = (),
        timeout: float,  # noqa: ASYNC109 - for the code inside, not for this call
    ) -> AsyncGenerator[Output | Outcome, None]:
        body: dict[str, Any] = {"code": code, "timeout_seconds": math.ceil(timeout), "stream": True}
        if requirements:
            body["requirements"] = list(requirements)
        outcome: Outcome | None = None
        try:
            call = self._server.call("POST", f"{self._path}/execute", json=body)
            async with call as answer, aclosing(_events(answer)) as events:
                async for event in events:  # to the end, or the connection could not be used again
                    step = self._step(event)
                    if isinstance(step, Output):
                        yield step
                    else:
                        outcome = step
            if outcome is None:
                _broke_off()
        except (_Refused, SandboxFault) as trouble:
            if outcome is None:
                raise await self._diagnosed(trouble, "request") from trouble
        yield outcome

    def _step(self, event: ServerEvent) -> Output | Outcome:
        match event.name:
            case "output":
                printed = _decoded(event.data, _Printed)
                return Output(printed.stream, printed.text)
            case "result":
                outcome = _decoded(event.data, _Report).outcome()
                if not outcome.alive:
                    self._lost = f"The sandbox has ended: {outcome.reason}."
                return outcome
            case _:
                raise SandboxFault(_decoded(event.data, _Complaint).error)

    async def interrupt(self) -> None:
        await self._asked("POST", "/interrupt")

    async def list_files(self) -> list[SandboxFile]:
        found: list[SandboxFile] = []
        after = ""
        while True:
            listing = _decoded(await self._asked("GET", f"/files?{urlencode({'after': after})}"), _Listing)
            found += [_listed(entry) for entry in listing.files if entry.kind == "file"]
            if not (listing.has_more and listing.files):
                return found
            after = listing.files[-1].path

    async def write_file(self, path: str, content: AsyncIterator[bytes]) -> int:
        return _decoded(await self._asked("PUT", _file(path), content=content, why="path"), _Written).size

    def read_file(self, path: str) -> AsyncGenerator[bytes, None]:
        return self._pieces(lambda: _file(path))

    async def delete_file(self, path: str) -> bool:
        try:
            await self._asked("DELETE", _file(path), why="path")
        except SandboxRefused as refused:
            if refused.why == "missing":
                return False
            raise
        return True

    async def unpack(self, tar: AsyncIterator[bytes]) -> None:
        await self._asked("PUT", "/archive", content=tar, why="path")

    def pack(self) -> AsyncGenerator[bytes, None]:
        return self._pieces(lambda: "/archive")

    async def touch(self) -> None:
        """Renew the lease; `SandboxLost` where there is nothing left to renew."""
        await self._asked("GET", "")

    async def end(self) -> None:
        """End it, if it has not ended by itself."""
        if self._lost is None:
            self._lost = "The sandbox was released."
            try:
                async with self._server.call("DELETE", self._path):
                    pass
            except _Refused:
                pass  # it was gone already
            except SandboxFault:
                _logger.info("sandbox %s is left to its lease", self.id)

    async def _asked(
        self, method: str, path: str, *, content: AsyncIterator[bytes] | None = None, why: Refusal = "request"
    ) -> bytes:
        try:
            async with self._server.call(method, self._path + path, content=content) as answer:
                return await _read(answer)
        except (_Refused, SandboxFault) as trouble:
            raise await self._diagnosed(trouble, why) from trouble

    async def _pieces(self, path: Callable[[], str]) -> AsyncGenerator[bytes, None]:
        address = self._path + path()
        try:
            async with self._server.call("GET", address) as answer:
                async for piece in answer.aiter_raw():
                    yield piece
        except (_Refused, SandboxFault) as trouble:
            raise await self._diagnosed(trouble, "path") from trouble

    async def _diagnosed(self, trouble: _Refused | SandboxFault, why: Refusal) -> SandboxTrouble:
        """What the trouble is: a session that is gone explains everything else."""
        begun = not isinstance(trouble, (_Refused, Unreached))
        if self._lost is None:
            try:
                async with self._server.call("GET", self._path):
                    return trouble if isinstance(trouble, SandboxFault) else _explained(trouble, why)
            except _Refused as refused:
                if refused.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                    return _explained(refused, why)
                self._lost = refused.message
            except SandboxFault as fault:
                if not self._server.own:
                    return fault
                self._lost = "The sandbox server has ended."  # and everything that it ran
        return SandboxLost(self._lost, begun=begun)


def _listed(entry: _Entry) -> SandboxFile:
    return SandboxFile(entry.path, entry.size, round(entry.modified * 1e9))


def _file(path: str) -> str:
    """The address of a file. What a URL would make something else of is refused here, the rest by the server."""
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names) or _UNSPEAKABLE.search(path):
        raise SandboxRefused(f"{path!r} is not a plain path below /mnt/data.", "path")
    return f"/files/{quote(path)}"


async def _events(answer: httpx2.Response) -> AsyncGenerator[ServerEvent, None]:
    reader = EventReader(_LONGEST_EVENT)
    async for chunk in answer.aiter_raw():
        for event in reader.feed(chunk):
            yield event


def _broke_off() -> NoReturn:
    raise NoAnswer("The sandbox server broke off.")


async def _read(answer: httpx2.Response, limit: int = _LONGEST_ANSWER) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise EventTooLong
    return bytes(body)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise SandboxFault("The sandbox server sent what it should not.") from error


async def _refusal(answer: httpx2.Response) -> _Refused:
    try:
        said = msgspec.json.decode(await _read(answer, _LONGEST_MESSAGE), type=_Complaint)
    except (msgspec.MsgspecError, UnicodeError, EventTooLong):
        said = _Complaint()
    try:
        wait = max(0.1, float(answer.headers.get("retry-after", "1")))
    except ValueError:
        wait = 1.0
    return _Refused(answer.status_code, said.error or f"The sandbox server answered {answer.status_code}.", wait)


def _explained(refused: _Refused, why: Refusal) -> SandboxTrouble:
    """What a refusal means to our caller; the session itself is there."""
    match refused.status:
        case HTTPStatus.NOT_FOUND:
            return SandboxRefused(refused.message, "missing")
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return SandboxRefused(refused.message, "size")
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
            return SandboxRefused(refused.message, why)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            _logger.error("the sandbox server does not take our token")
            return WrongToken("The sandbox server does not let us in: its token is another than ours.")
        case _:
            _logger.warning("the sandbox server answered %d", refused.status)
            return SandboxFault(refused.message)
