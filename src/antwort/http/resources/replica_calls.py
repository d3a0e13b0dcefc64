"""Handler of calls from other replicas: operations on containers whose sandboxes this process holds.

Not part of the public API, and served only where other replicas can call: `RequestMiddleware` has verified the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from antwort.api.errors import ApiError
from antwort.containers.files import FileStream, file_not_found, uploaded_files
from antwort.containers.operations import ContainerOperations
from antwort.containers.replicas.calls import (
    ARGUMENTS_HEADER,
    CALL_ERROR_STATUS,
    CALLS_PATH,
    Call,
    CallError,
    CallToken,
    CopyFilesCall,
    DeleteFileCall,
    ExecuteCall,
    InvalidCall,
    PrepareCall,
    PutFileCall,
    ReadFilesCall,
    ReleaseCall,
    RunCommandCall,
    SyncFilesCall,
    UnpackCall,
    decode_call,
    decode_header,
    to_call_error,
)
from antwort.containers.replicas.client import CALL_KEEP_ALIVE, MAX_ARGUMENTS
from antwort.containers.sandboxes.port import Output, PythonCode, ShellCommand
from antwort.engine.stores import ContainerFileRecord, ContainerRecord
from antwort.http.bodies import MAX_INLINE_BYTES, stream_body
from antwort.http.openapi import OCTET_STREAM
from antwort.http.services import Services, services_of
from antwort.http.streams import ByteStream, EventStream
from antwort.net.sse import encode_frame


async def call(request: Request) -> HttpResponse:
    """Run one operation, and stream its events; an error before the first one is an error status."""
    services, token = services_of(request), token_of(request)
    containers = services.containers
    if containers is None:
        raise ApiError(404, "This server has no containers: 'code_interpreter' is off.", code="unknown_url")
    arguments = await _arguments(request, token)
    try:
        if isinstance(arguments, ReleaseCall):  # the record is deleted already
            return _events(services, _value(lambda: containers.release_deleted(token.owner, _id(request))))
        record = await containers.held(token.owner, _id(request), token.sandbox)
        if isinstance(arguments, (PutFileCall, UnpackCall)):
            return await _upload(request, containers.local, token, record, arguments)
        if isinstance(arguments, ReadFilesCall):
            return await _download(services, containers.local, token, record, arguments)
    except ClientDisconnect:
        raise
    except Exception as error:  # noqa: BLE001 - reported to the other replica, in the form that it raises again
        return HttpResponse(msgspec.json.encode(to_call_error(error)), CALL_ERROR_STATUS, media_type="application/json")
    if isinstance(arguments, (ExecuteCall, RunCommandCall)):
        steps = containers.local.execute(token.owner, record, _program(arguments), seconds=arguments.seconds)
        return _events(services, _with_errors(steps))
    return _events(services, _value(lambda: _run(services, containers.local, token, record, arguments)))


def _program(arguments: ExecuteCall | RunCommandCall) -> PythonCode | ShellCommand:
    if isinstance(arguments, RunCommandCall):
        return ShellCommand(arguments.command)
    return PythonCode(arguments.code, arguments.requirements)


async def _run(
    services: Services,
    local: ContainerOperations,
    token: CallToken,
    record: ContainerRecord,
    arguments: CopyFilesCall | DeleteFileCall | PrepareCall | SyncFilesCall,
) -> list[ContainerFileRecord] | None:
    """An operation with one result, whose arguments are all there."""
    match arguments:
        case CopyFilesCall():
            param = "file_id" if arguments.again else "file_ids"
            files = await uploaded_files(services.store, token.owner, arguments.file_ids, param)
            return await local.copy_files(token.owner, record, files, again=arguments.again)
        case DeleteFileCall():
            file = await _file(services, token, record, arguments.file_id)
            await local.delete_file(token.owner, record, file)
        case PrepareCall():
            await local.prepare(token.owner, record)
        case SyncFilesCall():
            await local.sync_files(token.owner, record)
    return None


async def _upload(
    request: Request,
    local: ContainerOperations,
    token: CallToken,
    record: ContainerRecord,
    arguments: PutFileCall | UnpackCall,
) -> HttpResponse:
    """An operation whose content is the body, which is not read before the container is locked."""
    async with aclosing(stream_body(request)) as content:
        if isinstance(arguments, PutFileCall):
            stored: object = await local.put_file(token.owner, record, arguments.path, content)
        else:
            stored = await local.unpack(token.owner, record, content)
    return HttpResponse(_encode(stored), media_type="text/event-stream")


async def _download(
    services: Services, local: ContainerOperations, token: CallToken, record: ContainerRecord, arguments: ReadFilesCall
) -> HttpResponse:
    file = None if arguments.file_id is None else await _file(services, token, record, arguments.file_id)
    content = await FileStream.start(local.read(token.owner, record, file))
    stall_timeout = services.config.server.stall_timeout
    return ByteStream(content, name=record.id, media_type=OCTET_STREAM, stall_timeout=stall_timeout)


async def _file(services: Services, token: CallToken, record: ContainerRecord, file_id: str) -> ContainerFileRecord:
    file = await services.store.get_container_file(token.owner, record.id, file_id)
    if file is None:
        raise file_not_found(record.id, file_id)
    return file


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(services: Services, events: AsyncGenerator[object, None]) -> EventStream[object]:
    settings = services.config.server
    keep_alive = min(settings.keep_alive, CALL_KEEP_ALIVE)
    return EventStream(events, encode=_encode, keep_alive=keep_alive, stall_timeout=settings.stall_timeout)


async def _value(operation: Callable[[], Awaitable[object]]) -> AsyncGenerator[object, None]:
    try:
        value = await operation()
    except Exception as error:  # noqa: BLE001 - reported to the other replica
        value = to_call_error(error)
    yield value


async def _with_errors(steps: AsyncGenerator[object, None]) -> AsyncGenerator[object, None]:
    async with aclosing(steps):
        try:
            async for step in steps:
                yield step
        except Exception as error:  # noqa: BLE001 - reported to the other replica
            yield to_call_error(error)


def _encode(event: object) -> bytes:
    name = "output" if isinstance(event, Output) else "error" if isinstance(event, CallError) else "result"
    return encode_frame(name, msgspec.json.encode(event))


# ── the request ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _arguments(request: Request, token: CallToken) -> Call:
    """The arguments of the call, which the token must be for."""
    if (header := request.headers.get(ARGUMENTS_HEADER)) is not None:
        body = decode_header(header)
    else:
        async with aclosing(stream_body(request, MAX_ARGUMENTS)) as chunks:
            body = b"".join([chunk async for chunk in chunks])
    try:
        if len(body) > MAX_INLINE_BYTES:
            return await asyncio.to_thread(_checked, token, body)
        return _checked(token, body)
    except (InvalidCall, msgspec.DecodeError) as error:
        raise invalid_call() from error


def _checked(token: CallToken, body: bytes) -> Call:
    token.check_arguments(body)
    return decode_call(body)


def invalid_call() -> ApiError:
    """401, without a reason: that is in the log."""
    return ApiError(401, "Only replicas of this server may send requests to this path.", code="invalid_api_key")


def token_of(request: Request) -> CallToken:
    """The verified token; `RequestMiddleware` has set it."""
    token: CallToken = request.scope["antwort.replica_call"]
    return token


def _id(request: Request) -> str:
    return request.path_params["container_id"]


route = Route(CALLS_PATH + "{container_id}", call, methods=["POST"])
