"""Composition root: builds the services from `Config` and the Starlette application from the services."""

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
from antwort.config import AuthSettings, Config, ConfigError, api_keys_path, compaction_keys_path
from antwort.containers import Containers
from antwort.containers.sandboxes import Backend, open_backend
from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.stores import Store, StoreFault
from antwort.http.errors import router_error
from antwort.http.middleware import RequestMiddleware
from antwort.http.openapi import ApiRoute, openapi_route
from antwort.http.resources import containers, conversations, files, health, models, responses
from antwort.http.services import Services
from antwort.models.registry import open_models
from antwort.net.origin import is_loopback
from antwort.sealing import Sealer, SealingKeys, SealingKeysError
from antwort.storage import open_store
from antwort.telemetry import Metrics, log
from antwort.tools import FunctionProvider, ToolRegistry
from antwort.tools.builtins.codeinterpreter import CodeInterpreterProvider

ROUTES: Sequence[ApiRoute] = [
    route for resource in (responses, conversations, containers, files, models, health) for route in resource.routes
]
_KEY_RELOAD_SECONDS = 2.0
_FILE_SWEEP_SECONDS = 600.0


def make_app(services: Services) -> Starlette:
    """The Starlette application for open services."""
    provided = [route for provider in services.registry.providers for route in provider.routes()]
    app = Starlette(
        routes=[*ROUTES, openapi_route(ROUTES), *provided],
        middleware=[Middleware(RequestMiddleware, services=services, cors_origins=services.config.server.cors_origins)],
        exception_handlers={HTTPException: router_error},
    )
    app.router.redirect_slashes = False
    app.state.services = services
    return app


@asynccontextmanager
async def open_services(
    config: Config, environment: Mapping[str, str] = os.environ, extra_providers: Iterable[FunctionProvider] = ()
) -> AsyncGenerator[Services]:
    """Open the services of a configuration, resume unfinished responses of an earlier process, and close everything.

    `extra_providers` are tool providers beside those of the configuration.
    """
    # In threads: these read files, and the event loop may run other work.
    authenticator = await asyncio.to_thread(open_authenticator, config)
    sealer = Sealer(await asyncio.to_thread(SealingKeys.open_or_create, compaction_keys_path(config)))
    metrics = Metrics()
    directory = await asyncio.to_thread(open_models, config.models, metrics, environment)
    store = await open_store(config.storage.url, Path(config.storage.blobs))
    try:
        # A local sandbox server keeps its packages beside the blobs.
        state = Path(config.storage.blobs).parent / "sandbox"
        backend = await open_backend(config.providers.code_interpreter, state, environment)
    except BaseException:
        await directory.aclose()
        await store.aclose()
        raise
    running = _containers(config, store, backend, metrics)
    registry = ToolRegistry()
    limits = config.engine
    engine = Engine(
        directory,
        registry,
        store,
        sealer,
        config.compaction,
        limits.max_turns,
        limits.max_attached,
        ignore_unavailable_tools=config.tools.unavailable == "ignore",
    )
    services = Services(
        config,
        authenticator,
        store,
        directory,
        registry,
        engine,
        Background(store),
        metrics,
        running,
        backend.description,
    )
    tasks = [asyncio.create_task(task) for task in _periodic_tasks(services)]
    try:
        for provider in (*_providers(config, store, running), *extra_providers):
            registry.register(provider)
        registry.register_metrics(metrics.registry)
        if running is not None:
            await running.recover()
        for run in await engine.recover():
            _resume(services, run)
        yield services
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await services.aclose()


def _resume(services: Services, run: ResponseRun) -> None:
    """Run a recovered response in the background, tracked, and within the limits of its API key, if that is valid."""
    cleanup = ExitStack()
    if (caller := services.authenticator.caller_for_key(run.owner.key_id)) is not None:
        cleanup.callback(services.rate_limiter.resume(caller))
    cleanup.enter_context(services.track(run))
    services.background.launch(run, on_end=cleanup.close)


def _containers(config: Config, store: Store, backend: Backend, metrics: Metrics) -> Containers | None:
    if backend.sandboxes is None:
        return None
    return Containers(store, backend.sandboxes, config.containers, config.providers.code_interpreter, metrics)


def _providers(config: Config, store: Store, running: Containers | None) -> Iterator[FunctionProvider]:
    """The hosted tools of the configuration."""
    if running is not None:
        yield CodeInterpreterProvider(running, store, config.providers.code_interpreter, config.containers.tiers)


def open_authenticator(config: Config) -> Authenticator:
    """The authenticator. Without a key file the server must listen on a loopback address.

    A key file that exists is used: one that is not readable, or has no valid key, never means "no authentication".
    """
    auth, file = config.auth, KeyFile(api_keys_path(config))
    if auth.keys_file is not None or file.exists():
        authenticator = Authenticator(file.read(), defaults=_default_limits(auth))
        if authenticator.count == 0:
            raise KeyFileError(f"{file.path} has no valid key. Create one with `antwort keys create`.")
        return authenticator
    if not is_loopback(config.server.host.strip("[]")):
        raise ConfigError(
            f"server.host: {config.server.host} is not a loopback address, and there are no keys in {file.path}. "
            "Create one with `antwort keys create`, or listen on 127.0.0.1."
        )
    if "*" in config.server.cors_origins:
        raise ConfigError(
            "server.cors_origins: `*` would let every web page use this server, because it has no keys. List the "
            "origins, or create a key with `antwort keys create`."
        )
    return Authenticator(None, defaults=_default_limits(auth))


def _default_limits(auth: AuthSettings) -> Caller:
    return Caller(LOCAL.tenant, LOCAL.key_id, auth.requests_per_minute, auth.concurrent_responses)


def _periodic_tasks(services: Services) -> Iterator[Coroutine[Any, Any, None]]:
    """Background tasks of the server."""
    yield _reload_keys_and_sweep_files(services)
    if services.containers is not None:
        yield _expire_containers(services.containers)


async def _reload_keys_and_sweep_files(services: Services) -> None:
    """Reload the key files, so that revoked and rotated keys take effect, and delete expired files."""
    key_file, sealing_keys_file = KeyFile(api_keys_path(services.config)), compaction_keys_path(services.config)
    loop = asyncio.get_running_loop()
    last_sweep = loop.time()
    while True:
        await asyncio.sleep(_KEY_RELOAD_SECONDS)
        await _reload_keys(services.authenticator, key_file)
        await _reload_sealing_keys(services.engine.sealer, sealing_keys_file)
        if loop.time() - last_sweep > _FILE_SWEEP_SECONDS:
            last_sweep = loop.time()
            try:
                await services.store.delete_expired_files()
            except StoreFault:
                log.warning("file_sweep_failed")


async def _expire_containers(running: Containers) -> None:
    """Expire idle containers."""
    while True:
        await asyncio.sleep(running.sweep_interval)
        try:
            await running.expire_idle()
        except StoreFault:
            log.warning("container_sweep_failed")
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, no container would expire
            log.exception("container_sweep_failed")


async def _reload_keys(authenticator: Authenticator, file: KeyFile) -> None:
    """Take over changes of the key file. A file that appears turns authentication on; nothing turns it off."""
    had_keys = authenticator.requires_key
    try:
        if not had_keys and not await asyncio.to_thread(file.exists):
            return
        keys = await asyncio.to_thread(file.read)
    except KeyFileError:
        reason = "the previous keys stay valid" if had_keys else "every request is refused until it can be read"
        log.error("key_reload_failed", path=file.path.name, reason=reason)
        if not had_keys:
            authenticator.replace([])
        return
    if not had_keys:
        log.warning("authentication_enabled", path=file.path.name, reason="the key file was created")
    authenticator.replace(keys)


async def _reload_sealing_keys(sealer: Sealer, path: Path) -> None:
    try:
        sealer.replace(await asyncio.to_thread(SealingKeys.read, path))
    except SealingKeysError:
        log.error("sealing_key_reload_failed", path=path.name, reason="the previous keys stay valid")
