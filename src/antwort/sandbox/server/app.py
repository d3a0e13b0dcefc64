"""Routes, errors, life span: wires everybody together and is the only one that knows all."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from antwort.sandbox.errors import AtCapacity, Ended, NotFound, Refused, SandboxError, TooLarge, Unavailable
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.limits import ContainerLimits, tier
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.requirements import check_requirements
from antwort.sandbox.pool.pool import Pool
from antwort.sandbox.pool.preload import current_stack
from antwort.sandbox.server import bodies, execute, files, transfers
from antwort.sandbox.server.auth import BearerTokenMiddleware, LoopbackOnlyMiddleware

from .gate import Gate
from .sessions import Order, SandboxSession, Sessions
from .settings import SandboxSettings
from .stream import BROKEN, disconnected, events

T = TypeVar("T")

_STATUS: Final[tuple[tuple[type[SandboxError], int], ...]] = (
    (AtCapacity, 429),
    (Unavailable, 503),
    (NotFound, 404),
    (TooLarge, 413),
    (Ended, 410),
    (Refused, 400),
)


@dataclass(slots=True)
class Server:
    """What a request handler can reach."""

    settings: SandboxSettings
    pool: Pool
    packages: PackageManager
    sessions: Sessions
    gate: Gate
    archives: Gate
    host: hosts.Host
    started: float = field(default_factory=time.monotonic)


def make_app(settings: SandboxSettings, host: hosts.Host | None = None) -> Starlette:
    """The ASGI application. Refuses to be made where a protection is missing and not waived."""
    settings.check()
    found = host or hosts.probe()
    found.require(settings.waived)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncGenerator[None]:
        modules = tuple(filter(None, settings.modules.split(",")))
        ready = await asyncio.to_thread(found.claim_cgroups)
        store = await asyncio.to_thread(
            PackageManager,
            (settings.state / "packages").absolute(),
            ready,
            current_stack(modules),
            index=settings.python_index,
            builds=settings.builds,
            limits=settings.allowance,
        )
        shown = (settings.state / "packages").absolute()
        async with contextlib.aclosing(store), Pool(ready, packages=shown, modules=modules) as pool:
            sessions = Sessions(pool, store, settings)
            gate = Gate(
                settings.max_concurrent, "concurrent executions", queue=settings.queue, seconds=settings.queue_seconds
            )
            archives = Gate(transfers.MOST, "archives on their way")
            app.state.server = Server(settings, pool, store, sessions, gate, archives, found)
            sweeper = asyncio.create_task(sessions.sweep())
            try:
                yield
            finally:
                sweeper.cancel()
                await asyncio.gather(sweeper, return_exceptions=True)

    routes = [
        Route("/execute", _execute, methods=["POST"]),
        Route("/health", _health),
        Route("/sessions", _create_session, methods=["POST"]),
        Route("/sessions", _list_sessions, methods=["GET"]),
        Route("/sessions/{session}", _describe_session, methods=["GET"]),
        Route("/sessions/{session}", _destroy_session, methods=["DELETE"]),
        Route("/sessions/{session}/execute", _execute_in_session, methods=["POST"]),
        Route("/sessions/{session}/interrupt", _interrupt, methods=["POST"]),
        *files.ROUTES,
    ]
    handlers = {SandboxError: _refused, ClientDisconnect: _gone, 500: _broken}
    if settings.token:
        door = Middleware(BearerTokenMiddleware, token=settings.token)
    else:
        door = Middleware(LoopbackOnlyMiddleware, named=settings.uds is None)
    return Starlette(routes=routes, lifespan=life, middleware=[door], exception_handlers=handlers)


async def _refused(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    body: dict[str, str] = {"error": str(error)}
    if isinstance(error, Ended):
        body["reason"] = error.reason
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, AtCapacity) else None
    return JSONResponse(body, status, headers=headers)


async def _gone(_: Request, error: Exception) -> Response:
    """The client went away in the middle of its body: nobody reads this, and it is no failure of ours."""
    del error
    return Response(status_code=499)


async def _broken(_: Request, error: Exception) -> Response:
    """Our own fault. What went wrong is in the log, not in the answer."""
    del error
    return JSONResponse({"error": BROKEN}, 500)


def server_of(request: Request) -> Server:
    """The server that this request came to."""
    found: Server = request.app.state.server
    return found


async def _health(request: Request) -> Response:
    server = server_of(request)
    return JSONResponse(
        {
            "status": "ok",
            "mode": server.settings.mode,
            "runtime_version": f"Python {platform.python_version()}",
            "capacity": server.settings.max_concurrent,
            "current_load": server.gate.taken,
            "uptime_seconds": int(time.monotonic() - server.started),
            "sessions": server.sessions.count,
            "isolation": {name: state for name, state, _ in server.pool.host.lines()},
        }
    )


async def _execute(request: Request) -> Response:
    server = server_of(request)
    # Read before a place is taken: whoever sends one byte a second holds up nobody else.
    fields = bodies.Fields(await bodies.read(request, server.settings.max_body_bytes))
    order = execute.parse(fields, server.settings)
    async with server.gate.place(order.tenant):
        running = execute.run(order, server.pool, server.packages, server.settings)
        return await _unless_disconnected(request, running, JSONResponse)


async def _create_session(request: Request) -> Response:
    server = server_of(request)
    fields = bodies.Fields(await bodies.read(request, server.settings.max_body_bytes))
    limits = _limits(fields, server)
    given = fields.files()
    for name in given:
        files.split_path(name)
    creating = server.sessions.create(
        limits,
        tenant=fields.tenant(),
        expires_after=fields.number("expires_after_seconds", server.settings.session_seconds, 7 * 86_400),
        requirements=check_requirements(fields.texts("requirements")),
        seconds=fields.number("timeout_seconds", execute.DEFAULT_SECONDS, server.settings.max_timeout_seconds),
    )
    filled = _filled(server, creating, given)
    return await _unless_disconnected(request, filled, lambda session: JSONResponse(session.describe(), 201))


async def _filled(
    server: Server, creating: Coroutine[Any, Any, SandboxSession], files: dict[str, bytes]
) -> SandboxSession:
    session = await creating
    try:
        for name, data in files.items():
            await asyncio.to_thread(session.container.files.write, name, data)
    except BaseException:
        await server.sessions.destroy(session.id, "its files could not be written")
        raise
    return session


def _limits(fields: bodies.Fields, server: Server) -> ContainerLimits:
    """A tier's limits, each of which a caller may lower."""
    limits = tier(fields.text("memory", "1g"), host_bytes=server.host.memory_bytes)
    return replace(
        limits,
        # Below these an interpreter could not even start.
        memory_bytes=max(64 << 20, fields.number("memory_bytes", limits.memory_bytes, limits.memory_bytes)),
        disk_bytes=max(1 << 20, fields.number("disk_bytes", limits.disk_bytes, limits.disk_bytes)),
        disk_files=max(64, fields.number("disk_files", limits.disk_files, limits.disk_files)),
        processes=max(8, fields.number("processes", limits.processes, limits.processes)),
        output_bytes=server.settings.max_output_bytes,
    )


async def _list_sessions(request: Request) -> Response:
    return JSONResponse({"sessions": [session.describe() for session in server_of(request).sessions.all()]})


async def _describe_session(request: Request) -> Response:
    return JSONResponse(server_of(request).sessions.get(request.path_params["session"]).describe())


async def _destroy_session(request: Request) -> Response:
    await server_of(request).sessions.destroy(request.path_params["session"])
    return Response(status_code=204)


async def _interrupt(request: Request) -> Response:
    with server_of(request).sessions.using(request.path_params["session"]) as session:
        return JSONResponse({"interrupted": session.interrupt()})


async def _execute_in_session(request: Request) -> Response:
    server = server_of(request)
    fields = bodies.Fields(await bodies.read(request, server.settings.max_body_bytes))
    order = Order(
        code=fields.code(),
        seconds=fields.number("timeout_seconds", execute.DEFAULT_SECONDS, server.settings.max_timeout_seconds),
        echo=fields.flag("echo", default=True),
        requirements=check_requirements(fields.texts("requirements")),
    )
    live = fields.flag("stream", default="text/event-stream" in request.headers.get("accept", ""))
    name = request.path_params["session"]
    if live:
        server.sessions.get(name)  # a wrong id is an answer, not an event
        return events(server.sessions, name, order)
    with server.sessions.using(name) as session:
        running = server.sessions.execute(session, order)
        return await _unless_disconnected(request, running, lambda reply: JSONResponse(reply.report()))


async def _unless_disconnected(
    request: Request, work: Coroutine[Any, Any, T], answer: Callable[[T], Response]
) -> Response:
    """Do the work; if the client goes away meanwhile, stop it instead of running code for nobody."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return Response(status_code=499)
        return answer(task.result())
    finally:
        gone.cancel()
        task.cancel()
