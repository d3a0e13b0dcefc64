"""HTTP client of the suite: sends a request, reads a bounded answer within a time limit, and can show it as curl.

It waits and repeats a request that is answered with 429, as every client of the API does. The server may be hostile:
the time limit is that of the whole exchange, compressed answers are not accepted, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

import httpx2

from antwort.conformance.grammar import SentEvent, Violation, read_frames, require, require_equal

Json: TypeAlias = dict[str, Any]

_MAX_BODY: Final = 64 << 20
_MAX_RETRIES: Final = 2
_MAX_RETRY_AFTER: Final = 60.0
_MAX_SHOWN_BODY: Final = 4000
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_ENVELOPE_KEYS: Final = frozenset(("message", "type", "param", "code"))


class InvalidUrl(ValueError):
    """The URL of the server cannot be used."""


class Unreachable(Exception):
    """The server did not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class UploadedContent:
    """The file of a multipart request."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, for a report."""

    method: str
    url: str
    body: Json | None = None
    upload: UploadedContent | None = None

    def as_curl(self) -> str:
        """The request as a shell command. The key is read from the environment."""
        words = ["curl", "-sS"]
        if self.method != "GET":
            words += ["-X", self.method]
        words.append(shlex.quote(self.url))
        line = " ".join(words) + ' -H "Authorization: Bearer $API_KEY"'
        if self.upload is not None:
            fields = [f"file=@{self.upload.name}", *(f"{name}={value}" for name, value in (self.body or {}).items())]
            return line + "".join(f" -F {shlex.quote(one)}" for one in fields)
        if self.body is None:
            return line
        body = json.dumps(self.body, ensure_ascii=False)
        if len(body) > _MAX_SHOWN_BODY:
            return f"{line} -H 'Content-Type: application/json' -d @BODY  # {len(body)} characters: see --json"
        return f"{line} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server, and the request that it answers."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    exchange: Exchange

    def json(self) -> Any:
        """The body, which must be a JSON object."""
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError):
            raise Violation("a JSON body", self.text) from None
        require(isinstance(value, dict), "a JSON object", self.text)
        return value

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def ok(self) -> Json:
        """The object of a successful answer."""
        require(self.status in (200, 201), "status 200", f"{self.status}: {self.text}")
        return self.json()

    def error(self, *statuses: int) -> Json:
        """The `error` object of a refusal with one of these statuses, in the envelope of the API."""
        require(self.status in statuses, f"status {' or '.join(map(str, statuses))}", f"{self.status}: {self.text}")
        envelope = self.json()
        error = envelope.get("error")
        require(isinstance(error, dict), '{"error": {…}}', envelope)
        missing = _ENVELOPE_KEYS - set(error)
        require(not missing, f"the error has the keys {sorted(missing)}", envelope)
        is_text = isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
        require(is_text, "`message` and `type` of the error are texts", envelope)
        return error

    def events(self) -> list[SentEvent]:
        """The events of a streamed answer."""
        require(self.status == 200, "status 200", f"{self.status}: {self.text}")
        kind = self.headers.get("content-type", "")
        require(kind.startswith("text/event-stream"), "content-type text/event-stream", kind)
        return read_frames(self.content)


@dataclass
class ApiClient:
    """A client with one key."""

    url: str
    key: str | None
    timeout: float = 300.0
    sleep: Callable[[float], object] = time.sleep
    max_body: int = _MAX_BODY
    """Maximum bytes of an answer."""
    requests: int = 0
    """How many requests were sent."""
    last: Exchange | None = None
    """The request that the current check looks at."""
    _http: httpx2.AsyncClient = field(init=False, repr=False)
    _runner: asyncio.Runner = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = base_url(self.url)
        headers = {"accept-encoding": "identity"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        is_local = urlsplit(self.url).hostname in _LOOPBACK  # no proxy reaches it
        self._http = httpx2.AsyncClient(headers=headers, timeout=None, trust_env=not is_local)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def close(self) -> None:
        self._runner.run(self._http.aclose())
        self._runner.close()

    def with_key(self, key: str | None) -> ApiClient:
        """Another client of the same server."""
        return ApiClient(self.url, key, self.timeout, self.sleep, self.max_body)

    def get(self, path: str, **params: Any) -> Reply:
        return self.send("GET", path, params=params)

    def post(self, path: str, body: Json) -> Reply:
        return self.send("POST", path, body=body)

    def delete(self, path: str) -> Reply:
        return self.send("DELETE", path)

    def upload(self, path: str, upload: UploadedContent, **fields: str) -> Reply:
        """A multipart request."""
        return self.send("POST", path, body=fields, upload=upload)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        upload: UploadedContent | None = None,
        params: Json | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """Send a request, again after a 429 that names a short time. `raw` is sent instead of a JSON body."""
        values = {name: _as_param(value) for name, value in (params or {}).items()}
        try:
            url = httpx2.URL(self.url + path, params=values)
        except httpx2.InvalidURL:
            raise Violation("ids that fit into a URL", path) from None
        exchange = Exchange(method, str(url) if params else self.url + path, body, upload)
        self.last = exchange
        reply = self._send_once(exchange, raw)
        for _ in range(_MAX_RETRIES):
            wait = _retry_after(reply)
            if wait is None:
                break
            self.sleep(wait)
            reply = self._send_once(exchange, raw)
        return reply

    def _send_once(self, exchange: Exchange, raw: bytes | None) -> Reply:
        self.requests += 1
        options: Json = {}
        if exchange.upload is not None:
            options["files"] = {"file": (exchange.upload.name, exchange.upload.content)}
            options["data"] = exchange.body
        elif raw is not None:
            options |= {"content": raw, "headers": {"content-type": "application/json"}}
        elif exchange.body is not None:
            options["json"] = exchange.body
        try:
            return self._runner.run(self._exchange(exchange, options))
        except TimeoutError as error:
            raise Unreachable(f"no complete answer within {self.timeout:g} seconds") from error
        except httpx2.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    async def _exchange(self, exchange: Exchange, options: Json) -> Reply:
        content = bytearray()
        async with (
            asyncio.timeout(self.timeout),
            self._http.stream(exchange.method, exchange.url, **options) as answer,
        ):
            encoding = answer.headers.get("content-encoding", "identity")
            require_equal(encoding, "identity", "the content-encoding, as the request accepts it")
            async for chunk in answer.aiter_raw():
                content += chunk
                require(len(content) <= self.max_body, f"an answer of up to {self.max_body} bytes")
        return Reply(answer.status_code, answer.headers, bytes(content), exchange)


def base_url(url: str) -> str:
    """The URL of the API; `/v1` is added to one without a path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidUrl(f"'{url}' is not the URL of a server, such as http://127.0.0.1:8080/v1.")
    if "@" in parts.netloc:
        raise InvalidUrl("The URL contains a user name or password: name a variable with the key by --key-env.")
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def quoted(identifier: str) -> str:
    """An id of the server as a part of a path."""
    return quote(identifier, safe="")


def _as_param(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _retry_after(reply: Reply) -> float | None:
    """Seconds to wait after a 429; None if the answer is to be used."""
    if reply.status != 429 or reply.headers.get("x-should-retry") == "false":
        return None
    try:
        seconds = float(reply.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _MAX_RETRY_AFTER else None


def expect_deleted(reply: Reply, kind: str, identifier: str) -> None:
    """A deletion is answered with the deleted object."""
    if reply.status == 204:
        return
    deleted = reply.ok()
    require(deleted.get("deleted") is True, '"deleted": true', deleted)
    require_equal((deleted.get("object"), deleted.get("id")), (kind, identifier), "`object` and `id`")
