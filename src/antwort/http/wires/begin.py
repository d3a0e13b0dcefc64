"""What all wires do with a request: begin a response within the caller's limits, and wait for it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TypedDict

from starlette.requests import Request

from antwort.api.requests import CreateResponse
from antwort.api.responses import Response
from antwort.auth import Caller
from antwort.engine.driver import ResponseRun
from antwort.engine.ports import SamplingOptions
from antwort.engine.stores import Owner
from antwort.http.errors import from_model_fault
from antwort.http.services import Services
from antwort.net.disconnect import run_until_disconnect
from antwort.telemetry import audit


async def begin_response(
    services: Services,
    caller: Caller,
    asked: CreateResponse,
    cleanup: ExitStack,
    sampling: SamplingOptions | None = None,
) -> ResponseRun:
    """Start a response: counted in the caller's rate limit and in the metrics until `cleanup` is closed.

    `sampling` has the options of wires other than the Responses API.
    """
    cleanup.callback(await services.rate_limiter.begin(caller))
    run = await services.engine.start(Owner(caller.tenant, caller.key_id), asked, sampling)
    cleanup.enter_context(services.track(run))
    audit("response.create", run.response.id, model=services.models.resolve(asked.model), stored=run.is_stored)
    return run


async def finish_response(run: ResponseRun, request: Request) -> Response:
    """Wait for the whole response. A model that failed before any output is an error instead of a response."""
    response = await run_until_disconnect(request.receive, run.finish())
    if response.status == "failed" and run.fault is not None and not _has_answer(response):
        raise from_model_fault(run.fault)
    return response


def _has_answer(response: Response) -> bool:
    """Whether there is any output of the model. A compaction alone is none: the client should retry the request."""
    return any(item["type"] != "compaction" for item in response.output)


class StreamTimeouts(TypedDict):
    """The time-outs of an `EventStream`."""

    keep_alive: float
    stall_timeout: float


def stream_timeouts(services: Services) -> StreamTimeouts:
    """The time-outs that the configuration sets for streams."""
    server = services.config.server
    return {"keep_alive": server.keep_alive, "stall_timeout": server.stall_timeout}
