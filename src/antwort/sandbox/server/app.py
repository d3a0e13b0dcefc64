"""ASGI application of the sandbox server: routes, error mapping, lifespan and wiring of its components."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from antwort.net.disconnect import run_until_disconnect
from antwort.net.errors import NetError, QueueFull, SizeLimitExceeded
from antwort.net.fair_semaphore import FairSemaphore
from antwort.sandbox.errors import AlreadyUsed, CannotStart, Ended, NotFound, SandboxServerError, TooLarge, Unavailable
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.limits import ContainerLimits, tier
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.requirements import check_requirements
from antwort.sandbox.pool.pool import Pool
from antwort.sandbox.pool.preload import current_stack
from antwort.sandbox.server import execute, files, transfers
from antwort.sandbox.server.auth import BearerTokenMiddleware, LoopbackOnlyMiddleware
from antwort.sandbox.server.bodies import JsonFields, read_json

from .sessions import SandboxSession, SessionCommandRequest, SessionExecRequest, Sessions
from .settings import SandboxSettings
from .single_use import SingleUse
from .stream import INTERNAL_ERROR, stream_execution

_CLIENT_CLOSED: Final = 499
_BAD_REQUEST: Final = 400
_STATUSES: Final[tuple[tuple[type[SandboxServerError | NetError], int], ...]] = (
    (QueueFull, 429),
    (Unavailable, 503),
    (NotFound, 404),
    (TooLarge, 413),
    (SizeLimitExceeded, 413),
    (Ended, 410),
    (AlreadyUsed, 409),
)
"""The first class that matches decides; all other errors of the two trees are the caller's: 400."""


@dataclass(slots=True)
class Server:
    """Components that request handlers use."""

    settings: SandboxSettings
    pool: Pool
    packages: PackageManager
    sessions: Sessions
    execute_slots: FairSemaphore
    archive_slots: FairSemaphore
    host: hosts.Host
    single_use: SingleUse
    started: float = field(default_factory=time.monotonic)


def make_app(settings: SandboxSettings, host: hosts.Host | None = None) -> Starlette:
    """The ASGI application; `WeakHost` if a protection is missing and not waived."""
    settings.check()
    found = host or hosts.probe()
    found.require(settings.waived)
    if settings.builds and "namespaces" in found.missing:
        message = "SANDBOX_BUILDS needs namespaces: without them the code of a build would have access to the server"
        raise CannotStart(message)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        modules = tuple(filter(None, settings.modules.split(",")))
        ready = await asyncio.to_thread(found.claim_cgroups)
        directory = (settings.state / "packages").absolute()
        packages = await asyncio.to_thread(
            PackageManager,
            directory,
            ready,
            current_stack(modules),
            index=settings.python_index,
            builds=settings.builds,
            limits=settings.allowance,
        )
        pool = Pool(ready, packages=directory, modules=modules, single_use=settings.single_tenant)
        async with contextlib.aclosing(packages), pool:
            sessions = Sessions(pool, packages, settings)
            slots, queue, seconds = settings.max_concurrent, settings.queue, settings.queue_seconds
            execute_slots = FairSemaphore(slots, "concurrent executions", max_queue=queue, wait_timeout=seconds)
            archive_slots = FairSemaphore(transfers.MAX_TRANSFERS, "archive transfers")
            single_use = SingleUse(enabled=settings.single_tenant)
            app.state.server = Server(
                settings, pool, packages, sessions, execute_slots, archive_slots, found, single_use
            )
            sweeper = asyncio.create_task(sessions.sweep())
            try:
                if settings.single_tenant:  # a pod of a warm pool is ready when its only use would not wait for imports
                    with contextlib.suppress(CannotStart):
                        await pool.wait_ready()
                yield
            finally:
                sweeper.cancel()
                await asyncio.gather(sweeper, return_exceptions=True)

    if settings.token:
        auth = Middleware(BearerTokenMiddleware, token=settings.token)
    else:
        auth = Middleware(LoopbackOnlyMiddleware, check_host=settings.uds is None)
    return Starlette(routes=_routes(), lifespan=lifespan, middleware=[auth], exception_handlers=_HANDLERS)


def _routes() -> list[BaseRoute]:
    return [
        Route("/execute", _execute, methods=["POST"]),
        Route("/health", _health),
        Route("/sessions", _create_session, methods=["POST"]),
        Route("/sessions", _list_sessions, methods=["GET"]),
        Route("/sessions/{session}", _describe_session, methods=["GET"]),
        Route("/sessions/{session}", _destroy_session, methods=["DELETE"]),
        Route("/sessions/{session}/execute", _execute_in_session, methods=["POST"]),
        Route("/sessions/{session}/command", _run_command, methods=["POST"]),
        Route("/sessions/{session}/interrupt", _interrupt, methods=["POST"]),
        *files.ROUTES,
    ]


async def _on_error(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUSES if isinstance(error, kind)), _BAD_REQUEST)
    body: dict[str, str] = {"error": str(error)}
    if isinstance(error, Ended):
        body["reason"] = error.reason
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFull) else None
    return JSONResponse(body, status, headers=headers)


async def _client_closed(_: Request, error: Exception) -> Response:
    """The client disconnected. The response is not delivered, and nothing is logged as an error."""
    del error
    return Response(status_code=_CLIENT_CLOSED)


async def _internal_error(_: Request, error: Exception) -> Response:
    """An unexpected exception, which is logged and not disclosed in the response."""
    del error
    return JSONResponse({"error": INTERNAL_ERROR}, 500)


def server_of(request: Request) -> Server:
    """The components of the server that received the request."""
    server: Server = request.app.state.server
    return server


async def _health(request: Request) -> Response:
    server = server_of(request)
    return JSONResponse(
        {
            "status": "ok",
            "mode": server.settings.mode,
            "runtime_version": f"Python {platform.python_version()}",
            "capacity": 1 if server.settings.single_tenant else server.settings.max_concurrent,
            "single_tenant": server.settings.single_tenant,
            "used": server.single_use.used,
            "current_load": server.execute_slots.in_use,
            "uptime_seconds": int(time.monotonic() - server.started),
            "sessions": server.sessions.count,
            "isolation": {name: state for name, state, _ in server.pool.host.lines()},
        }
    )


async def _execute(request: Request) -> Response:
    server = server_of(request)
    # The body is read before a slot is acquired: a slow sender must not occupy one.
    fields = await read_json(request, server.settings.max_body_bytes)
    one_shot = execute.parse(fields, server.settings)
    async with server.execute_slots.slot(one_shot.tenant):
        server.single_use.claim()
        running = execute.run(one_shot, server.pool, server.packages, server.settings)
        return JSONResponse(await run_until_disconnect(request.receive, running))


async def _create_session(request: Request) -> Response:
    server = server_of(request)
    fields = await read_json(request, server.settings.max_body_bytes)
    limits = _container_limits(fields, server)
    initial_files = fields.files()
    for name in initial_files:
        files.split_path(name)
    tenant = fields.tenant()
    expires_after = fields.integer("expires_after_seconds", server.settings.session_seconds, 7 * 86_400)
    requirements = check_requirements(fields.strings("requirements"))
    seconds = fields.integer("timeout_seconds", execute.DEFAULT_SECONDS, server.settings.max_timeout_seconds)
    server.single_use.claim()  # the request is valid; nothing has started for it yet
    creating = server.sessions.create(
        limits, tenant=tenant, expires_after=expires_after, requirements=requirements, seconds=seconds
    )
    session = await run_until_disconnect(request.receive, _create_with_files(server, creating, initial_files))
    return JSONResponse(session.describe(), 201)


async def _create_with_files(
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


def _container_limits(fields: JsonFields, server: Server) -> ContainerLimits:
    """The limits of the memory tier, each of which the request may lower."""
    limits = tier(fields.string("memory", "1g"), host_bytes=server.host.memory_bytes)
    return replace(
        limits,
        # Below these minimums an interpreter does not start.
        memory_bytes=max(64 << 20, fields.integer("memory_bytes", limits.memory_bytes, limits.memory_bytes)),
        disk_bytes=max(1 << 20, fields.integer("disk_bytes", limits.disk_bytes, limits.disk_bytes)),
        disk_files=max(64, fields.integer("disk_files", limits.disk_files, limits.disk_files)),
        processes=max(8, fields.integer("processes", limits.processes, limits.processes)),
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
    fields = await read_json(request, server.settings.max_body_bytes)
    exec_request = SessionExecRequest(
        code=fields.code(),
        seconds=fields.integer("timeout_seconds", execute.DEFAULT_SECONDS, server.settings.max_timeout_seconds),
        echo=fields.boolean("echo", default=True),
        requirements=check_requirements(fields.strings("requirements")),
    )
    return await _run_in_session(request, fields, exec_request)


async def _run_command(request: Request) -> Response:
    server = server_of(request)
    fields = await read_json(request, server.settings.max_body_bytes)
    milliseconds = fields.integer(
        "timeout_ms", execute.DEFAULT_SECONDS * 1000, server.settings.max_timeout_seconds * 1000
    )
    return await _run_in_session(
        request, fields, SessionCommandRequest(command=fields.command(), seconds=milliseconds / 1000)
    )


async def _run_in_session(
    request: Request, fields: JsonFields, exec_request: SessionExecRequest | SessionCommandRequest
) -> Response:
    server = server_of(request)
    is_streamed = fields.boolean("stream", default="text/event-stream" in request.headers.get("accept", ""))
    session_id = request.path_params["session"]
    if is_streamed:
        server.sessions.get(session_id)  # an unknown id is an error status, not an event
        return stream_execution(server.sessions, session_id, exec_request)
    with server.sessions.using(session_id) as session:
        reply = await run_until_disconnect(request.receive, server.sessions.execute(session, exec_request))
        return JSONResponse(reply.report())


_HANDLERS: Mapping[Any, Any] = {
    SandboxServerError: _on_error,
    NetError: _on_error,
    ClientDisconnect: _client_closed,
    500: _internal_error,
}
