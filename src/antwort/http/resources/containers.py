"""`/v1/containers`: containers and the files in them; and beyond OpenAI's, whole archives, and code without a model."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

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
from antwort.api.errors import ApiError, internal, invalid
from antwort.api.objects import Deleted
from antwort.containers import Containers, ContainerSpec
from antwort.containers.outputs import truncate_result
from antwort.containers.paths import DATA
from antwort.containers.sandboxes import ExecutionResult, Output, SandboxLost, SandboxUnavailable
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    Owner,
    StoreFault,
)
from antwort.http.bodies import json_answer, read_json, stream_body
from antwort.http.errors import to_api_error
from antwort.http.multipart import receive_upload
from antwort.http.paging import ends, page_query
from antwort.http.services import caller_of, owner_of, services_of
from antwort.http.streams import ByteStream, EventStream
from antwort.net.disconnect import run_until_disconnect
from antwort.net.sse import encode_frame

# ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def create(request: Request) -> Answer:
    """Make one."""
    asked = await read_json(request, CreateContainer)
    check(asked)
    wish = ContainerSpec(
        name=asked.name,
        memory_limit=asked.memory_limit,
        expires_after_minutes=asked.expires_after.minutes if asked.expires_after else None,
        file_ids=asked.file_ids or (),
    )
    record = await run_until_disconnect(request.receive, _containers(request).create(owner_of(request), wish))
    return json_answer(_shown(record))


async def list_containers(request: Request) -> Answer:
    """A page of them, expired ones too."""
    query, name = page_query(request), request.query_params.get("name")
    page = await _containers(request).page(owner_of(request), query, name)
    first, last = ends([record.id for record in page.data])
    data = [_shown(record) for record in page.data]
    return json_answer(ContainerPage(data=data, first_id=first, last_id=last, has_more=page.has_more))


async def retrieve(request: Request) -> Answer:
    """One of them. To ask for it is to use it: idleness begins anew."""
    return json_answer(_shown(await _containers(request).get(owner_of(request), _id(request))))


async def delete(request: Request) -> Answer:
    """Forget it, with all that is in it."""
    await _containers(request).delete(owner_of(request), _id(request))
    return json_answer(Deleted(id=_id(request), object="container.deleted"))


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_file(request: Request) -> Answer:
    """Put a file into a container: one that comes with this request, or by its id one that was uploaded before."""
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return await _copy(request, (await read_json(request, AddContainerFile)).file_id)
    upload = await receive_upload(request, services_of(request).config.server.max_file)
    if upload.filename is not None:
        content = upload.content()
        return json_answer(_file(await _containers(request).add_file(*_named(request), upload.filename, content)))
    if "file_id" in upload.fields:
        return await _copy(request, upload.fields["file_id"])
    raise invalid("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")


async def _copy(request: Request, file_id: str) -> Answer:
    copying = _containers(request).add_file_id(*_named(request), file_id)
    return json_answer(_file(await run_until_disconnect(request.receive, copying)))


async def list_files(request: Request) -> Answer:
    """A page of the files."""
    query = page_query(request)
    page = await _containers(request).list_files(*_named(request), query)
    first, last = ends([record.id for record in page.data])
    data = [_file(record) for record in page.data]
    return json_answer(ContainerFilePage(data=data, first_id=first, last_id=last, has_more=page.has_more))


async def retrieve_file(request: Request) -> Answer:
    """What is known of a file."""
    return json_answer(_file(await _containers(request).get_file(*_named(request), _file_id(request))))


async def file_content(request: Request) -> Answer:
    """The file itself, as something to save and never to show."""
    containers = _containers(request)
    record = await containers.get_file(*_named(request), _file_id(request))
    content = await containers.read_file(*_named(request), record.id)
    name = record.path.rpartition("/")[2]
    return ByteStream(
        content, name=quote(name, safe=""), media_type="application/octet-stream", stall_timeout=_stall(request)
    )


async def delete_file(request: Request) -> Answer:
    """Remove it."""
    await _containers(request).delete_file(*_named(request), _file_id(request))
    return json_answer(Deleted(id=_file_id(request), object="container.file.deleted"))


# ── beyond OpenAI's ──────────────────────────────────────────────────────────────────────────────────────────────────


async def write_archive(request: Request) -> Answer:
    """Unpack a tar into a container: many files in one request."""
    files = await _containers(request).unpack(*_named(request), stream_body(request))
    size = sum(file.bytes for file in files)
    return json_answer(Archived(container_id=_id(request), files=len(files), bytes=size))


async def read_archive(request: Request) -> Answer:
    """All files of a container as one tar."""
    content = await _containers(request).pack(*_named(request))
    return ByteStream(
        content, name=f"{_id(request)}.tar", media_type="application/x-tar", stall_timeout=_stall(request)
    )


async def execute(request: Request) -> Answer:
    """Run code in a container, without a model: wait for the result, or stream what it prints."""
    services, asked = services_of(request), await read_json(request, ExecuteCode)
    await _containers(request).require(*_named(request))  # a wrong id is an error status, and no event
    with ExitStack() as cleanup:
        cleanup.callback(services.limits.begin(caller_of(request)))
        steps = _containers(request).execute(
            *_named(request), asked.code, requirements=asked.requirements or (), timeout=asked.timeout
        )
        if asked.stream:
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
        except (SandboxLost, SandboxUnavailable, StoreFault) as trouble:
            told = to_api_error(trouble)
            told.should_retry = False  # some of the code may have run
            raise told from trouble


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


# ── as the wire has it ───────────────────────────────────────────────────────────────────────────────────────────────


def _shown(record: ContainerRecord) -> ContainerObject:
    return ContainerObject(
        id=record.id,
        created_at=record.created_at,
        status=record.status,
        expires_after=Idleness(minutes=_minutes(record.expires_after)),
        last_active_at=int(record.last_active_at),
        memory_limit=record.memory_limit,
        name=record.name,
        network_policy=Network(),
        lost=UNSET if record.lost is None else f"{record.lost} Variables and files from before are gone.",
    )


def _minutes(seconds: float) -> float:
    minutes = seconds / 60
    return int(minutes) if minutes.is_integer() else round(minutes, 3)


def _file(record: ContainerFileRecord) -> ContainerFileObject:
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
        images=[{"url": f"data:{one.mime};base64,{base64.b64encode(one.data).decode()}"} for one in result.figures],
        files=[_file(record) for record in result.files],
        duration_ms=result.duration_ms,
        cut_bytes=result.cut_bytes,
        replaced=result.sandbox_replaced,
        lost=None if result.sandbox_alive else result.reason or result.status,
    )


# ── of a request ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _containers(request: Request) -> Containers:
    containers = services_of(request).containers
    if containers is None:
        raise ApiError(404, "This server has no containers: 'code_interpreter' is off.", code="unknown_url")
    return containers


def _named(request: Request) -> tuple[Owner, str]:
    """Whose, and which container."""
    return owner_of(request), _id(request)


def _id(request: Request) -> str:
    return request.path_params["container_id"]


def _file_id(request: Request) -> str:
    return request.path_params["container_file_id"]


def _stall(request: Request) -> float:
    return services_of(request).config.server.stall_timeout


_ONE = "/v1/containers/{container_id}"

routes = [
    Route("/v1/containers", create, methods=["POST"]),
    Route("/v1/containers", list_containers, methods=["GET"]),
    Route(_ONE, retrieve, methods=["GET"]),
    Route(_ONE, delete, methods=["DELETE"]),
    Route(_ONE + "/files", create_file, methods=["POST"]),
    Route(_ONE + "/files", list_files, methods=["GET"]),
    Route(_ONE + "/files/{container_file_id}", retrieve_file, methods=["GET"]),
    Route(_ONE + "/files/{container_file_id}", delete_file, methods=["DELETE"]),
    Route(_ONE + "/files/{container_file_id}/content", file_content, methods=["GET"]),
    Route(_ONE + "/archive", write_archive, methods=["PUT"]),
    Route(_ONE + "/archive", read_archive, methods=["GET"]),
    Route(_ONE + "/exec", execute, methods=["POST"]),
]
