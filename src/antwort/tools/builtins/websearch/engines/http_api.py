"""HTTP client of search engines: JSON requests with time-out, size limit and error mapping to `SearchFailed`.

The key is sent in a header and appears in no message and no log. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import httpx2
import msgspec
import structlog

from antwort.models.upstream import proxy_for, transport_for
from antwort.tools.builtins.websearch.engines.port import SavedPage, SearchFailed

T = TypeVar("T")

_log = structlog.get_logger(__name__)

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_SERVER_ERROR: Final = 500
_QUOTA_STATUSES: Final = (HTTPStatus.PAYMENT_REQUIRED, 432, 433)  # the latter are Tavily's
_KEY_STATUSES: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class EngineApi:
    """The API of an engine at a base URL. `name` is its name in messages and logs."""

    def __init__(
        self, base_url: str, *, name: str, headers: Mapping[str, str] | None = None, timeout: float = 10.0
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._base_url = base_url.rstrip("/")
        self._client = httpx2.AsyncClient(
            headers={"accept": "application/json", "accept-encoding": "identity", **(headers or {})},
            timeout=timeout,
            follow_redirects=False,
            transport=transport_for(proxy_for(base_url)),
        )

    async def get(self, path: str, params: Mapping[str, str], into: type[T], **headers: str) -> T:
        """GET; the answer decoded as this type."""
        url = f"{self._base_url}{path}"
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._send(self._client.build_request("GET", url, params=dict(params), headers=names), into)

    async def post(self, path: str, body: Mapping[str, object], into: type[T]) -> T:
        """POST of JSON; the answer decoded as this type."""
        content, headers = msgspec.json.encode(body), {"content-type": "application/json"}
        url = f"{self._base_url}{path}"
        return await self._send(self._client.build_request("POST", url, content=content, headers=headers), into)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _send(self, request: httpx2.Request, into: type[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code != HTTPStatus.OK:
                        raise self._refusal(response.status_code)
                    body = await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise self._outage("timeout", f"did not answer within {self._timeout:g} s", error) from error
        except httpx2.TimeoutException as error:
            raise self._outage("timeout", "does not answer", error) from error
        except (httpx2.TransportError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise self._outage("unreachable", "cannot be reached", error) from error
        try:
            return msgspec.json.decode(body, type=into, strict=False)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self._outage("malformed", "sent an answer that is not valid", error) from error

    async def _read(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise self._outage("too_large", "sent an answer that is too large")
        return bytes(body)

    def _refusal(self, status: int) -> SearchFailed:
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return self._outage("rate_limited", "has reached its rate limit; try again later")
        if status in _QUOTA_STATUSES:
            return self._failure("quota_exceeded", "has reached its quota", status)
        if status in _KEY_STATUSES:
            return self._failure("refused", "refuses this server: its operator must check the key", status)
        if status >= _SERVER_ERROR:
            return self._outage("failed", f"failed with status {status}")
        return self._failure("refused", f"refused the search with status {status}", status)

    def _failure(self, event: str, what: str, status: int) -> SearchFailed:
        _log.warning(f"search_engine_{event}", engine=self._name, status=status)
        return SearchFailed(f"The search engine {what}.")

    def _outage(self, event: str, what: str, error: Exception | None = None) -> SearchFailed:
        _log.warning(f"search_engine_{event}", engine=self._name, error=type(error).__name__ if error else None)
        return SearchFailed(f"The search engine {what}.", is_outage=True)


class OnlineEngine:
    """An engine that searches the web: it has no pages of its own."""

    is_offline = False

    def __init__(self, api: EngineApi) -> None:
        self._api = api

    async def page(self, url: str) -> SavedPage | None:
        del url
        return None

    async def aclose(self) -> None:
        await self._api.aclose()


def restricted_to(text: str, domains: tuple[str, ...]) -> str:
    """A query with the domains as `site:` operators, for engines that have no parameter for them."""
    if not domains:
        return text
    sites = " OR ".join(f"site:{domain}" for domain in domains[:_MAX_SITES])
    return f"{text} ({sites})" if len(domains) > 1 else f"{text} {sites}"


_MAX_SITES: Final = 10
