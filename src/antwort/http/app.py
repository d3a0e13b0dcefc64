"""Wires everybody: from a configuration to what is open, and from that to an application. The one that knows all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from antwort.auth import LOCAL, Authenticator, Caller, KeyFile, KeyFileError
from antwort.config import AuthSettings, Config, ConfigError
from antwort.containers import Containers
from antwort.containers.sandboxes import Backend, open_backend
from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.stores import Store, StoreFault
from antwort.http import openapi
from antwort.http.errors import router_error
from antwort.http.middleware import RequestMiddleware
from antwort.http.resources import containers, conversations, files, health, models, responses
from antwort.http.services import Services
from antwort.models.registry import open_models
from antwort.net.origin import is_loopback
from antwort.storage import open_store
from antwort.telemetry import Metrics, log
from antwort.tools import FunctionProvider, ToolRegistry
from antwort.tools.builtins.codeinterpreter import CodeInterpreter

RESOURCES: Sequence[Any] = (responses, conversations, containers, files, models, health, openapi)
_LOOK_AT_KEYS = 2.0
_SWEEP = 600.0


def make_app(services: Services) -> Starlette:
    """The application over what is open."""
    provided = [route for provider in services.registry.providers for route in provider.routes()]
    app = Starlette(
        routes=[*(route for resource in RESOURCES for route in resource.routes), *provided],
        middleware=[Middleware(RequestMiddleware, services=services)],
        exception_handlers={HTTPException: router_error},
    )
    app.router.redirect_slashes = False
    app.state.services = services
    return app


@asynccontextmanager
async def open_services(
    config: Config, environment: Mapping[str, str] = os.environ, also: Iterable[FunctionProvider] = ()
) -> AsyncGenerator[Services]:
    """Open everything that the configuration names, do again what a process that is gone has left, and close it all.

    `also` are tools of the caller's own, to be run beside those that the configuration switches on.
    """
    door = await asyncio.to_thread(
        open_authenticator, config
    )  # this and the next read files, and the loop may be another's, too
    metrics = Metrics()
    directory = await asyncio.to_thread(open_models, config.models, metrics, environment)
    store = await open_store(config.storage.url, Path(config.storage.blobs))
    try:
        # A sandbox server of our own keeps its packages beside the store's files.
        state = Path(config.storage.blobs).parent / "sandbox"
        place = await open_backend(config.providers.code_interpreter, state, environment)
    except BaseException:
        await directory.aclose()
        await store.aclose()
        raise
    running = _containers(config, store, place, metrics)
    registry = ToolRegistry()
    engine = Engine(directory, registry, store, config.engine.max_turns, config.engine.max_attached)
    services = Services(
        config, door, store, directory, registry, engine, Background(store), metrics, running, place.description
    )
    chores = [asyncio.create_task(chore) for chore in _chores(services)]
    try:
        for provider in (*_providers(config, store, running), *also):
            registry.register(provider)
        registry.register_metrics(metrics.registry)
        if running is not None:
            await running.recover()
        for run in await engine.recover():
            _resume(services, run)
        yield services
    finally:
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        await services.aclose()


def _resume(services: Services, run: ResponseRun) -> None:
    """Run a recovered response in the background, tracked, and within the limits of its API key, if that is valid."""
    cleanup = ExitStack()
    if (caller := services.door.caller_for_key(run.owner.key_id)) is not None:
        cleanup.callback(services.limits.resume(caller))
    cleanup.enter_context(services.track(run))
    services.background.launch(run, on_end=cleanup.close)


def _containers(config: Config, store: Store, place: Backend, metrics: Metrics) -> Containers | None:
    if place.sandboxes is None:
        return None
    return Containers(store, place.sandboxes, config.containers, config.providers.code_interpreter, metrics)


def _providers(config: Config, store: Store, running: Containers | None) -> Iterator[FunctionProvider]:
    """The tools that are run here."""
    if running is not None:
        yield CodeInterpreter(running, store, config.providers.code_interpreter, config.containers.tiers)


def open_authenticator(config: Config) -> Authenticator:
    """Who may come in. Without keys nobody does but this machine, so the address has to be one of its own."""
    auth = config.auth
    if auth.keys_file is not None:
        return Authenticator(KeyFile(Path(auth.keys_file)).read(), defaults=_limits(auth))
    if not is_loopback(config.server.host.strip("[]")):
        raise ConfigError(
            f"server.host: {config.server.host} can be reached by others, and there are no keys. Make one with "
            "`antwort keys create` and name the file in auth.keys_file, or listen on 127.0.0.1."
        )
    return Authenticator(None, defaults=_limits(auth))


def _limits(auth: AuthSettings) -> Caller:
    return Caller(LOCAL.tenant, LOCAL.key_id, auth.requests_per_minute, auth.concurrent_responses)


def _chores(services: Services) -> Iterator[Coroutine[Any, Any, None]]:
    """What has to be done now and then."""
    yield _look_after_keys_and_files(services)
    if services.containers is not None:
        yield _look_after_containers(services.containers)


async def _look_after_keys_and_files(services: Services) -> None:
    """See which keys are revoked, let go of expired files."""
    keys_file = services.config.auth.keys_file
    loop = asyncio.get_running_loop()
    swept = loop.time()
    while True:
        await asyncio.sleep(_LOOK_AT_KEYS)
        if keys_file is not None:
            await _look_at_keys(services.door, Path(keys_file))
        if loop.time() - swept > _SWEEP:
            swept = loop.time()
            try:
                await services.store.sweep_files()
            except StoreFault:
                log.warning("expired files are swept later")


async def _look_after_containers(running: Containers) -> None:
    """Let go of those that have expired."""
    while True:
        await asyncio.sleep(running.sweep_interval)
        try:
            await running.expire_idle()
        except StoreFault:
            log.warning("expired containers are swept later")
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, no container would ever expire
            log.exception("containers could not be swept")


async def _look_at_keys(door: Authenticator, path: Path) -> None:
    try:
        door.replace(await asyncio.to_thread(KeyFile(path).read))
    except KeyFileError:
        log.error("the keys cannot be read; those from before stay", path=path.name)
