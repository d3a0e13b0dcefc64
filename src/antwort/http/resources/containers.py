"""Handlers of /v1/containers: containers and their files; extensions: tar archives, and code execution (`exec`)."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.containers import (
    AddContainerFile,
    Archived,
    ContainerFileObject,
    ContainerFilePage,
    ContainerObject,
    ContainerPage,
    CreateContainer,
    ExecCompleted,
    ExecOutput,
    ExecuteCode,
    Execution,
    Idleness,
    Network,
    check,
)
from antwort.api.errors import ApiError, internal, missing_parameter
from antwort.api.events import ErrorEvent
from antwort.api.objects import Deleted
from antwort.containers import Containers, ContainerSpec
from antwort.containers.outputs import truncate_result
from antwort.containers.paths import DATA
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxLost, SandboxUnavailable
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, Owner, StoreFault
from antwort.http.bodies import json_answer, read_json, stream_body
from antwort.http.errors import to_api_error
from antwort.http.multipart import receive_upload
from antwort.http.openapi import BINARY, EVENT_STREAM, JSON, OCTET_STREAM, ApiRoute, Operation
from antwort.http.paging import object_page, paging_query, parse_page_query
from antwort.http.services import caller_of, owner_of, services_of
from antwort.http.streams import ByteStream, EventStream
from antwort.net.disconnect import run_until_disconnect
from antwort.net.sse import encode_frame

# ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def create(request: Request) -> HttpResponse:
    """Create a container."""
    body = await read_json(request, CreateContainer)
    check(body)
    library, owner = services_of(request).skills, owner_of(request)
    skills = [] if library is None else await library.read_all(owner, body.skills or (), "skills")
    spec = ContainerSpec(
        name=body.name,
        memory_limit=body.memory_limit,
        expires_after_minutes=body.expires_after.minutes if body.expires_after else None,
        file_ids=body.file_ids or (),
        skills=skills,
    )
    record = await run_until_disconnect(request.receive, _containers(request).create(owner, spec))
    return json_answer(_container_object(record))


async def list_containers(request: Request) -> HttpResponse:
    """List containers, including expired ones."""
    query, name = parse_page_query(request), request.query_params.get("name")
    page = await _containers(request).page(owner_of(request), query, name)
    return json_answer(object_page(ContainerPage, page, _container_object))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a container. This counts as a use and resets its idle time."""
    return json_answer(_container_object(await _containers(request).get(owner_of(request), _id(request))))


async def delete(request: Request) -> HttpResponse:
    """Delete a container and its files."""
    await _containers(request).delete(owner_of(request), _id(request))
    return json_answer(Deleted(id=_id(request), object="container.deleted"))


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_file(request: Request) -> HttpResponse:
    """Add a file to a container: from this multipart request, or a copy of an uploaded file by id."""
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return await _copy_uploaded_file(request, (await read_json(request, AddContainerFile)).file_id)
    upload = await receive_upload(request, services_of(request).config.server.max_file)
    if upload.filename is not None:
        added = await _containers(request).add_file(*_owner_and_id(request), upload.filename, upload.content())
        return json_answer(_file_object(added))
    if "file_id" in upload.fields:
        return await _copy_uploaded_file(request, upload.fields["file_id"])
    raise missing_parameter("file")


async def _copy_uploaded_file(request: Request, file_id: str) -> HttpResponse:
    copying = _containers(request).add_file_id(*_owner_and_id(request), file_id)
    return json_answer(_file_object(await run_until_disconnect(request.receive, copying)))


async def list_files(request: Request) -> HttpResponse:
    """List the files of a container."""
    page = await _containers(request).list_files(*_owner_and_id(request), parse_page_query(request))
    return json_answer(object_page(ContainerFilePage, page, _file_object))


async def retrieve_file(request: Request) -> HttpResponse:
    """Retrieve the metadata of a container file."""
    return json_answer(_file_object(await _containers(request).get_file(*_owner_and_id(request), _file_id(request))))


async def get_content(request: Request) -> HttpResponse:
    """Download the content of a file, as an attachment."""
    containers = _containers(request)
    record = await containers.get_file(*_owner_and_id(request), _file_id(request))
    content = await containers.read_file(*_owner_and_id(request), record.id)
    name = record.path.rpartition("/")[2]
    return ByteStream(
        content, name=quote(name, safe=""), media_type=OCTET_STREAM, stall_timeout=_stall_timeout(request)
    )


async def delete_file(request: Request) -> HttpResponse:
    """Delete a container file."""
    await _containers(request).delete_file(*_owner_and_id(request), _file_id(request))
    return json_answer(Deleted(id=_file_id(request), object="container.file.deleted"))


# ── extensions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def write_archive(request: Request) -> HttpResponse:
    """Extract a tar archive into a container."""
    files = await _containers(request).unpack(*_owner_and_id(request), stream_body(request))
    size = sum(file.bytes for file in files)
    return json_answer(Archived(container_id=_id(request), files=len(files), bytes=size))


async def read_archive(request: Request) -> HttpResponse:
    """Download all files of a container as a tar archive."""
    content = await _containers(request).pack(*_owner_and_id(request))
    return ByteStream(content, name=f"{_id(request)}.tar", media_type=_TAR, stall_timeout=_stall_timeout(request))


async def execute(request: Request) -> HttpResponse:
    """Run code in a container, without a model: wait for the result, or stream what it prints."""
    services, body = services_of(request), await read_json(request, ExecuteCode)
    await _containers(request).require(*_owner_and_id(request))  # a wrong id is an error status, and no event
    with ExitStack() as cleanup:
        cleanup.callback(await services.rate_limiter.begin(caller_of(request)))
        steps = _containers(request).execute(
            *_owner_and_id(request), body.code, requirements=body.requirements or (), timeout=body.timeout
        )
        if body.stream:
            settings = services.config.server
            return EventStream(
                steps,
                encode=lambda step: _encoded(request, step),
                keep_alive=settings.keep_alive,
                stall_timeout=settings.stall_timeout,
                on_close=cleanup.pop_all().close,
            )
        try:
            return json_answer(_execution(request, await run_until_disconnect(request.receive, _last(steps))))
        except (SandboxLost, SandboxUnavailable, StoreFault) as error:
            api_error = to_api_error(error)
            api_error.should_retry = False  # some of the code may have run
            raise api_error from error


async def _last(steps: AsyncGenerator[Output | ExecutionResult, None]) -> ExecutionResult:
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, ExecutionResult):
                return step
    raise internal()


def _encoded(request: Request, step: Output | ExecutionResult) -> bytes:
    if isinstance(step, Output):
        event = ExecOutput(stream=step.stream, text=step.text)
    else:
        event = ExecCompleted(execution=_execution(request, step))
    return encode_frame(str(event.__struct_config__.tag), msgspec.json.encode(event))


# ── response bodies ──────────────────────────────────────────────────────────────────────────────────────────────────


def _container_object(record: ContainerRecord) -> ContainerObject:
    return ContainerObject(
        id=record.id,
        created_at=record.created_at,
        status=record.status,
        expires_after=Idleness(minutes=_minutes(record.expires_after)),
        last_active_at=int(record.last_active_at),
        memory_limit=record.memory_limit,
        name=record.name,
        network_policy=Network(),
        lost=UNSET if record.lost is None else f"{record.lost} Earlier variables and files are lost.",
    )


def _minutes(seconds: float) -> float:
    minutes = seconds / 60
    return int(minutes) if minutes.is_integer() else round(minutes, 3)


def _file_object(record: ContainerFileRecord) -> ContainerFileObject:
    return ContainerFileObject(
        id=record.id,
        created_at=record.created_at,
        bytes=record.bytes,
        container_id=record.container_id,
        path=f"{DATA}/{record.path}",
        source=record.source,
    )


def _execution(request: Request, result: ExecutionResult) -> Execution:
    result = truncate_result(result, services_of(request).config.providers.code_interpreter.max_output_size)
    return Execution(
        container_id=_id(request),
        status=result.status,
        output=[{"stream": one.stream, "text": one.text} for one in result.output],
        result=result.echo,
        exit_code=result.exit_code,
        images=[{"url": f"data:{one.mime};base64,{base64.b64encode(one.data).decode()}"} for one in result.figures],
        files=[_file_object(record) for record in result.files],
        duration_ms=result.duration_ms,
        cut_bytes=result.cut_bytes,
        replaced=result.sandbox_replaced,
        lost=None if result.sandbox_alive else result.reason or result.status,
    )


# ── request parameters ───────────────────────────────────────────────────────────────────────────────────────────────


def _containers(request: Request) -> Containers:
    containers = services_of(request).containers
    if containers is None:
        raise ApiError(404, "This server has no containers: 'code_interpreter' is off.", code="unknown_url")
    return containers


def _owner_and_id(request: Request) -> tuple[Owner, str]:
    """The owner and the container id of a request."""
    return owner_of(request), _id(request)


def _id(request: Request) -> str:
    return request.path_params["container_id"]


def _file_id(request: Request) -> str:
    return request.path_params["container_file_id"]


def _stall_timeout(request: Request) -> float:
    return services_of(request).config.server.stall_timeout


_CONTAINERS = "/v1/containers"
_CONTAINER = _CONTAINERS + "/{container_id}"
_ARCHIVE, _FILES = _CONTAINER + "/archive", _CONTAINER + "/files"
_FILE = _FILES + "/{container_file_id}"
_TAR = "application/x-tar"

routes = [
    ApiRoute(
        "POST",
        _CONTAINERS,
        create,
        Operation("createContainer", CreateContainer, ContainerObject, links={"container_id": "/id"}),
    ),
    ApiRoute(
        "GET",
        _CONTAINERS,
        list_containers,
        Operation("listContainers", returns=ContainerPage, query={**paging_query(), "name": {"type": "string"}}),
    ),
    ApiRoute("GET", _CONTAINER, retrieve, Operation("getContainer", returns=ContainerObject)),
    ApiRoute("DELETE", _CONTAINER, delete, Operation("deleteContainer", returns=Deleted)),
    ApiRoute(
        "POST",
        _FILES,
        create_file,
        Operation(
            "createContainerFile",
            AddContainerFile,
            ContainerFileObject,
            form={"type": "object", "required": ["file"], "properties": {"file": BINARY}},
            links={"container_file_id": "/id"},
        ),
    ),
    ApiRoute(
        "GET", _FILES, list_files, Operation("listContainerFiles", returns=ContainerFilePage, query=paging_query())
    ),
    ApiRoute("GET", _FILE, retrieve_file, Operation("getContainerFile", returns=ContainerFileObject)),
    ApiRoute("DELETE", _FILE, delete_file, Operation("deleteContainerFile", returns=Deleted)),
    ApiRoute(
        "GET", _FILE + "/content", get_content, Operation("getContainerFileContent", content_types=(OCTET_STREAM,))
    ),
    ApiRoute("PUT", _ARCHIVE, write_archive, Operation("writeContainerArchive", returns=Archived, raw=_TAR)),
    ApiRoute("GET", _ARCHIVE, read_archive, Operation("readContainerArchive", content_types=(_TAR,))),
    ApiRoute(
        "POST",
        _CONTAINER + "/exec",
        execute,
        Operation(
            "executeInContainer",
            ExecuteCode,
            Execution,
            content_types=(JSON, EVENT_STREAM),
            events=(ExecOutput, ExecCompleted, ErrorEvent),
        ),
    ),
]
