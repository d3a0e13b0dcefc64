"""Files in the shape of this wire: metadata of uploaded files and of files of containers, which have one name space."""

from __future__ import annotations

import mimetypes
from typing import Literal

from msgspec import Struct
from starlette.requests import Request

from antwort.api.errors import ApiError, invalid, not_found
from antwort.containers import Containers
from antwort.engine.stores import ContainerFileRecord, FileRecord, PageQuery, RecordPage, UnknownCursor
from antwort.http.paging import first_and_last, parse_integer
from antwort.http.services import services_of
from antwort.http.wires.messages.events import to_rfc3339
from antwort.http.wires.messages.hosted import container_file, file_id

DEFAULT_PURPOSE = "user_data"
_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000
_PAGE = "page_"
_BINARY = "application/octet-stream"


class FileMetadata(Struct, kw_only=True):
    """A file."""

    id: str
    type: Literal["file"] = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    downloadable: bool = True


class FileMetadataPage(Struct):
    """A page of uploaded files."""

    data: list[FileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None
    """For `page`. Earlier versions of the API have `after_id` and `before_id` instead."""


class DeletedFile(Struct):
    """A file that was deleted."""

    id: str
    type: Literal["file_deleted"] = "file_deleted"


def file_metadata(record: FileRecord) -> FileMetadata:
    """An uploaded file."""
    return _metadata(record.id, record.filename, record.bytes, record.created_at)


def container_file_metadata(record: ContainerFileRecord) -> FileMetadata:
    """A file of a container."""
    name = record.path.rpartition("/")[2]
    return _metadata(file_id(record.container_id, record.id), name, record.bytes, record.created_at)


def _metadata(identifier: str, name: str, size: int, created_at: int) -> FileMetadata:
    kind, _ = mimetypes.guess_type(name)
    return FileMetadata(
        id=identifier, filename=name, mime_type=kind or _BINARY, size_bytes=size, created_at=to_rfc3339(created_at)
    )


def page_query(request: Request) -> PageQuery:
    """The paging parameters of this wire: the newest files first."""
    limit = parse_integer(request, "limit", _DEFAULT_LIMIT)
    if not 1 <= limit <= _MAX_LIMIT:
        raise invalid(f"Input should be between 1 and {_MAX_LIMIT}", param="limit")
    params = request.query_params
    after = params.get("page", "").removeprefix(_PAGE) or params.get("after_id") or None
    return PageQuery(limit=limit, order="desc", after=after, before=params.get("before_id") or None)


def unknown_cursor(request: Request, error: UnknownCursor) -> ApiError:
    """The error for a cursor that is not in the list, with the parameter that has it."""
    after = "page" if request.query_params.get("page") else "after_id"
    return invalid(str(error), param="before_id" if error.param == "before" else after)


def file_page(page: RecordPage) -> FileMetadataPage:
    """A page of uploaded files."""
    first, last = first_and_last([record.id for record in page.data])
    next_page = f"{_PAGE}{last}" if page.has_more else None
    return FileMetadataPage([file_metadata(record) for record in page.data], page.has_more, first, last, next_page)


def file_in_container(request: Request) -> tuple[Containers, str, str] | None:
    """The containers, and the ids of the container and the file that the path names; None for uploaded files."""
    identifier = request.path_params["file_id"]
    named = container_file(identifier)
    if named is None:
        return None
    containers = services_of(request).containers
    if containers is None:
        raise not_found("File", identifier)
    return containers, *named
