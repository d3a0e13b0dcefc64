"""Handlers of /v1/files. Uploads and downloads are streamed; downloads are attachments, so no browser runs them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import contextmanager
from typing import IO, TypeAlias
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import invalid, missing_parameter, not_found
from antwort.api.ids import new_id
from antwort.api.objects import Deleted, FileObject, FilePage
from antwort.containers import Containers
from antwort.engine.stores import FileRecord, UnknownCursor
from antwort.http.bodies import json_answer
from antwort.http.multipart import Upload, receive_upload
from antwort.http.openapi import BINARY, OCTET_STREAM, ApiRoute, Operation, Schema
from antwort.http.paging import object_page, paging_query, parse_page_query
from antwort.http.services import owner_of, services_of
from antwort.http.streams import ByteStream
from antwort.http.wires.messages import files as messages_files
from antwort.http.wires.messages.errors import speaks_messages
from antwort.storage.errors import translate_os_errors
from antwort.telemetry import audit

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000
MAX_FILENAME_LENGTH = 255
MAX_LIMIT = 10_000
_SPOOL_SIZE = 1024 * 1024

Fields: TypeAlias = dict[str, str]


async def create(request: Request) -> HttpResponse:
    """Upload a file. An aborted or oversized upload leaves nothing behind."""
    services = services_of(request)
    upload = await receive_upload(request, services.config.server.max_file)
    if upload.filename is None:
        raise missing_parameter("file")
    if is_messages := speaks_messages(request):
        upload.fields.setdefault("purpose", messages_files.DEFAULT_PURPOSE)
    if "purpose" in upload.fields:
        record = _record(upload.fields, upload.filename)
        stored = await services.store.create_file(owner_of(request), record, upload.content())
    else:  # the form fields follow the file, and `purpose` is needed first
        stored = await _spool_and_store(request, upload, upload.filename)
    audit("file.create", stored.id, bytes=stored.bytes)
    return json_answer(messages_files.file_metadata(stored) if is_messages else _file_object(stored))


async def _spool_and_store(request: Request, upload: Upload, filename: str) -> FileRecord:
    with translate_os_errors(), _spool() as spool:
        async for chunk in upload.content():
            await asyncio.to_thread(spool.write, chunk)
        record = _record(upload.fields, filename)
        await asyncio.to_thread(spool.seek, 0)
        return await services_of(request).store.create_file(owner_of(request), record, _read_chunks(spool))


@contextmanager
def _spool() -> Generator[IO[bytes]]:
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_SIZE) as spool:
        yield spool


async def _read_chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _SPOOL_SIZE):
        yield chunk


async def list_files(request: Request) -> HttpResponse:
    """List files."""
    if speaks_messages(request):
        query = messages_files.page_query(request)
        try:
            listed = await services_of(request).store.list_files(owner_of(request), query)
        except UnknownCursor as error:
            raise messages_files.unknown_cursor(request, error) from error
        return json_answer(messages_files.file_page(listed))
    query = parse_page_query(request, max_limit=MAX_LIMIT, default_limit=MAX_LIMIT)
    page = await services_of(request).store.list_files(owner_of(request), query, request.query_params.get("purpose"))
    return json_answer(object_page(FilePage, page, _file_object))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve the metadata of a file."""
    if not speaks_messages(request):
        return json_answer(_file_object(await _get_record(request)))
    if (named := messages_files.file_in_container(request)) is None:
        return json_answer(messages_files.file_metadata(await _get_record(request)))
    containers, container_id, file_id = named
    record = await containers.get_file(owner_of(request), container_id, file_id)
    return json_answer(messages_files.container_file_metadata(record))


async def content(request: Request) -> HttpResponse:
    """Download the content of a file, as an attachment."""
    if speaks_messages(request) and (named := messages_files.file_in_container(request)) is not None:
        return await _container_file_content(request, *named)
    record = await _get_record(request)
    chunks = await services_of(request).store.read_file(owner_of(request), record.id)
    if chunks is None:
        raise not_found("File", record.id)
    return ByteStream(
        _as_generator(chunks),
        name=quote(record.filename, safe=""),
        media_type=OCTET_STREAM,
        stall_timeout=services_of(request).config.server.stall_timeout,
        size=record.bytes,
    )


async def _container_file_content(
    request: Request, containers: Containers, container_id: str, file_id: str
) -> HttpResponse:
    owner = owner_of(request)
    record = await containers.get_file(owner, container_id, file_id)
    return ByteStream(
        await containers.read_file(owner, container_id, file_id),
        name=quote(record.path.rpartition("/")[2], safe=""),
        media_type=OCTET_STREAM,
        stall_timeout=services_of(request).config.server.stall_timeout,
    )


async def _as_generator(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        yield chunk


async def delete(request: Request) -> HttpResponse:
    """Delete a file."""
    identifier, is_messages = request.path_params["file_id"], speaks_messages(request)
    if is_messages and (named := messages_files.file_in_container(request)) is not None:
        containers, container_id, file_id = named
        await containers.delete_file(owner_of(request), container_id, file_id)
    elif not await services_of(request).store.delete_file(owner_of(request), identifier):
        raise not_found("File", identifier)
    audit("file.delete", identifier)
    return json_answer(messages_files.DeletedFile(identifier) if is_messages else Deleted(id=identifier, object="file"))


async def _get_record(request: Request) -> FileRecord:
    identifier = request.path_params["file_id"]
    record = await services_of(request).store.get_file(owner_of(request), identifier)
    if record is None:
        raise not_found("File", identifier)
    return record


def _record(fields: Fields, filename: str) -> FileRecord:
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing_parameter("purpose")
    if purpose not in PURPOSES:
        raise invalid(f"Invalid value: '{purpose}'. Supported values are: {', '.join(PURPOSES)}.", param="purpose")
    name = "".join(character for character in filename if character.isprintable())
    if not name or len(name) > MAX_FILENAME_LENGTH:
        raise invalid(f"A file name must have between 1 and {MAX_FILENAME_LENGTH} characters.", param="file")
    now = int(time.time())
    return FileRecord(
        id=new_id("file-"), bytes=0, created_at=now, filename=name, purpose=purpose, expires_at=_expires_at(fields, now)
    )


def _expires_at(fields: Fields, now: int) -> int | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid("'expires_after[anchor]' must be 'created_at'.", param="expires_after[anchor]")
    number = int(seconds[:9]) if seconds and seconds.isascii() and seconds.isdecimal() else 0
    if not MIN_EXPIRY_SECONDS <= number <= MAX_EXPIRY_SECONDS:
        message = f"'expires_after[seconds]' must be an integer from {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}."
        raise invalid(message, param="expires_after[seconds]")
    return now + number


def _file_object(record: FileRecord) -> FileObject:
    return FileObject(**msgspec.structs.asdict(record))


_FILES = "/v1/files"
_FILE = _FILES + "/{file_id}"
_FORM: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": BINARY,
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_EXPIRY_SECONDS, "maximum": MAX_EXPIRY_SECONDS},
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}
_LIST_QUERY = {**paging_query(MAX_LIMIT, MAX_LIMIT), "purpose": {"type": "string"}}

routes = [
    ApiRoute("POST", _FILES, create, Operation("createFile", returns=FileObject, links={"file_id": "/id"}, form=_FORM)),
    ApiRoute("GET", _FILES, list_files, Operation("listFiles", returns=FilePage, query=_LIST_QUERY)),
    ApiRoute("GET", _FILE, retrieve, Operation("getFile", returns=FileObject)),
    ApiRoute("DELETE", _FILE, delete, Operation("deleteFile", returns=Deleted)),
    ApiRoute("GET", _FILE + "/content", content, Operation("getFileContent", content_types=(OCTET_STREAM,))),
]
