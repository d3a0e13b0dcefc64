"""The way to an upstream over HTTP: one connection pool, its key, its time limits, and how it fails.

Whatever goes wrong leaves here as a `ModelFault`; what exactly it was is logged. Nothing
is read without a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import getproxies

import httpx2
import msgspec
import structlog
from msgspec import Struct

from antwort.engine.ports import ModelFault
from antwort.models import upstream_errors
from antwort.models.upstream_errors import UpstreamError
from antwort.net.errors import EventTooLong
from antwort.net.http_transport import HttpTransport
from antwort.net.sse import EventReader, ServerEvent

_log = structlog.get_logger(__name__)
_OK = range(200, 300)
_ERROR_BODY = 64 * 1024
_LOGGED = 500
_TO_END = 0.05


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds. `read` is the longest silence, so it has to outlast the time to the first token."""

    connect: float = 5.0
    read: float = 300.0
    write: float = 60.0


class Refusal(Exception):
    """The upstream answered, and not with what was asked for."""

    def __init__(self, status: int, headers: Mapping[str, str], said: UpstreamError) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.said = said


class Upstream:
    """A server that is asked over HTTP. `max_event` bounds one event, or an answer that is not streamed.

    `direct` goes past any proxy, to a process of this machine.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        max_event: int = 16 * 1024 * 1024,
        direct: bool = False,
    ) -> None:
        limits = timeouts or Timeouts()
        self.base_url = base_url.rstrip("/")
        self._key = api_key
        self._max_event = max_event
        self._client = httpx2.AsyncClient(
            headers={
                "accept-encoding": "identity",  # a compressed answer could be a bomb, and hold back its pieces
                **({"authorization": f"Bearer {api_key}"} if api_key else {}),
                **(headers or {}),
            },
            timeout=httpx2.Timeout(connect=limits.connect, read=limits.read, write=limits.write, pool=limits.connect),
            transport=None if _proxied() and not direct else HttpTransport(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0),
        )

    async def stream(
        self, path: str, body: dict[str, Any], over: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[ServerEvent, None]:
        """Ask, and read the answer as events until it is `over`; `Refusal` where it is none."""
        request = self._client.build_request(
            "POST",
            f"{self.base_url}/{path}",
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json", "accept": "text/event-stream"},
        )
        with _as_faults():
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code not in _OK:
                    raise await self._refusal(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    # Asked to stream, it sent all at once, or something else entirely: whoever reads it will see.
                    yield ServerEvent("", await _read(response, self._max_event))
                    return
                reader = EventReader(self._max_event)
                chunks = response.aiter_raw()
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event
                        if over():
                            await _let_end(chunks)
                            return
                for event in reader.close():
                    yield event
            finally:
                await response.aclose()

    async def post(self, url: str, body: dict[str, Any]) -> object:
        """Ask for one JSON answer; `Refusal` where it is none."""
        headers = {"content-type": "application/json"}
        with _as_faults():
            async with self._client.stream("POST", url, content=msgspec.json.encode(body), headers=headers) as response:
                if response.status_code not in _OK:
                    raise await self._refusal(response)
                return _decode(await _read(response, self._max_event))

    def fault(self, refusal: Refusal, *, model: str) -> ModelFault:
        """What a refusal means to our caller."""
        said = refusal.said
        _log.warning("upstream_refused", status=refusal.status, code=self._clip(said.code), kind=self._clip(said.kind))
        _log.debug("upstream_said", message=self._clip(said.message))
        return upstream_errors.fault_from_response(refusal.status, refusal.headers, said, model=model)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _refusal(self, response: httpx2.Response) -> Refusal:
        body = await _read(response, _ERROR_BODY, cut=True)
        return Refusal(response.status_code, response.headers, upstream_errors.parse_error_body(body))

    def _clip(self, message: str) -> str:
        """Fit for a log: short, and without our key, which some servers repeat."""
        return (message.replace(self._key, "[key]") if self._key else message)[:_LOGGED]


def _proxied() -> bool:
    """Whether this machine reaches others through a proxy. httpx2's own transport knows how; ours does not."""
    return any(scheme != "no" for scheme in getproxies())


async def _read(response: httpx2.Response, limit: int, *, cut: bool = False) -> bytes:
    """A body, up to a limit."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            if cut:
                break
            raise EventTooLong
    return bytes(body[:limit])


async def _let_end(chunks: AsyncIterator[bytes]) -> None:
    """Read what is left, mostly nothing but the end: only then the connection can serve another request."""
    with suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(_TO_END):
            async for _ in chunks:
                pass


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise upstream_errors.malformed_answer() from error


@contextmanager
def _as_faults() -> Generator[None, None, None]:
    """Turn what the way to an upstream can do wrong into faults of ours."""
    try:
        yield
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise upstream_errors.misconfigured("The address of the model's upstream is not usable.") from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
        _log.warning("upstream_unreachable", error=type(error).__name__)
        raise upstream_errors.unreachable() from error
    except httpx2.TimeoutException as error:
        _log.warning("upstream_timeout", error=type(error).__name__)
        raise upstream_errors.timed_out() from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        _log.warning("upstream_broke_off", error=type(error).__name__)
        raise upstream_errors.answer_truncated() from error
    except EventTooLong as error:
        _log.warning("upstream_too_much")
        raise upstream_errors.malformed_answer() from error
