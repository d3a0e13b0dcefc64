"""Handlers of /v1/messages: create a message, count the tokens of one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError, internal
from antwort.api.events import AnyEvent, ResponseCreated, ResponseInProgress
from antwort.engine.driver import ResponseRun
from antwort.engine.ports import ModelFault, SamplingOptions
from antwort.engine.truncate import CONTEXT_LENGTH_EXCEEDED
from antwort.http.bodies import json_answer, read_body
from antwort.http.errors import from_model_fault
from antwort.http.openapi import EVENT_STREAM, JSON, ApiRoute, Operation
from antwort.http.services import Services, caller_of, owner_of, services_of
from antwort.http.streams import EventStream
from antwort.http.wires.begin import begin_response, stream_timeouts
from antwort.http.wires.messages.errors import error_event, prompt_too_long
from antwort.http.wires.messages.events import (
    PING,
    STREAM_EVENTS,
    AnswerMessage,
    ContainerInfo,
    MessagesApiError,
    to_rfc3339,
    to_sse,
)
from antwort.http.wires.messages.message import MessageFold
from antwort.http.wires.messages.reader import ReadRequest, parse_count, parse_create
from antwort.http.wires.messages.request import CountMessageTokens, CreateMessageParams, MessageTokens
from antwort.http.wires.messages.writer import MessageWriter, ResponseFailedError
from antwort.models.tokens import estimate_request
from antwort.net.disconnect import run_until_disconnect


async def create(request: Request) -> HttpResponse:
    """Create a message: wait for it, or stream it."""
    services, read = services_of(request), await read_body(request, parse_create)
    with ExitStack() as cleanup:
        answer = await _begin(services, request, read, cleanup)
        if not read.streams:
            return json_answer(await run_until_disconnect(request.receive, answer.whole()))
        return EventStream(
            answer.run.events(),
            encode=answer.encode,
            error_frames=answer.error_frames,
            is_held=_is_beginning,
            keep_alive_frame=PING,
            on_close=cleanup.pop_all().close,
            **stream_timeouts(services),
        )


async def _begin(services: Services, request: Request, read: ReadRequest, cleanup: ExitStack) -> _Answer:
    try:
        lifetime = await _container_lifetime(services, request, read)
        sampling = SamplingOptions(stop=read.stop, max_output_is_ceiling=True)
        run = await begin_response(services, caller_of(request), read.request, cleanup, sampling)
    except ApiError as error:
        raise read.paths.translate(error) from error
    services.active_responses[run.response.id] = run
    window = services.models.find(read.request.model).context_window
    writer = MessageWriter(
        shows_thinking=read.shows_thinking,
        stop_sequence=lambda: run.stop_sequence,
        container=lambda identifier: ContainerInfo(identifier, to_rfc3339(time.time() + lifetime)),
    )
    return _Answer(run, writer, window)


async def _container_lifetime(services: Services, request: Request, read: ReadRequest) -> float:
    """After how many seconds without use the container expires. Files for the one that the request names are copied."""
    containers = services.containers
    if read.container_id is None or containers is None:
        return services.config.containers.expires_after * 60
    record = await containers.require(owner_of(request), read.container_id)
    if read.uploads:
        copying = containers.ensure_files(owner_of(request), record.id, read.uploads)
        await run_until_disconnect(request.receive, copying)
    return record.expires_after


def _is_beginning(event: AnyEvent) -> bool:
    """Whether an event comes before all output. The status is sent after it: the model may not take the request."""
    return isinstance(event, (ResponseCreated, ResponseInProgress))


@dataclass
class _Answer:
    """A message that is being made."""

    run: ResponseRun
    writer: MessageWriter
    window: int | None
    """Tokens of the model's context, if that is known."""

    async def whole(self) -> AnswerMessage:
        """The whole message."""
        fold = MessageFold()
        async with aclosing(self.run.events()) as events:
            async for event in events:
                try:
                    for written in self.writer.write(event):
                        fold.add(written)
                except ResponseFailedError as error:
                    raise self._failure() from error
        assert fold.message is not None  # noqa: S101 - the first event has it
        return fold.message

    def encode(self, event: AnyEvent) -> bytes:
        """The frames of an event; an `ApiError` at the end of a response that failed."""
        try:
            return b"".join([to_sse(written) for written in self.writer.write(event)])
        except ResponseFailedError as error:
            raise self._failure() from error

    def error_frames(self, error: ApiError) -> Iterable[bytes]:
        """The `error` event, which ends the stream."""
        yield to_sse(error_event(error))

    def _failure(self) -> ApiError:
        """Why the response failed."""
        fault = self.run.fault
        if fault is None:
            return internal()
        return self._too_long(fault) if fault.code == CONTEXT_LENGTH_EXCEEDED else from_model_fault(fault)

    def _too_long(self, fault: ModelFault) -> ApiError:
        estimated = estimate_request(self.run.model_request())
        return prompt_too_long(from_model_fault(fault), estimated=estimated, window=self.window)


async def count_tokens(request: Request) -> HttpResponse:
    """Count the input tokens of a message."""
    read = await read_body(request, parse_count)
    try:
        tokens = await services_of(request).engine.count_tokens(owner_of(request), read.request)
    except ApiError as error:
        raise read.paths.translate(error) from error
    return json_answer(MessageTokens(tokens))


_MESSAGES = "/v1/messages"

routes = [
    ApiRoute(
        "POST",
        _MESSAGES,
        create,
        Operation(
            "createMessage",
            CreateMessageParams,
            AnswerMessage,
            content_types=(JSON, EVENT_STREAM),
            events=STREAM_EVENTS,
            error=MessagesApiError,
        ),
    ),
    ApiRoute(
        "POST",
        _MESSAGES + "/count_tokens",
        count_tokens,
        Operation("countMessageTokens", CountMessageTokens, MessageTokens, error=MessagesApiError),
    ),
]
