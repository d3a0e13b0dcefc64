"""Handlers of /v1/responses: create, retrieve, resume, cancel, delete, compact, input items, token count."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.events import FINAL_EVENTS, AnyEvent
from antwort.api.objects import Deleted, InputTokens, ItemPage
from antwort.api.projection import ResponseView
from antwort.api.requests import CompactHistory, CountTokens, CreateResponse
from antwort.api.responses import CompactedResponse, Response
from antwort.engine.driver import ResponseRun
from antwort.engine.ports import ModelFault
from antwort.engine.stores import StoredResponse
from antwort.http.bodies import json_answer, read_json
from antwort.http.errors import from_model_fault
from antwort.http.openapi import EVENT_STREAM, JSON, ApiRoute, Operation
from antwort.http.paging import (
    INCLUDE_QUERY,
    item_page,
    paging_query,
    parse_boolean,
    parse_include,
    parse_integer,
    parse_page_query,
)
from antwort.http.services import caller_of, owner_of, services_of
from antwort.http.streams import EventStream
from antwort.http.wires.begin import begin_response, failure_events, finish_response, stream_timeouts
from antwort.net.disconnect import run_until_disconnect
from antwort.telemetry import audit


async def create(request: Request) -> HttpResponse:
    """Create a response: wait for it, stream it, or run it in the background."""
    services, asked = services_of(request), await read_json(request, CreateResponse)
    with ExitStack() as cleanup:
        run = await begin_response(services, caller_of(request), asked, cleanup)
        view = services.view(asked.include or (), obfuscation=asked.is_obfuscated)
        if asked.background:
            queued = json_answer(run.response)
            services.background.launch(run, on_end=cleanup.pop_all().close)
            return _follow(request, run.response.id, -1, view) if asked.stream else queued
        services.active_responses[run.response.id] = run
        if asked.stream:
            streamed = _StreamedResponse(run, view)
            return EventStream(
                run.events(),
                encode=streamed.encode,
                error_frames=streamed.error_frames,
                on_close=cleanup.pop_all().close,
                **stream_timeouts(services),
            )
        return json_answer(view.response(await finish_response(run, request)))


@dataclass
class _StreamedResponse:
    """Encodes the events of a response, and the last frames of a stream that fails."""

    run: ResponseRun
    view: ResponseView
    number: int = -1
    ended: bool = False

    def encode(self, event: AnyEvent) -> bytes:
        self.number, self.ended = event.sequence_number, isinstance(event, FINAL_EVENTS)
        return self.view.event(event)

    def error_frames(self, error: ApiError) -> Iterable[bytes]:
        """An `error` event, and the `response.failed` that ends every stream."""
        if not self.ended:
            yield from map(self.view.event, failure_events(self.run, error, self.number))


def _follow(request: Request, response_id: str, after: int, view: ResponseView) -> EventStream[bytes]:
    """The stored events of a background response, then new ones as they come."""
    services = services_of(request)
    frames = services.background.follow(owner_of(request), response_id, after)
    return EventStream(frames, encode=view.frame, **stream_timeouts(services))


# ── retrieve, delete, cancel ─────────────────────────────────────────────────────────────────────────────────────────


async def retrieve(request: Request) -> HttpResponse:
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
    return _follow(request, stored.response.id, after, view)


def _stored_include(stored: StoredResponse) -> frozenset[str]:
    return frozenset(stored.request.get("include") or ())


async def delete(request: Request) -> HttpResponse:
    """Delete a response. A running one is cancelled first."""
    stored, services = await _get_stored(request), services_of(request)
    identifier = stored.response.id
    if stored.response.background and not stored.response.ended:
        await services.background.end(owner_of(request), identifier)
    await services.store.delete_response(owner_of(request), identifier)
    audit("response.delete", identifier)
    return json_answer(Deleted(id=identifier, object="response"))


async def cancel(request: Request) -> HttpResponse:
    """Cancel a background response. One that has finished is unchanged."""
    stored, services = await _get_stored(request), services_of(request)
    if not stored.response.background:
        raise invalid("Cannot cancel a synchronous response.", code=None)
    view = services.view(_stored_include(stored))
    if stored.response.ended:
        return json_answer(view.response(stored.response))
    await services.background.end(owner_of(request), stored.response.id)
    now = (await _get_stored(request)).response
    audit("response.cancel", now.id)
    return json_answer(view.response(now))


async def input_items(request: Request) -> HttpResponse:
    """List the input items of a response."""
    query, identifier = parse_page_query(request), request.path_params["response_id"]
    view = services_of(request).view(parse_include(request))
    page = await services_of(request).store.input_items(owner_of(request), identifier, query)
    if page is None:
        raise not_found("Response", identifier)
    return json_answer(item_page(page, view))


async def input_tokens(request: Request) -> HttpResponse:
    """Count the input tokens of a request."""
    body = await read_json(request, CountTokens)
    tokens = await services_of(request).engine.count_tokens(owner_of(request), body.as_request())
    return json_answer(InputTokens(input_tokens=tokens))


async def compact(request: Request) -> HttpResponse:
    """Compact a history: a shorter window for the next request, with one encrypted item. Stores nothing."""
    services, body = services_of(request), await read_json(request, CompactHistory)
    with ExitStack() as cleanup:
        cleanup.callback(await services.rate_limiter.begin(caller_of(request)))
        work = services.engine.compact(owner_of(request), body.as_request())
        try:
            compacted = await run_until_disconnect(request.receive, work)
        except ModelFault as fault:
            raise from_model_fault(fault) from fault
        audit("response.compact", compacted.id, model=services.models.resolve(body.model))
        services.metrics.record_compaction(compacted.compaction)
        return json_answer(compacted)


async def _get_stored(request: Request) -> StoredResponse:
    identifier = request.path_params["response_id"]
    stored = await services_of(request).store.get_response(owner_of(request), identifier)
    if stored is None:
        raise not_found("Response", identifier)
    return stored


_RESPONSES = "/v1/responses"
_RESPONSE = _RESPONSES + "/{response_id}"
_JSON_OR_SSE = (JSON, EVENT_STREAM)

routes = [
    ApiRoute(
        "POST",
        _RESPONSES,
        create,
        Operation("createResponse", CreateResponse, Response, content_types=_JSON_OR_SSE, links={"response_id": "/id"}),
    ),
    ApiRoute("POST", _RESPONSES + "/compact", compact, Operation("compactResponse", CompactHistory, CompactedResponse)),
    ApiRoute(
        "POST", _RESPONSES + "/input_tokens", input_tokens, Operation("countInputTokens", CountTokens, InputTokens)
    ),
    ApiRoute(
        "GET",
        _RESPONSE,
        retrieve,
        Operation(
            "getResponse",
            returns=Response,
            query={
                **INCLUDE_QUERY,
                "stream": {"type": "boolean", "default": False},
                "starting_after": {"type": "integer"},
                "include_obfuscation": {"type": "boolean", "default": True},
            },
            content_types=_JSON_OR_SSE,
        ),
    ),
    ApiRoute("DELETE", _RESPONSE, delete, Operation("deleteResponse", returns=Deleted)),
    ApiRoute("POST", _RESPONSE + "/cancel", cancel, Operation("cancelResponse", returns=Response)),
    ApiRoute(
        "GET",
        _RESPONSE + "/input_items",
        input_items,
        Operation("listInputItems", returns=ItemPage, query={**paging_query(), **INCLUDE_QUERY}),
    ),
]
