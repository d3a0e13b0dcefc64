"""Handlers of /v1/responses: create, retrieve, resume, cancel, delete, input items, token count."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Answer

from antwort.api.errors import ApiError, invalid, not_found, unavailable
from antwort.api.events import FINAL_EVENTS, ErrorEvent, ResponseFailed, to_sse
from antwort.api.objects import Deleted, InputTokens, ItemPage
from antwort.api.projection import ResponseView
from antwort.api.requests import CountTokens, CreateResponse
from antwort.api.responses import Response, ResponseError
from antwort.engine.engine import Work
from antwort.engine.ports import StoredResponse, StoreFault
from antwort.http.bodies import json_answer, read_json
from antwort.http.errors import of_fault
from antwort.http.openapi import EVENT_STREAM, JSON, ApiRoute, Operation
from antwort.http.paging import (
    INCLUDE_PARAMETER,
    item_page,
    paging_parameters,
    parse_boolean,
    parse_include,
    parse_integer,
    parse_page_query,
)
from antwort.http.services import Services, caller_of, owner_of, services_of, track_metrics
from antwort.http.streams import EventStream, attended, broken_off
from antwort.telemetry import audit, log


async def create(request: Request) -> Answer:
    """Create a response: wait for it, stream it, or run it in the background."""
    services, asked = services_of(request), await read_json(request, CreateResponse)
    over = services.rate_limiter.begin(caller_of(request))
    try:
        work = await services.engine.start(owner_of(request), asked)
    except BaseException:
        over()
        raise
    audit("response.create", work.response.id, model=work.response.model, stored=work.stored)
    over = track_metrics(services, work, over)
    view = services.view(asked.include or (), obfuscation=_is_obfuscated(asked))
    if asked.background:
        queued = json_answer(work.response)
        services.background.launch(work, ended=over)
        return _followed(request, work.response.id, -1, view) if asked.stream else queued
    services.active_responses[work.response.id] = work
    if asked.stream:
        told = _Told(work, view)
        return _stream(services, told.frames(), closed=over, broken=told.broken)
    try:
        with _done_once(work):
            return json_answer(view.response(_told(await attended(request.receive, work.finish()), work)))
    finally:
        over()


def _is_obfuscated(asked: CreateResponse) -> bool:
    return asked.stream_options is None or asked.stream_options.include_obfuscation is not False


def _told(response: Response, work: Work) -> Response:
    """A model that failed before anything came of it is an error like any other; else what there is counts."""
    if response.status == "failed" and work.fault is not None and not response.output:
        raise of_fault(work.fault)
    return response


@contextmanager
def _done_once(work: Work) -> Generator[None]:
    """Work whose end cannot be stored was done all the same: an SDK that asked again would have it done twice."""
    try:
        yield
    except StoreFault as fault:
        log.warning("store_fault", exc_info=fault)
        message = (
            f"The work on response '{work.response.id}' has ended, and its end cannot be stored right now. "
            "It will be as soon as that is possible: look for it there before you ask again."
        )
        raise unavailable(message, should_retry=False) from fault


@dataclass
class _Told:
    """A response that is streamed as it is made: knows what was told of it, and so how to end a stream that breaks."""

    work: Work
    view: ResponseView
    number: int = -1
    ended: bool = False

    async def frames(self) -> AsyncGenerator[bytes, None]:
        with _done_once(self.work):
            async with aclosing(self.work.events()) as events:
                async for event in events:
                    yield self.view.event(event)
                    self.number, self.ended = event.sequence_number, isinstance(event, FINAL_EVENTS)

    def broken(self, error: ApiError) -> Iterable[bytes]:
        """The error, and the end that every stream has."""
        if self.ended:
            return
        yield to_sse(ErrorEvent(error=error.envelope().error, sequence_number=self.number + 1))
        why = ResponseError("server_error", error.message)
        failed = msgspec.structs.replace(self.work.response, status="failed", error=why)
        yield self.view.event(ResponseFailed(response=failed, sequence_number=self.number + 2))


def _followed(request: Request, response_id: str, after: int, view: ResponseView) -> EventStream:
    """What a background response has told, and tells from now on."""

    async def frames() -> AsyncGenerator[bytes, None]:
        async with aclosing(services.background.follow(owner_of(request), response_id, after)) as kept:
            async for frame in kept:
                yield view.frame(frame)

    services = services_of(request)
    return _stream(services, frames())


def _stream(
    services: Services,
    frames: AsyncGenerator[bytes, None],
    closed: Callable[[], None] = lambda: None,
    broken: Callable[[ApiError], Iterable[bytes]] = broken_off,
) -> EventStream:
    server = services.config.server
    return EventStream(
        frames, keep_alive=server.keep_alive, stall_timeout=server.stall_timeout, closed=closed, broken=broken
    )


# ── retrieve, delete, cancel ─────────────────────────────────────────────────────────────────────────────────────────


async def retrieve(request: Request) -> Answer:
    """Retrieve a response; or stream its events after a sequence number."""
    wants_events, after = parse_boolean(request, "stream"), parse_integer(request, "starting_after", -1)
    include, obfuscation = parse_include(request), parse_boolean(request, "include_obfuscation", default=True)
    services, stored = services_of(request), await _get_stored(request)
    if not wants_events:
        return json_answer(services.view(include).response(stored.response))
    if not stored.response.background:
        raise invalid("Only responses created with 'background' can be streamed again.", param="stream")
    # A resumed stream applies the `include` of the original request and that of this one.
    view = services.view(include | _stored_include(stored), obfuscation=obfuscation)
    return _followed(request, stored.response.id, after, view)


def _stored_include(stored: StoredResponse) -> frozenset[str]:
    return frozenset(stored.request.get("include") or ())


async def delete(request: Request) -> Answer:
    """Delete a response. A running one is cancelled first."""
    stored, services = await _get_stored(request), services_of(request)
    identifier = stored.response.id
    await services.background.cancel(identifier)
    await services.store.delete_response(owner_of(request), identifier)
    audit("response.delete", identifier)
    return json_answer(Deleted(id=identifier, object="response"))


async def cancel(request: Request) -> Answer:
    """Cancel a background response. One that has finished is unchanged."""
    stored, services = await _get_stored(request), services_of(request)
    if not stored.response.background:
        raise invalid("Cannot cancel a synchronous response.", code=None)
    view = services.view(_stored_include(stored))
    if stored.response.ended:
        return json_answer(view.response(stored.response))
    await services.background.cancel(stored.response.id)
    now = (await _get_stored(request)).response
    if not now.ended:  # no task runs it
        now.status = "cancelled"
        await services.store.finish_response(owner_of(request), now)
    audit("response.cancel", now.id)
    return json_answer(view.response(now))


async def input_items(request: Request) -> Answer:
    """List the input items of a response."""
    query, identifier = parse_page_query(request), request.path_params["response_id"]
    view = services_of(request).view(parse_include(request))
    page = await services_of(request).store.input_items(owner_of(request), identifier, query)
    if page is None:
        raise not_found("Response", identifier)
    return json_answer(item_page(page, view))


async def input_tokens(request: Request) -> Answer:
    """Count the input tokens of a request."""
    body = await read_json(request, CountTokens)
    tokens = await services_of(request).engine.count_tokens(owner_of(request), body.as_request())
    return json_answer(InputTokens(input_tokens=tokens))


async def _get_stored(request: Request) -> StoredResponse:
    identifier = request.path_params["response_id"]
    stored = await services_of(request).store.get_response(owner_of(request), identifier)
    if stored is None:
        raise not_found("Response", identifier)
    return stored


_RESPONSE = "/v1/responses/{response_id}"

routes = [
    ApiRoute(
        "POST",
        "/v1/responses",
        create,
        Operation(
            "createResponse",
            CreateResponse,
            Response,
            content_types=(JSON, EVENT_STREAM),
            path_values={"response_id": "/id"},
        ),
    ),
    ApiRoute(
        "POST", "/v1/responses/input_tokens", input_tokens, Operation("countInputTokens", CountTokens, InputTokens)
    ),
    ApiRoute(
        "GET",
        _RESPONSE,
        retrieve,
        Operation(
            "getResponse",
            returns=Response,
            query={
                **INCLUDE_PARAMETER,
                "stream": {"type": "boolean", "default": False},
                "starting_after": {"type": "integer"},
                "include_obfuscation": {"type": "boolean", "default": True},
            },
            content_types=(JSON, EVENT_STREAM),
        ),
    ),
    ApiRoute("DELETE", _RESPONSE, delete, Operation("deleteResponse", returns=Deleted)),
    ApiRoute("POST", _RESPONSE + "/cancel", cancel, Operation("cancelResponse", returns=Response)),
    ApiRoute(
        "GET",
        _RESPONSE + "/input_items",
        input_items,
        Operation("listInputItems", returns=ItemPage, query={**paging_parameters(), **INCLUDE_PARAMETER}),
    ),
]
