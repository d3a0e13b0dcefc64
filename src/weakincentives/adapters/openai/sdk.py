"""The one door to OpenAI's SDK: its client, one request at a time, and its exceptions as our faults.

The SDK is loaded on first use. Requests go out as bytes and come back as bytes: what a conversation holds is repeated
exactly as it came, and nobody pays for models of every item. The SDK does what it is best at: keys, headers, timeouts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

from weakincentives.adapters.openai.config import OpenAIClientConfig
from weakincentives.adapters.openai.responses.streaming import Tell, read_stream
from weakincentives.adapters.openai.wire import PATH, STREAMED, Wire, as_object, decode
from weakincentives.adapters.retry import parse_retry_after
from weakincentives.errors import MissingExtraError, ProviderFault

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_HTTPX2_SINCE = 3
_EVENTS = "text/event-stream"
_NO_QUOTA = "insufficient_quota"


class Transport:
    """Sends requests. The SDK's own retries are off, so that nothing is tried twice as often as it should."""

    def __init__(self, client: OpenAI | None, config: OpenAIClientConfig | None) -> None:
        self._given = client
        self._config = config or OpenAIClientConfig()
        self._client: OpenAI | None = None
        self._lock = Lock()

    @property
    def client(self) -> OpenAI:
        """The client, made when it is first needed."""
        with self._lock:
            if self._client is None:
                if self._given is None:
                    self._client = _made(self._config)
                else:
                    self._client = self._given.with_options(max_retries=0)
            return self._client

    def close(self) -> None:
        """Close the connections of a client that was made here. Whoever sends something afterwards gets another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._given is None:
            client.close()

    def send(self, body: bytes, *, seconds: float | None, tell: Tell | None = None) -> Wire:
        """Post a request; no longer than `seconds` is waited for its answer. Raises `ProviderFault` or `Malformed`.

        With `tell` the request asks for a stream, and its pieces are told as they come.
        """
        client = self.client
        options: dict[str, Any] = {} if seconds is None else {"timeout": shorter(client, seconds)}
        if tell is not None:
            options["headers"] = STREAMED
        kind = http_library().Response
        late = _alarm(seconds)
        with faults():
            response: Any = client.post(PATH, content=body, cast_to=kind, options=cast("Any", options))
        _logger.debug("answered %s with request id %s", response.status_code, response.headers.get("x-request-id"))
        if tell is None:
            return as_object(decode(response.content), "the answer")
        with closing(response):
            lines = _lines(response, late)
            if _EVENTS in response.headers.get("content-type", ""):
                return read_stream(lines, tell)
            return as_object(decode(b"\n".join(lines)), "the answer")  # from a server that does not stream


def _made(config: OpenAIClientConfig) -> OpenAI:
    """A client that takes its connections along when nobody has it any more.

    Clients refer to themselves, so the collector gets them together with their sockets, and may come to those first.
    """
    sdk = _sdk()
    http = sdk.DefaultHttpxClient()
    client = sdk.OpenAI(**config.arguments(), max_retries=0, http_client=http)
    finalize(client, http.close)
    return cast("OpenAI", client)


def _alarm(seconds: float | None) -> Callable[[], bool]:
    """Says whether these seconds are over."""
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() > end


def _lines(response: Any, late: Callable[[], bool]) -> Iterator[bytes]:  # noqa: ANN401 - what the SDK has is generated
    """The lines of an answer as they come, no longer than there is time."""
    rest = b""
    try:
        with faults():
            for piece in response.iter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                if late():
                    raise ProviderFault("the request timed out")
    except http_library().TimeoutException as error:
        raise ProviderFault("the request timed out") from error
    except http_library().HTTPError as error:
        raise ProviderFault(f"the answer broke off: {error}") from error
    yield from (rest, b"")


@contextmanager
def faults() -> Generator[None]:
    """What the SDK raises inside, or the HTTP library below it, becomes a `ProviderFault`."""
    sdk = _sdk()
    try:
        yield
    except sdk.APIStatusError as error:
        raise _status_fault(error) from error
    except sdk.APITimeoutError as error:
        raise ProviderFault("the request timed out") from error
    except sdk.APIConnectionError as error:
        raise ProviderFault(f"no connection: {error.__cause__ or error}") from error
    except sdk.OpenAIError as error:
        raise ProviderFault(str(error), should_retry=False) from error
    except http_library().TransportError as error:  # in the middle of a body, where the SDK does not look
        raise ProviderFault(f"the connection broke: {error}") from error


def shorter(client: OpenAI, seconds: float) -> float:
    """The client's own patience, or what time is left where that is less; a fault where none is."""
    if seconds <= 0:
        raise ProviderFault("no time is left for the request")
    timeout: Any = client.timeout  # a number, a Timeout of either HTTP library, or None
    known = timeout if isinstance(timeout, int | float) else getattr(timeout, "read", None)
    return seconds if known is None else min(float(known), seconds)


def _sdk() -> Any:  # noqa: ANN401 - a module that may not be there
    try:
        return import_module("openai")
    except ImportError as error:
        raise MissingExtraError(
            "the OpenAI adapter needs OpenAI's SDK: pip install 'weakincentives[openai]'"
        ) from error


def http_library() -> Any:  # noqa: ANN401 - the same
    """The library that the SDK sends its requests with; which one depends on the SDK."""
    modern = int(_sdk().__version__.split(".")[0]) >= _HTTPX2_SINCE
    return import_module("httpx2" if modern else "httpx")


def _status_fault(error: Any) -> ProviderFault:  # noqa: ANN401 - an exception of a module that may not be there
    headers = error.response.headers
    told = {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())
    body = cast("Wire", error.body) if isinstance(error.body, dict) else {}
    if told is None and body.get("code") == _NO_QUOTA:
        told = False  # a 429 that no waiting cures
    said = body.get("message") or error.message
    code = f" ({body['code']})" if body.get("code") else ""
    message = f"{error.status_code}{code}: {said}"
    return ProviderFault(
        message,
        status=error.status_code,
        retry_after=parse_retry_after(headers),
        should_retry=told,
        payload=cast("object", error.body),
    )
