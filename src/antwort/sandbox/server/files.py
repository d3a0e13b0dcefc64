"""Files of a session: up, down, list, stat, delete, move, and a whole tree as one tar."""

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

from antwort.sandbox.errors import Refused
from antwort.sandbox.files import archive
from antwort.sandbox.files.tree import MAX_LISTED, Entry, PendingFile, split_path
from antwort.sandbox.server import transfers
from antwort.sandbox.server.bodies import Fields, pieces, read

if TYPE_CHECKING:
    from antwort.sandbox.server.app import Server

_CHUNK: Final = 1 << 20
# A browser must never run what a container made.
_INERT: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Cache-Control": "no-store"}


def _server(request: Request) -> Server:
    return request.app.state.server


def _described(entry: Entry) -> dict[str, Any]:
    return {"path": entry.path, "kind": entry.kind, "size": entry.size, "modified": entry.modified}


async def _list(request: Request) -> Response:
    with _server(request).sessions.using(request.path_params["session"]) as session:
        below, after = request.query_params.get("path", ""), request.query_params.get("after", "")
        limit = _limit(request.query_params.get("limit", str(MAX_LISTED)))
        listing = await asyncio.to_thread(session.container.files.list, below, limit=limit, after=after)
        files = [_described(entry) for entry in listing.entries]
        return JSONResponse({"files": files, "has_more": listing.has_more})


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_LISTED):
        message = f"limit must be a whole number from 1 to {MAX_LISTED}"
        raise Refused(message)
    return int(text)


async def _upload(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        files = session.container.files
        draft = await asyncio.to_thread(files.open_write, path)
        whole = False
        try:
            await _receive(request, draft, session.container.limits.disk_bytes)
            whole = True
        finally:
            # Shielded, so that a client that goes leaves no descriptor open.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(draft.close, commit=whole)))
        return JSONResponse(_described(await asyncio.to_thread(files.stat, path)), 201)


async def _receive(request: Request, draft: PendingFile, limit: int) -> None:
    pending = bytearray()
    async for piece in pieces(request, limit, repr(draft.path)):
        pending += piece
        if len(pending) >= _CHUNK:
            await asyncio.to_thread(draft.write, bytes(pending))
            pending.clear()
    await asyncio.to_thread(draft.write, bytes(pending))


async def _download(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        descriptor, size = await asyncio.to_thread(session.container.files.open_read, path)
    name = quote(split_path(path)[-1])
    headers = {**_INERT, "Content-Length": str(size), "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    if request.method == "HEAD":
        os.close(descriptor)
        return Response(headers=headers, media_type="application/octet-stream")
    content, close = _chunks(descriptor, size), lambda: os.close(descriptor)
    return _Stream(content, close, headers=headers, media_type="application/octet-stream")


async def _chunks(descriptor: int, size: int) -> AsyncIterator[bytes]:
    """Exactly so many bytes as promised; zeros for what the code cut off meanwhile."""
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
        return JSONResponse(_described(entry))


async def _move(request: Request) -> Response:
    fields = Fields(await read(request, _CHUNK))
    source, target = fields.text("from"), fields.text("to")
    with _server(request).sessions.using(request.path_params["session"]) as session:
        await asyncio.to_thread(session.container.files.move, source, target)
        return JSONResponse(_described(await asyncio.to_thread(session.container.files.stat, target)))


async def _unpack(request: Request) -> Response:
    below = request.query_params.get("path", "")
    server = _server(request)
    with server.sessions.using(request.path_params["session"]) as session:
        files, limit = session.container.files, session.container.limits.disk_bytes
        # Twice the quota, since headers and padding come on top of what is in the files.
        body = pieces(request, 2 * limit + _CHUNK, "the archive")
        async with server.archives.place():
            count = await transfers.receive(body, lambda file: archive.unpack(files, file, below, limit=limit))
        return JSONResponse({"members": count}, 201)


async def _pack(request: Request) -> Response:
    below = request.query_params.get("path", "")
    if below:
        split_path(below)
    server = _server(request)
    with server.sessions.using(request.path_params["session"]) as session:
        files, limit = session.container.files, 4 * session.container.limits.disk_bytes
        await asyncio.to_thread(files.list, below, limit=1)  # once bytes are on their way there is no saying no
    headers = {**_INERT, "Content-Disposition": 'attachment; filename="files.tar"'}
    packed = transfers.send(lambda file: archive.pack(files, file, below, limit=limit))
    await server.archives.enter()
    return _Stream(packed, server.archives.leave, headers=headers, media_type="application/x-tar")


class _Stream(StreamingResponse):
    """Calls `after` at its end, also where the client had gone before the first piece was asked for."""

    def __init__(self, content: AsyncIterator[bytes], after: Callable[[], None], **named: Any) -> None:  # noqa: ANN401 - as the base class takes it
        super().__init__(content, **named)
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._after()


_FILE: Final = "/sessions/{session}/files/{path:path}"

ROUTES: Final = [
    Route("/sessions/{session}/files", _list, methods=["GET"]),
    Route(_FILE, _upload, methods=["PUT"]),
    Route(_FILE, _download, methods=["GET", "HEAD"]),
    Route(_FILE, _delete, methods=["DELETE"]),
    Route("/sessions/{session}/stat/{path:path}", _stat, methods=["GET"]),
    Route("/sessions/{session}/move", _move, methods=["POST"]),
    Route("/sessions/{session}/archive", _unpack, methods=["PUT"]),
    Route("/sessions/{session}/archive", _pack, methods=["GET"]),
]
