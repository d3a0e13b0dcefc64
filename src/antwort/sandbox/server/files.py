"""File routes of a session: upload, download, list, stat, delete, move, and a directory tree as a tar archive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from antwort.sandbox.errors import BadPath, Refused
from antwort.sandbox.files import archive
from antwort.sandbox.files.tree import MAX_LISTED, Entry, PendingFile, split_path
from antwort.sandbox.packages.session_packages import MAX_SKILL_BYTES
from antwort.sandbox.server import transfers
from antwort.sandbox.server.bodies import read_json, stream_body

if TYPE_CHECKING:
    from antwort.sandbox.server.app import Server

_CHUNK: Final = 1 << 20
# Browsers must not render or execute content from a container.
_DOWNLOAD_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox",
    "Cache-Control": "no-store",
}


def _server(request: Request) -> Server:
    return request.app.state.server


def _to_json(entry: Entry) -> dict[str, Any]:
    return {"path": entry.path, "kind": entry.kind, "size": entry.size, "modified": entry.modified}


async def _list(request: Request) -> Response:
    with _server(request).sessions.using(request.path_params["session"]) as session:
        below, after = request.query_params.get("path", ""), request.query_params.get("after", "")
        limit = _parse_limit(request.query_params.get("limit", str(MAX_LISTED)))
        listing = await asyncio.to_thread(session.container.files.list, below, limit=limit, after=after)
        files = [_to_json(entry) for entry in listing.entries]
        return JSONResponse({"files": files, "has_more": listing.has_more})


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_LISTED):
        raise Refused(f"limit must be an integer from 1 to {MAX_LISTED}")
    return int(text)


async def _upload(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        files = session.container.files
        draft = await asyncio.to_thread(files.open_write, path)
        is_complete = False
        try:
            await _write_body(request, draft, session.container.limits.disk_bytes)
            is_complete = True
        finally:
            # Shielded, so that a disconnect leaves no file descriptor open.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(draft.close, commit=is_complete)))
        return JSONResponse(_to_json(await asyncio.to_thread(files.stat, path)), 201)


async def _write_body(request: Request, draft: PendingFile, limit: int) -> None:
    chunks: list[bytes] = []
    size = 0
    async for chunk in stream_body(request, limit, repr(draft.path)):
        chunks.append(chunk)
        size += len(chunk)
        if size >= _CHUNK:
            await asyncio.to_thread(draft.write, b"".join(chunks))
            chunks, size = [], 0
    await asyncio.to_thread(draft.write, b"".join(chunks))


async def _download(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        descriptor, size = await asyncio.to_thread(session.container.files.open_read, path)
    disposition = f"attachment; filename*=UTF-8''{quote(split_path(path)[-1])}"
    headers = {**_DOWNLOAD_HEADERS, "Content-Length": str(size), "Content-Disposition": disposition}
    if request.method == "HEAD":
        os.close(descriptor)
        return Response(headers=headers, media_type="application/octet-stream")
    content, close = _read_chunks(descriptor, size), lambda: os.close(descriptor)
    return _ClosingResponse(content, close, headers=headers, media_type="application/octet-stream")


async def _read_chunks(descriptor: int, size: int) -> AsyncIterator[bytes]:
    """Exactly `size` bytes, padded with zeros if the running code truncates the file meanwhile."""
    while size:
        data = await asyncio.to_thread(os.read, descriptor, min(size, _CHUNK))
        data = data or b"\0" * min(size, _CHUNK)
        size -= len(data)
        yield data


async def _delete(request: Request) -> Response:
    with _server(request).sessions.using(request.path_params["session"]) as session:
        await asyncio.to_thread(session.container.files.delete, request.path_params["path"])
        return Response(status_code=204)


async def _stat(request: Request) -> Response:
    with _server(request).sessions.using(request.path_params["session"]) as session:
        entry = await asyncio.to_thread(session.container.files.stat, request.path_params["path"])
        return JSONResponse(_to_json(entry))


async def _move(request: Request) -> Response:
    fields = await read_json(request, _CHUNK)
    source, target = fields.string("from"), fields.string("to")
    with _server(request).sessions.using(request.path_params["session"]) as session:
        await asyncio.to_thread(session.container.files.move, source, target)
        return JSONResponse(_to_json(await asyncio.to_thread(session.container.files.stat, target)))


async def _unpack(request: Request) -> Response:
    below = request.query_params.get("path", "")
    server = _server(request)
    with server.sessions.using(request.path_params["session"]) as session:
        files, limit = session.container.files, session.container.limits.disk_bytes
        # Twice the quota, because headers and padding add to the size of the files.
        body = stream_body(request, 2 * limit + _CHUNK, "the archive")
        async with server.archive_slots.slot():
            count = await transfers.receive(body, lambda file: archive.unpack(files, file, below, limit=limit))
        return JSONResponse({"members": count}, 201)


async def _pack(request: Request) -> Response:
    below = request.query_params.get("path", "")
    if below:
        split_path(below)
    server = _server(request)
    with server.sessions.using(request.path_params["session"]) as session:
        files, limit = session.container.files, 4 * session.container.limits.disk_bytes
        # Fails now, because the status cannot change once bytes are sent.
        await asyncio.to_thread(files.list, below, limit=1)
    headers = {**_DOWNLOAD_HEADERS, "Content-Disposition": 'attachment; filename="files.tar"'}
    packed = transfers.send(lambda file: archive.pack(files, file, below, limit=limit))
    await server.archive_slots.acquire()
    return _ClosingResponse(packed, server.archive_slots.release, headers=headers, media_type="application/x-tar")


async def _add_skill(request: Request) -> Response:
    name = request.path_params["name"]
    if len(split_path(name)) != 1:
        raise BadPath(f"{name!r} is not the name of a skill")
    server = _server(request)
    body = stream_body(request, MAX_SKILL_BYTES, "the archive of a skill")
    with server.sessions.using(request.path_params["session"]) as session:
        async with server.archive_slots.slot():
            await transfers.receive(body, lambda file: session.packages.add_skill(name, file))
    return JSONResponse({"name": name})


class _ClosingResponse(StreamingResponse):
    """Calls `on_close` at its end, also if the client disconnects before the first chunk is produced."""

    def __init__(self, content: AsyncIterator[bytes], on_close: Callable[[], None], **options: Any) -> None:  # noqa: ANN401 - the arguments of the base class
        super().__init__(content, **options)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


_FILE: Final = "/sessions/{session}/files/{path:path}"

ROUTES: Final = [
    Route("/sessions/{session}/files", _list, methods=["GET"]),
    Route(_FILE, _upload, methods=["PUT"]),
    Route(_FILE, _download, methods=["GET", "HEAD"]),
    Route(_FILE, _delete, methods=["DELETE"]),
    Route("/sessions/{session}/stat/{path:path}", _stat, methods=["GET"]),
    Route("/sessions/{session}/move", _move, methods=["POST"]),
    Route("/sessions/{session}/skills/{name}", _add_skill, methods=["PUT"]),
    Route("/sessions/{session}/archive", _unpack, methods=["PUT"]),
    Route("/sessions/{session}/archive", _pack, methods=["GET"]),
]
