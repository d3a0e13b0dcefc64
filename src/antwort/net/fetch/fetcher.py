"""Fetcher: one GET of a URL that a user or a model chose, without reaching what only this machine can reach.

- `http` and `https` on the allowed ports; no user name or password in the URL.
- A name is resolved once, every address of it is checked, and the connection goes to a checked address: a name that
  resolves differently the next time (DNS rebinding) gains nothing. Proxies are not used: they resolve by themselves.
- Each redirect is checked in the same way, and so is its host against the caller's own rule.
- Limits: total time, redirects, size of the head (in the transport), size of the body before and after decompression,
  content types.
- Sent are a GET, the host, what is accepted, and a user agent that names this software: no cookies, no credentials, no
  referrer. Nothing is kept between two requests, not even the connection.

`robots.txt` is not read: a page is fetched once, because a user's request leads to it, and no link is followed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

import httpx2

from antwort.net.fetch.addresses import AddressPolicy
from antwort.net.fetch.decoding import ACCEPTED, BodyDecoder, BodyTooLarge, UndecodableBody
from antwort.net.fetch.errors import FetchError, FetchRefused
from antwort.net.fetch.resolver import FairResolver, GuardedResolver, Resolver, is_address
from antwort.net.http_transport import HttpTransport
from antwort.net.tls import client_ssl_context

USER_AGENT: Final = "Mozilla/5.0 (compatible; antwort; fetches single pages for users)"
MAX_URL_LENGTH: Final = 4096
ACCEPT_PAGES: Final = "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.1"

_REDIRECTS: Final = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
_PORTS: Final = {"http": 80, "https": 443}
_CHARSET_RE: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_NUMBER_RE: Final = re.compile(r"\d+|0x[0-9a-f]*", re.IGNORECASE)
_UNSAFE_RE: Final = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """Limits of one fetch."""

    timeout: float = 20.0
    """Seconds for everything: name resolution, redirects and body."""
    max_bytes: int = 5 * 1024 * 1024
    """Of the body, before and after decompression."""
    max_redirects: int = 5
    ports: Collection[int] = (80, 443)


@dataclass(frozen=True)
class FetchedPage:
    """A fetched page: the URL that it was found at after redirects, and its content."""

    url: str
    content_type: str
    """In lower case, without parameters; empty if there was none."""
    charset: str
    """Of the header; empty if there was none."""
    body: bytes = field(repr=False)
    redirects: Sequence[str] = ()
    """The URLs that the first one redirected to, in order; the last is `url`."""


@dataclass(frozen=True)
class _Redirect:
    url: httpx2.URL


class Fetcher:
    """Fetches pages. Holds no connections and no state between two fetches."""

    def __init__(
        self,
        policy: AddressPolicy | None = None,
        limits: FetchLimits | None = None,
        *,
        resolve: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits or FetchLimits()
        self._policy = policy or AddressPolicy()
        self._resolver = FairResolver(resolve)
        self._ssl_context = ssl_context

    async def fetch(
        self,
        url: str,
        *,
        accepts: Callable[[str], bool],
        allows_host: Callable[[str], bool] = lambda _: True,
        accept: str = ACCEPT_PAGES,
        tenant: str = "",
    ) -> FetchedPage:
        """GET a page; `FetchError` says why not.

        `accepts` decides by content type, `allows_host` by host name in ASCII; `accept` is the header of the request.
        """
        resolve = GuardedResolver(self._policy, self._resolver.of(tenant))
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await self._follow(check_url(url), accepts, allows_host, accept, resolve)
        except TimeoutError as error:
            raise FetchError(f"the page did not arrive within {self._limits.timeout:g} s") from error

    async def _follow(
        self,
        url: httpx2.URL,
        accepts: Callable[[str], bool],
        allows_host: Callable[[str], bool],
        accept: str,
        resolve: GuardedResolver,
    ) -> FetchedPage:
        redirects: list[str] = []
        for _ in range(self._limits.max_redirects + 1):
            host = url.raw_host.decode("ascii")  # `host` is the name in Unicode
            if not allows_host(host):
                raise FetchRefused(f"the host {host} is not among the allowed domains")
            result = await self._get(url, accepts, accept, resolve)
            if isinstance(result, FetchedPage):
                return replace(result, redirects=redirects)
            url = result.url
            redirects.append(str(url))
        raise FetchError(f"the page redirects more than {self._limits.max_redirects} times")

    async def _get(
        self, url: httpx2.URL, accepts: Callable[[str], bool], accept: str, resolve: GuardedResolver
    ) -> FetchedPage | _Redirect:
        if (url.port or _PORTS[url.scheme]) not in self._limits.ports:
            raise FetchRefused(f"port {url.port} is not allowed")
        timeout = dict.fromkeys(("connect", "read", "write"), self._limits.timeout)
        request = httpx2.Request(
            "GET",
            url,
            headers={
                "host": url.netloc.decode("ascii"),
                "user-agent": USER_AGENT,
                "accept": accept,
                "accept-encoding": ACCEPTED,
                "connection": "close",
            },
            extensions={"timeout": timeout},
        )
        if url.scheme == "https" and self._ssl_context is None:  # loading all certificates takes time: once
            self._ssl_context = await asyncio.to_thread(client_ssl_context)
        transport = HttpTransport(max_idle=0, ssl_context=self._ssl_context, resolve=resolve)
        try:
            response = await transport.handle_async_request(request)
            if response.status_code in _REDIRECTS and "location" in response.headers:
                return _Redirect(_join(url, response.headers["location"]))
            return await self._read(url, response, accepts)
        except httpx2.TransportError as error:
            raise FetchError(f"{url.host} could not be read: {_reason(error)}") from error
        finally:
            await transport.aclose()

    async def _read(self, url: httpx2.URL, response: httpx2.Response, accepts: Callable[[str], bool]) -> FetchedPage:
        if response.status_code != HTTPStatus.OK:
            raise FetchError(f"{url.host} answered with status {response.status_code}")
        header = response.headers.get("content-type", "")
        content_type = header.partition(";")[0].strip().lower()
        if not accepts(content_type):
            raise FetchRefused(f"the content type is {content_type[:80] or 'not given'}, which cannot be read")
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._limits.max_bytes:
            raise FetchRefused(f"the page exceeds {self._limits.max_bytes} bytes")
        body = await self._read_body(response)
        found = _CHARSET_RE.search(header)
        return FetchedPage(str(url), content_type, found[1].lower() if found else "", body)

    async def _read_body(self, response: httpx2.Response) -> bytes:
        try:
            decoder = BodyDecoder(response.headers.get("content-encoding", ""), self._limits.max_bytes)
            step = _SLICE if decoder.is_compressed else _PLAIN_SLICE
            async with aclosing(response.aiter_raw()) as chunks:
                async for chunk in chunks:
                    for start in range(0, len(chunk), step):
                        decoder.feed(chunk[start : start + step])
                        await asyncio.sleep(0)  # decompression must not block the event loop for long
            return decoder.finish()
        except BodyTooLarge as error:
            raise FetchRefused(f"the page exceeds {self._limits.max_bytes} bytes") from error
        except UndecodableBody as error:
            raise FetchRefused(str(error)) from error


_PLAIN_SLICE: Final = 256 * 1024
_SLICE: Final = 512  # bytes that are decompressed at once: to 0.5 MB at most, the ratio of zlib's densest streams


def check_url(url: str) -> httpx2.URL:
    """The URL, if it may be fetched; `FetchRefused` says why not. Its fragment is dropped."""
    if len(url) > MAX_URL_LENGTH:
        raise FetchRefused(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if _UNSAFE_RE.search(url):
        raise FetchRefused("the URL contains spaces or control characters")
    try:
        parsed = httpx2.URL(url).copy_with(fragment=None)
    except (httpx2.InvalidURL, UnicodeError, ValueError) as error:
        raise FetchRefused("the URL is not valid") from error
    if parsed.scheme not in _PORTS or not parsed.host:
        raise FetchRefused("the URL must start with http:// or https:// and have a host")
    if parsed.userinfo:
        raise FetchRefused("the URL contains a user name or password")
    if _NUMBER_RE.fullmatch(parsed.host.rstrip(".").rpartition(".")[2]) and not is_address(parsed.host):
        raise FetchRefused("the URL has an IP address in an unusual form")  # which resolvers read differently
    return parsed


def _join(base: httpx2.URL, location: str) -> httpx2.URL:
    try:
        return check_url(str(base.join(location)))
    except (httpx2.InvalidURL, UnicodeError, ValueError) as error:
        raise FetchRefused("the page redirects to an invalid URL") from error


def _reason(error: httpx2.TransportError) -> str:
    match error:
        case httpx2.ConnectTimeout() | httpx2.ConnectError():
            is_tls = isinstance(error.__cause__, ssl.SSLError)
            return "its certificate is not valid" if is_tls else "no connection"
        case httpx2.TimeoutException():
            return "it does not answer"
        case _:
            return "the answer is incomplete or not valid HTTP"
