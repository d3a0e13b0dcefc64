"""HTTP client of a model's upstream: connection pool, proxy, TLS, API key, time-outs, size limits, error mapping.

Every failure is raised as a `ModelFault` and logged with its cause, the model and the address. Every read has a size
limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec
import structlog
from msgspec import Struct

from antwort.engine.ports import ModelFault
from antwort.models import upstream_errors
from antwort.models.redaction import Redactor
from antwort.models.upstream_errors import UpstreamError
from antwort.net.errors import EventTooLong
from antwort.net.http_transport import HttpTransport
from antwort.net.sse import EventReader, ServerEvent
from antwort.net.tls import client_ssl_context

_log = structlog.get_logger(__name__)
_OK = range(200, 300)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_ERROR_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.05
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0)


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds. `read` limits each wait for data, so it has to exceed the time to the first token."""

    connect: float = 5.0
    read: float = 300.0
    write: float = 60.0


class UpstreamStatusError(Exception):
    """The upstream responded with an error status."""

    def __init__(self, status: int, headers: Mapping[str, str], error: UpstreamError) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.error = error


class Upstream:
    """A model server. `max_event` limits one event, or a response that is not streamed, in bytes.

    The proxy of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`) is used unless `direct`, which
    is for a process on this machine. `ca_file` replaces the trusted certificates; `OSError` if it is invalid. `name` is
    that of the model in the log.
    """

    def __init__(
        self,
        base_url: str,
        *,
        name: str = "",
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        max_event: int = 16 * 1024 * 1024,
        ca_file: str | None = None,
        direct: bool = False,
    ) -> None:
        limits = timeouts or Timeouts()
        self.base_url = base_url.rstrip("/")
        self._max_event = max_event
        self._redactor = Redactor(base_url, api_key=api_key, headers=headers)
        proxy = None if direct else proxy_for(base_url)
        self._log_fields = {"model": name, "address": _address(base_url)}
        if proxy is not None:
            self._log_fields["proxy"] = _address(proxy)
        self._client = httpx2.AsyncClient(
            headers={
                "accept-encoding": "identity",  # no decompression bombs, and no chunks delayed by compression
                **({"authorization": f"Bearer {api_key}"} if api_key else {}),
                **(headers or {}),
            },
            timeout=httpx2.Timeout(connect=limits.connect, read=limits.read, write=limits.write, pool=limits.connect),
            transport=transport_for(proxy, ca_file),
        )

    async def stream(
        self, path: str, body: dict[str, Any], is_done: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[ServerEvent, None]:
        """POST the body and yield the events of the response until `is_done`; `UpstreamStatusError` for an error."""
        request = self._client.build_request(
            "POST",
            f"{self.base_url}/{path}",
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json", "accept": "text/event-stream"},
        )
        with self._as_faults():
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code not in _OK:
                    raise await self._refusal(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    # Not a stream although one was requested: the reader of the events decides what it is.
                    yield ServerEvent("", await _read(response, self._max_event))
                    return
                reader = EventReader(self._max_event)
                chunks = response.aiter_raw()
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event
                        if is_done():
                            await _drain(chunks)
                            return
                for event in reader.close():
                    yield event
            finally:
                await response.aclose()

    async def post(self, url: str, body: dict[str, Any]) -> object:
        """POST the body and return the JSON of the response; `UpstreamStatusError` for an error status."""
        headers = {"content-type": "application/json"}
        with self._as_faults():
            async with self._client.stream("POST", url, content=msgspec.json.encode(body), headers=headers) as response:
                if response.status_code not in _OK:
                    raise await self._refusal(response)
                return _decode(await _read(response, self._max_event))

    def fault(self, refusal: UpstreamStatusError, *, model: str) -> ModelFault:
        """The `ModelFault` of an error status."""
        status, error = refusal.status, refusal.error
        self._log_error("upstream_refused", error, status=status)
        redact = self._redactor.redact
        return upstream_errors.fault_from_response(status, refusal.headers, error, model=model, redact=redact)

    def stream_fault(self, error: UpstreamError, *, model: str) -> ModelFault:
        """The `ModelFault` of an error within a stream."""
        self._log_error("upstream_stream_error", error)
        return upstream_errors.fault_from_stream_error(error, model=model, redact=self._redactor.redact)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _refusal(self, response: httpx2.Response) -> UpstreamStatusError:
        body = await _read(response, _MAX_ERROR_BYTES, truncate=True)
        return UpstreamStatusError(response.status_code, response.headers, upstream_errors.parse_error_body(body))

    def _log_error(self, event: str, error: UpstreamError, **fields: object) -> None:
        texts = {"code": error.code, "kind": error.kind, "message": error.message}
        redacted = {name: self._redactor.redact(text) for name, text in texts.items() if text}
        _log.warning(event, **self._log_fields, **fields, **redacted)

    @contextmanager
    def _as_faults(self) -> Generator[None, None, None]:
        """Map errors of the HTTP client to `ModelFault`, and log them, without a traceback: the cause is elsewhere."""
        try:
            yield
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            self._log_failure("upstream_address_invalid", error)
            raise upstream_errors.misconfigured("The address of the model's upstream is not usable.") from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
            self._log_failure("upstream_unreachable", error)
            raise upstream_errors.unreachable() from error
        except httpx2.TimeoutException as error:
            self._log_failure("upstream_timeout", error)
            raise upstream_errors.timed_out() from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            self._log_failure("upstream_disconnected", error)
            raise upstream_errors.answer_truncated() from error
        except EventTooLong as error:
            self._log_failure("upstream_limit_exceeded", error)
            raise upstream_errors.malformed_answer() from error

    def _log_failure(self, event: str, error: Exception) -> None:
        reason = self._redactor.redact(str(error))
        _log.warning(event, **self._log_fields, error=type(error).__name__, reason=reason)


def _address(url: str) -> str:
    """Host and port of a URL, without credentials, path and query."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return "invalid"
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def transport_for(proxy: str | None, ca_file: str | None = None) -> httpx2.AsyncBaseTransport:
    """httpx2's own transport where a proxy applies, which `HttpTransport` does not support. Both use one TLS policy."""
    ssl_context = client_ssl_context(ca_file) if ca_file or proxy else None  # else created on first use
    if proxy is None:
        return HttpTransport(ssl_context=ssl_context)
    is_tls = proxy.startswith("https://")
    return httpx2.AsyncHTTPTransport(
        verify=cast("ssl.SSLContext", ssl_context),
        trust_env=False,
        limits=_LIMITS,
        proxy=httpx2.Proxy(proxy, ssl_context=ssl_context if is_tls else None),
    )


def proxy_for(url: str) -> str | None:
    """The proxy that the environment configures for a URL, by the rules of `urllib`; None for a direct connection.

    `NO_PROXY` may also contain networks, such as 10.0.0.0/8.
    """
    proxies = getproxies()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:  # an invalid URL: the first request reports it
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or not host or proxy_bypass(f"{host}:{port}") or _is_in_networks(host, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_networks(host: str, no_proxy: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        with suppress(ValueError):
            if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False


async def _read(response: httpx2.Response, limit: int, *, truncate: bool = False) -> bytes:
    """The body; above the limit it is truncated, or `EventTooLong` is raised."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            if truncate:
                break
            raise EventTooLong(f"the response exceeds {limit} bytes")
    return bytes(body[:limit])


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the rest of the response, usually only its end: the connection can be reused only after that."""
    with suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise upstream_errors.malformed_answer() from error
