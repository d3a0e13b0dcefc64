"""What all wires do with a request: begin a response within the caller's limits, and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from typing import TypedDict

import msgspec
from starlette.requests import Request

from antwort.api.errors import ApiError
from antwort.api.events import (
    AnyEvent,
    ErrorEvent,
    ResponseCreated,
    ResponseFailed,
    ResponseInProgress,
    ResponseQueued,
)
from antwort.api.requests import CreateResponse
from antwort.api.responses import Response, ResponseError
from antwort.auth import Caller
from antwort.engine.context import NO_RECENT_RESPONSES, RecentResponses
from antwort.engine.driver import ResponseRun
from antwort.engine.ports import SamplingOptions
from antwort.engine.stores import Owner
from antwort.http.errors import from_model_fault
from antwort.http.services import Services
from antwort.net.disconnect import run_until_disconnect
from antwort.telemetry import audit

_BEFORE_ANSWER = (ResponseCreated, ResponseQueued, ResponseInProgress)


async def begin_response(
    services: Services,
    caller: Caller,
    asked: CreateResponse,
    cleanup: ExitStack,
    sampling: SamplingOptions | None = None,
    *,
    recent: RecentResponses = NO_RECENT_RESPONSES,
    generate: bool = True,
) -> ResponseRun:
    """Start a response: counted in the caller's rate limit and in the metrics until `cleanup` is closed.

    `sampling` has the options of wires other than the Responses API. `recent` and `generate` are those of
    `Engine.start`.
    """
    cleanup.callback(await services.rate_limiter.begin(caller))
    owner = Owner(caller.tenant, caller.key_id)
    run = await services.engine.start(owner, asked, sampling, recent=recent, generate=generate)
    cleanup.enter_context(services.track(run))
    audit("response.create", run.response.id, model=services.models.resolve(asked.model), stored=run.is_stored)
    return run


async def finish_response(run: ResponseRun, request: Request) -> Response:
    """Wait for the whole response. A model that failed before any output is an error instead of a response."""
    response = await run_until_disconnect(request.receive, run.finish())
    if response.status == "failed" and run.fault is not None and not _has_answer(response):
        raise from_model_fault(run.fault)
    return response


async def open_events(run: ResponseRun, request: Request, wait: float) -> AsyncGenerator[AnyEvent, None]:
    """The events of a response, for a stream, once the model has begun to answer: before that, a failure is an error.

    After `wait` seconds the stream begins in any case, and a later failure is an event of it.
    """
    events, begun = run.events(), list[AnyEvent]()
    opening = asyncio.create_task(_read_opening(events, begun))
    try:
        await run_until_disconnect(request.receive, _wait_for(opening, wait))
        if opening.done():
            opening.result()
            await _raise_if_failed(run, events)
    except BaseException:
        await _close(events, opening)
        raise
    return _continued(events, begun, opening)


async def _wait_for(opening: asyncio.Task[None], seconds: float) -> None:
    await asyncio.wait({opening}, timeout=seconds)


async def _read_opening(events: AsyncGenerator[AnyEvent, None], begun: list[AnyEvent]) -> None:
    """Read up to the first event that shows the answer, or its failure."""
    async for event in events:
        begun.append(event)
        if not isinstance(event, _BEFORE_ANSWER):
            return


async def _raise_if_failed(run: ResponseRun, events: AsyncGenerator[AnyEvent, None]) -> None:
    if run.fault is not None:
        async for _ in events:  # stores the response
            pass
        raise from_model_fault(run.fault)


async def _continued(
    events: AsyncGenerator[AnyEvent, None], begun: list[AnyEvent], opening: asyncio.Task[None]
) -> AsyncGenerator[AnyEvent, None]:
    try:
        await opening
        for event in begun:
            yield event
        async for event in events:
            yield event
    finally:
        await _close(events, opening)


async def _close(events: AsyncGenerator[AnyEvent, None], opening: asyncio.Task[None]) -> None:
    opening.cancel()
    await asyncio.wait({opening})
    await events.aclose()


def _has_answer(response: Response) -> bool:
    """Whether there is any output of the model. A compaction alone is none: the client should retry the request."""
    return any(item["type"] != "compaction" for item in response.output)


def failure_events(run: ResponseRun, error: ApiError, after: int) -> Iterator[AnyEvent]:
    """The end of a stream that broke: an `error` event, and the `response.failed` that ends every stream."""
    yield ErrorEvent(error=error.envelope().error, sequence_number=after + 1)
    why = ResponseError("server_error", error.message)
    failed = msgspec.structs.replace(run.response, status="failed", error=why)
    yield ResponseFailed(response=failed, sequence_number=after + 2)


class StreamTimeouts(TypedDict):
    """The time-outs of an `EventStream`."""

    keep_alive: float
    stall_timeout: float


def stream_timeouts(services: Services) -> StreamTimeouts:
    """The time-outs that the configuration sets for streams."""
    server = services.config.server
    return {"keep_alive": server.keep_alive, "stall_timeout": server.stall_timeout}
