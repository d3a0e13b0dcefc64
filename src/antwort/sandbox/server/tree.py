"""Files of a session: up, down, list, stat, delete, move, and a whole tree as one tar."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from antwort.sandbox import archive
from antwort.sandbox.errors import SandboxError
from antwort.sandbox.files import Entry, Tree, parts

from .bodies import Fields, pieces, read

if TYPE_CHECKING:
    from .app import Server
    from .sessions import Session

_CHUNK: Final = 1 << 20
_PIECES: Final = 8
# A browser must never run what a container made.
_INERT: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Cache-Control": "no-store"}


def _server(request: Request) -> Server:
    return request.app.state.server


def _described(entry: Entry) -> dict[str, Any]:
    return {"path": entry.path, "kind": entry.kind, "size": entry.size, "modified": entry.modified}


async def _list(request: Request) -> Response:
    with _server(request).sessions.using(request.path_params["session"]) as session:
        below = request.query_params.get("path", "")
        entries = await asyncio.to_thread(lambda: list(session.container.files.list(below)))
        return JSONResponse({"files": [_described(entry) for entry in entries]})


async def _upload(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        files = session.container.files
        descriptor = await asyncio.to_thread(files.open_write, path)
        try:
            await _receive(request, files, descriptor, path, session.container.limits.disk_bytes)
        except BaseException:
            await asyncio.to_thread(_discard, files, path)
            raise
        finally:
            os.close(descriptor)
        return JSONResponse(_described(await asyncio.to_thread(files.stat, path)), 201)


async def _receive(request: Request, files: Tree, descriptor: int, path: str, limit: int) -> None:
    pending = bytearray()
    async for piece in pieces(request, limit, repr(path)):
        pending += piece
        if len(pending) >= _CHUNK:
            await asyncio.to_thread(files.write_all, descriptor, bytes(pending), path)
            pending.clear()
    await asyncio.to_thread(files.write_all, descriptor, bytes(pending), path)


def _discard(files: Tree, path: str) -> None:
    with contextlib.suppress(SandboxError):  # the code may have taken it already
        files.delete(path)


async def _download(request: Request) -> Response:
    path = request.path_params["path"]
    with _server(request).sessions.using(request.path_params["session"]) as session:
        descriptor, size = await asyncio.to_thread(session.container.files.open_read, path)
    name = quote(parts(path)[-1])
    headers = {**_INERT, "Content-Length": str(size), "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    if request.method == "HEAD":
        os.close(descriptor)
        return Response(headers=headers, media_type="application/octet-stream")
    return StreamingResponse(_chunks(descriptor, size), headers=headers, media_type="application/octet-stream")


async def _chunks(descriptor: int, size: int) -> AsyncIterator[bytes]:
    """Exactly so many bytes as promised; zeros for what the code cut off meanwhile."""
    try:
        while size:
            data = await asyncio.to_thread(os.read, descriptor, min(size, _CHUNK))
            data = data or b"\0" * min(size, _CHUNK)
            size -= len(data)
            yield data
    finally:
        os.close(descriptor)


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
    with _server(request).sessions.using(request.path_params["session"]) as session:
        count = await _unpacked(request, session, below)
        return JSONResponse({"members": count}, 201)


async def _unpacked(request: Request, session: Session, below: str) -> int:
    """The body goes, piece by piece, to a thread that unpacks it; a full queue slows the sender down."""
    waiting: queue.Queue[bytes | None] = queue.Queue(_PIECES)
    stopped = threading.Event()
    source = archive.Feed(iter(waiting.get, None))
    limit = session.container.limits.disk_bytes
    work = asyncio.create_task(
        asyncio.to_thread(archive.unpack, session.container.files, cast("IO[bytes]", source), below, limit=limit)
    )
    work.add_done_callback(lambda _: stopped.set())
    try:
        # Twice the quota, since headers and padding come on top of what is in the files.
        async for piece in pieces(request, 2 * limit + (1 << 20), "the archive"):
            if piece:
                await asyncio.to_thread(_put, waiting, piece, stopped)
    finally:
        await asyncio.to_thread(_put, waiting, None, stopped)
    return await work


def _put(waiting: queue.Queue[bytes | None], piece: bytes | None, stopped: threading.Event) -> bool:
    """Hand over a piece, unless the other side has stopped taking."""
    while not stopped.is_set():
        try:
            waiting.put(piece, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


async def _pack(request: Request) -> Response:
    below = request.query_params.get("path", "")
    if below:
        parts(below)
    with _server(request).sessions.using(request.path_params["session"]) as session:
        files, limit = session.container.files, 4 * session.container.limits.disk_bytes
    headers = {**_INERT, "Content-Disposition": 'attachment; filename="files.tar"'}
    return StreamingResponse(_packed(files, below, limit), headers=headers, media_type="application/x-tar")


async def _packed(files: Tree, below: str, limit: int) -> AsyncIterator[bytes]:
    waiting: queue.Queue[bytes | None] = queue.Queue(_PIECES)
    stopped = threading.Event()
    sink = _Sink(lambda piece: _put(waiting, piece, stopped))

    def work() -> None:
        try:
            archive.pack(files, cast("IO[bytes]", sink), below, limit=limit)
        finally:
            sink.flush()
            _put(waiting, None, stopped)

    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        while (piece := await asyncio.to_thread(waiting.get)) is not None:
            yield piece
        await task
    finally:
        stopped.set()
        await asyncio.gather(task, return_exceptions=True)


class _Sink:
    """A file to write to, whose pieces go elsewhere."""

    def __init__(self, put: Callable[[bytes], bool]) -> None:
        self._put = put
        self._pending = bytearray()

    def write(self, data: bytes) -> int:
        self._pending += data
        if len(self._pending) >= _CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._pending and not self._put(bytes(self._pending)):
            message = "nobody reads the archive any more"
            raise BrokenPipeError(message)
        self._pending.clear()


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
