"""Handlers of /v1/chat/completions, and of /v1/completions, which this server does not have."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from antwort.api.errors import ApiError, internal
from antwort.engine.driver import ResponseRun
from antwort.http.bodies import json_answer, read_body
from antwort.http.errors import from_model_fault
from antwort.http.openapi import EVENT_STREAM, JSON, ApiRoute, Operation
from antwort.http.services import Services, caller_of, services_of
from antwort.http.streams import EventStream
from antwort.http.wires.begin import begin_response, finish_response, open_events, stream_timeouts
from antwort.http.wires.chat_completions.answer import ChatCompletion, ChatCompletionChunk
from antwort.http.wires.chat_completions.chunks import ChunkWriter
from antwort.http.wires.chat_completions.completion import completion
from antwort.http.wires.chat_completions.reader import ChatRequest, read_chat
from antwort.http.wires.chat_completions.request import CreateChatCompletion


async def create_chat_completion(request: Request) -> HttpResponse:
    """Create a chat completion: wait for it, or stream it."""
    services = services_of(request)
    chat = await read_body(request, partial(read_chat, tool_types=services.engine.tool_types))
    with ExitStack() as cleanup:
        run = await _begin(services, request, chat, cleanup)
        services.active_responses[run.response.id] = run
        view = services.view(chat.asked.include or ())
        if chat.form.is_streamed:
            writer = ChunkWriter(run.response, chat, view)
            events = await open_events(run, request, services.config.server.keep_alive)
            return EventStream(
                events,
                encode=writer.encode,
                error_frames=writer.error_frames,
                on_close=cleanup.pop_all().close,
                **stream_timeouts(services),
            )
        response = await finish_response(run, request)
        if response.status == "failed":
            raise internal() if run.fault is None else from_model_fault(run.fault)
        return json_answer(completion(response, chat, view))


async def _begin(services: Services, request: Request, chat: ChatRequest, cleanup: ExitStack) -> ResponseRun:
    try:
        return await begin_response(services, caller_of(request), chat.asked, cleanup, chat.sampling)
    except ApiError as error:
        raise chat.names.translate(error) from error


async def refuse_completions(request: Request) -> HttpResponse:
    """Refuse a text completion."""
    message = (
        f"Invalid URL ({request.method} /v1/completions). This server has no text completions: use chat completions "
        "(POST /v1/chat/completions) or responses (POST /v1/responses)."
    )
    raise ApiError(404, message, code="unknown_url")


routes = [
    ApiRoute(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        Operation(
            "createChatCompletion",
            CreateChatCompletion,
            ChatCompletion,
            content_types=(JSON, EVENT_STREAM),
            events=(ChatCompletionChunk,),
        ),
    ),
]
undocumented_routes = [Route("/v1/completions", refuse_completions, methods=["GET", "POST"])]
