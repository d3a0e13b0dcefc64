"""Fake sandbox router of agent-sandbox: selects the pod by headers and strips `Authorization`.

Its own errors are `{"detail": …}`.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from waiting import wait_until

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


class FakeSandboxRouter:
    """`find` is the host of a Sandbox by its name. `headers` are those of the last request."""

    def __init__(self, find: Callable[[str], str | None], token: str | None) -> None:
        self.url = ""
        self.headers: dict[str, str] = {}
        self.requests = 0
        self._find = find
        self._token = token
        self._client = httpx2.AsyncClient(timeout=180, trust_env=False)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        yield
        await self._client.aclose()

    async def handle(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        self.requests += 1
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            return JSONResponse({"detail": "Missing or invalid Authorization header."}, 401)
        name = request.headers.get("x-sandbox-id")
        if not name:
            return JSONResponse({"detail": "X-Sandbox-ID header is required."}, 400)
        host, port = self._find(name), request.headers.get("x-sandbox-port", "8888")
        left_out = {"host", "authorization"}
        headers = [(key, value) for key, value in request.headers.items() if key not in left_out]
        url = str(
            request.url.replace(scheme="http", netloc=f"{host or '127.0.0.1:9'}:{port}" if host else "127.0.0.1:9")
        )
        forwarded = self._client.build_request(request.method, url, headers=headers, content=request.stream())
        try:
            reply = await self._client.send(forwarded, stream=True)
        except httpx2.TransportError:
            return JSONResponse({"detail": f"Could not connect to the backend sandbox: {name}"}, 502)
        kept = {key: value for key, value in reply.headers.items() if key not in _HOP_BY_HOP}
        return StreamingResponse(_body(reply), reply.status_code, kept)


async def _body(reply: httpx2.Response) -> AsyncGenerator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    except httpx2.TransportError:
        pass  # the pod has ended, and so does the body
    finally:
        await reply.aclose()


@contextmanager
def sandbox_router(find: Callable[[str], str | None], token: str | None = None) -> Iterator[FakeSandboxRouter]:
    """A running router."""
    router = FakeSandboxRouter(find, token)
    app = Starlette(routes=[Route("/{path:path}", router.handle, methods=_METHODS)], lifespan=router.lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, loop="asyncio"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        router.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield router
    finally:
        server.should_exit = True
        thread.join()
