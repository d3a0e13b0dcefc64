"""`SdkClient`: access to OpenAI's SDK: creates the client, sends one request, translates SDK errors to `ProviderFault`.

The SDK is imported on first use. Requests and responses are bytes: the history repeats items exactly as they arrived,
without the cost of SDK models for every item. The SDK adds API keys, headers and timeouts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

from weakincentives.adapters.openai import sdk_hints
from weakincentives.adapters.openai.config import OpenAIClientConfig
from weakincentives.adapters.openai.responses.streaming import OnDelta, read_stream
from weakincentives.adapters.openai.wire import PATH, STREAM_HEADERS, Wire, as_object, decode_json, is_openai
from weakincentives.adapters.retry import parse_retry_after
from weakincentives.errors import MissingExtraError, ProviderFault

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_FIRST_HTTPX2_VERSION = 3
_EVENT_STREAM = "text/event-stream"
_NO_QUOTA = "insufficient_quota"
_REQUEST_ID = "x-request-id"


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """The JSON of a response, and the server's id of the request."""

    body: Wire
    request_id: str | None


class SdkClient:
    """An SDK client that is given, or created on first use. The SDK's retries are off: the adapter retries itself."""

    def __init__(self, client: OpenAI | None, config: OpenAIClientConfig | None) -> None:
        self._given = client
        self._config = config or OpenAIClientConfig()
        self._client: OpenAI | None = None
        self._lock = Lock()
        self._takes_extensions: bool | None = None

    @property
    def client(self) -> OpenAI:
        """The client. Raises the SDK's own errors."""
        with self._lock:
            if self._client is None:
                if self._given is None:
                    self._client = _create_client(self._config)
                else:
                    self._client = self._given.with_options(max_retries=0)
                sdk_hints.install()
            return self._client

    def open(self) -> OpenAI:
        """The client. Raises `ProviderFault`, for example if no API key is set."""
        with translate_errors():
            return self.client

    @property
    def takes_extensions(self) -> bool | None:
        """Whether the server takes request values that OpenAI refuses; None if that is not known yet."""
        return False if is_openai(str(self.client.base_url)) else self._takes_extensions

    @takes_extensions.setter
    def takes_extensions(self, value: bool) -> None:
        self._takes_extensions = value

    def close(self) -> None:
        """Close the connections of a client that was created here. The next request creates another client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._given is None:
            client.close()

    def send(
        self, body: bytes, *, timeout: float | None, on_delta: OnDelta | None = None, path: str = PATH
    ) -> ApiResponse:
        """Post a request and return the response. Raises `ProviderFault` or `MalformedResponse`.

        With `on_delta` the request asks for a stream, and `on_delta` is called with every piece.
        """
        client = self.client
        options: dict[str, Any] = {} if timeout is None else {"timeout": request_timeout(client, timeout)}
        if on_delta is not None:
            options["headers"] = STREAM_HEADERS
        response_type = http_library().Response
        end = None if timeout is None else time.monotonic() + timeout
        with translate_errors():
            response: Any = client.post(path, content=body, cast_to=response_type, options=cast("Any", options))
        request_id: str | None = response.headers.get(_REQUEST_ID)
        _logger.debug("status %s, request id %s", response.status_code, request_id)
        if on_delta is None:
            return ApiResponse(as_object(decode_json(response.content), "the answer"), request_id)
        try:
            with closing(response):
                return ApiResponse(_read_streamed(response, end, on_delta), request_id)
        except ProviderFault as fault:
            fault.request_id = request_id
            raise


def _create_client(config: OpenAIClientConfig) -> OpenAI:
    """Create a client whose connections are closed when it is garbage-collected.

    A client refers to itself. The collector frees it together with its sockets, and may free the sockets first.
    """
    sdk = _sdk()
    http = sdk.DefaultHttpxClient()
    client = sdk.OpenAI(**config.arguments(), max_retries=0, http_client=http)
    finalize(client, http.close)
    return cast("OpenAI", client)


def _read_streamed(response: Any, end: float | None, on_delta: OnDelta) -> Wire:  # noqa: ANN401 - the SDK's response types are generated
    lines = _lines(response, end)
    if _EVENT_STREAM in response.headers.get("content-type", ""):
        return read_stream(lines, on_delta)
    return as_object(decode_json(b"\n".join(lines)), "the answer")  # the server does not stream


def _lines(response: Any, end: float | None) -> Iterator[bytes]:  # noqa: ANN401 - the SDK's response types are generated
    """Yield the lines of a response as they arrive; `end` is the monotonic time at which the request times out."""
    rest = b""
    try:
        with translate_errors():
            for chunk in response.iter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                if end is not None and time.monotonic() > end:
                    raise ProviderFault("the request timed out")
    except http_library().TimeoutException as error:
        raise ProviderFault("the request timed out") from error
    except http_library().HTTPError as error:
        raise ProviderFault(f"the connection closed before the answer was complete: {error}") from error
    yield from (rest, b"")


@contextmanager
def translate_errors() -> Generator[None]:
    """Translate errors of the SDK, and of its HTTP library, to `ProviderFault`."""
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
    except http_library().TransportError as error:  # while a body is read, the SDK does not translate it
        raise ProviderFault(f"the connection broke: {error}") from error


def request_timeout(client: OpenAI, seconds: float) -> float:
    """The smaller one of the client's timeout and the time left; `ProviderFault` if no time is left."""
    if seconds <= 0:
        raise ProviderFault("no time is left for the request")
    timeout: Any = client.timeout  # a number, a Timeout of one of the HTTP libraries, or None
    known = timeout if isinstance(timeout, int | float) else getattr(timeout, "read", None)
    return seconds if known is None else min(float(known), seconds)


def _sdk() -> Any:  # noqa: ANN401 - an optional module
    try:
        return import_module("openai")
    except ImportError as error:
        raise MissingExtraError(
            "the OpenAI adapter needs OpenAI's SDK: pip install 'weakincentives[openai]'"
        ) from error


def http_library() -> Any:  # noqa: ANN401 - an optional module
    """The HTTP library of the installed SDK version."""
    uses_httpx2 = int(_sdk().__version__.split(".")[0]) >= _FIRST_HTTPX2_VERSION
    return import_module("httpx2" if uses_httpx2 else "httpx")


def _status_fault(error: Any) -> ProviderFault:  # noqa: ANN401 - an exception of an optional module
    headers = error.response.headers
    should_retry = {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())
    body = cast("Wire", error.body) if isinstance(error.body, dict) else {}
    if should_retry is None and body.get("code") == _NO_QUOTA:
        should_retry = False  # a 429 that does not end by waiting
    code = f" ({body['code']})" if body.get("code") else ""
    return ProviderFault(
        f"{error.status_code}{code}: {body.get('message') or error.message}",
        status=error.status_code,
        retry_after=parse_retry_after(headers),
        should_retry=should_retry,
        payload=cast("object", error.body),
        request_id=headers.get(_REQUEST_ID),
    )
