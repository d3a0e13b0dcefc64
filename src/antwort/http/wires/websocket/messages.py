"""Messages of the WebSocket wire: reads `response.create` as a `CreateResponse`; writes events and errors. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, invalid, malformed, missing_parameter, unsupported_value
from antwort.api.events import AnyEvent, ErrorEvent
from antwort.api.projection import ResponseView
from antwort.api.requests import CreateResponse, decode
from antwort.api.tools import ToolTypes
from antwort.net.sse import decode_frame

PATH: Final = "/v1/responses"
CREATE: Final = "response.create"
_STREAM_ID_RE = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class ClientMessage(NamedTuple):
    """A `response.create`, of which only the envelope has been read."""

    body: bytes
    stream_id: str | None
    """The lane: responses of one lane run one after the other. None is the default lane."""
    previous: str | None = None
    """The response that it continues, also if the rest of the request is not valid."""


class MessageError(Exception):
    """A message that is not a request, or cannot be taken. `stream_id` is its lane, where that is known."""

    def __init__(self, error: ApiError, stream_id: str | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.stream_id = stream_id


class CreateMessage(NamedTuple):
    """A `response.create`: the request, and whether a model is asked."""

    request: CreateResponse
    generate: bool


class _Envelope(Struct):
    type: Any = None
    stream_id: Any = None
    previous_response_id: Any = None


class _Create(CreateResponse, kw_only=True):
    type: Any = None
    stream_id: Any = None
    generate: bool | None = None


def read_envelope(body: bytes) -> ClientMessage:
    """Read the type and the lane; `MessageError` for another type than `response.create`."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except msgspec.MsgspecError as error:
        raise MessageError(malformed(error)) from error
    except (UnicodeError, RecursionError) as error:
        problem = invalid(f"We could not parse the JSON of your message: {error}", code="invalid_json")
        raise MessageError(problem) from error
    stream_id = _read_stream_id(envelope.stream_id)
    if envelope.type is None:
        raise MessageError(missing_parameter("type"), stream_id)
    if envelope.type != CREATE:
        given = envelope.type if isinstance(envelope.type, str) else msgspec.json.encode(envelope.type).decode()
        raise MessageError(unsupported_value(given, [CREATE], "type"), stream_id)
    previous = envelope.previous_response_id
    return ClientMessage(body, stream_id, previous if isinstance(previous, str) else None)


def _read_stream_id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or _STREAM_ID_RE.fullmatch(value) is None:
        message = (
            "Invalid 'stream_id': expected a string of 1 to 256 letters, digits, underscores, hyphens and periods."
        )
        raise MessageError(invalid(message, param="stream_id", code="invalid_stream_id"))
    return value


def read_create(body: bytes, tool_types: ToolTypes) -> CreateMessage:
    """Read the request. Parameters that have no meaning on a WebSocket are an `ApiError` 400.

    `stream: true` and `background: false` say what happens in any case, and clients send them.
    """
    created = decode(body, _Create, tool_types=tool_types)
    if created.stream is False:
        raise _unsupported("stream", "the events of a response are always sent")
    if created.background:
        raise _unsupported("background", "send the request over HTTP")
    fields = {name: getattr(created, name) for name in CreateResponse.__struct_fields__}
    fields |= {"stream": None, "background": None}
    is_prewarmed = (created.prompt_cache_options or {}).get("prewarm") is True
    return CreateMessage(CreateResponse(**fields), created.generate is not False and not is_prewarmed)


def _unsupported(param: str, cure: str) -> ApiError:
    message = f"Unsupported parameter: '{param}' has no meaning on a WebSocket: {cure}."
    return invalid(message, param=param, code="unsupported_parameter")


# ── messages to the client ───────────────────────────────────────────────────────────────────────────────────────────


class _Error(Struct, tag_field="type", tag="error", omit_defaults=True, kw_only=True):
    """An error of a request, or of the connection. `headers` are those of the error over HTTP."""

    status: int
    error: Any
    headers: dict[str, str] | None = None
    stream_id: str | None = None


def error_message(error: ApiError, stream_id: str | None = None, request_id: str | None = None) -> bytes:
    """An error as a message."""
    headers = error.headers() | ({} if request_id is None else {"x-request-id": request_id})
    sent = _Error(status=error.status, error=error.envelope().error, headers=headers or None, stream_id=stream_id)
    return msgspec.json.encode(sent)


def event_message(view: ResponseView, event: AnyEvent, stream_id: str | None, status: int = 500) -> bytes:
    """An event as a message: the data of its SSE frame, with its lane. `status` is that of an `error` event."""
    data = decode_frame(view.event(event)).data
    if isinstance(event, ErrorEvent):
        data = b'%b,"status":%d}' % (data[:-1], status)
    return data if stream_id is None else b'%b,"stream_id":"%b"}' % (data[:-1], stream_id.encode())
