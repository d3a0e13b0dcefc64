"""Composition root: builds the services from `Config` and the Starlette application from the services."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from antwort.auth import LOCAL, Authenticator, Caller, KeyFile, KeyFileError, ProcessRateLimiter
from antwort.config import (
    AuthSettings,
    Config,
    ConfigError,
    FetchSettings,
    api_keys_path,
    compaction_keys_path,
    state_directory,
)
from antwort.containers import Containers
from antwort.containers.replicas.calls import CallTokens
from antwort.containers.replicas.client import ReplicaClient
from antwort.containers.sandboxes import Backend, open_backend
from antwort.containers.skills.library import SkillLibrary
from antwort.engine.attachments.input_urls import InputUrls
from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.replicas.membership import Membership, OnlyReplica
from antwort.engine.replicas.port import ReplicaDirectory, ReplicaRecord
from antwort.engine.replicas.rate_limits import StoreRateLimiter
from antwort.engine.replicas.takeover import Takeover
from antwort.engine.stores import SkillQuota, Store, StoreFault
from antwort.http.errors import router_error
from antwort.http.middleware import RequestMiddleware
from antwort.http.openapi import ApiRoute, openapi_route
from antwort.http.resources import (
    containers,
    conversations,
    files,
    health,
    models,
    replica_calls,
    skills,
)
from antwort.http.services import Services
from antwort.http.wires import responses
from antwort.http.wires.chat_completions import handlers as chat_completions
from antwort.http.wires.messages import handlers as messages
from antwort.http.wires.websocket import handshake
from antwort.http.wires.websocket.registry import OpenWebSockets
from antwort.models.registry import ModelRegistry, open_models
from antwort.net.fetch import AddressPolicy, Fetcher, FetchLimits
from antwort.net.origin import is_loopback
from antwort.sealing import Sealer, SealingKeys, SealingKeysError
from antwort.storage import open_store
from antwort.telemetry import Metrics, log
from antwort.tools import FunctionProvider, ToolRegistry
from antwort.tools.builtins.codeinterpreter import CodeInterpreterProvider
from antwort.tools.builtins.container import ResponseContainers
from antwort.tools.builtins.shell import ShellProvider
from antwort.tools.builtins.websearch import OpenedWebSearch, WebSearchProvider, open_web_search
from antwort.tools.client_run import ClientRunProvider, LocalShellProvider
from antwort.tools.mcp import McpProvider, open_mcp

ROUTES: Sequence[ApiRoute] = [
    route
    for resource in (responses, chat_completions, messages, conversations, containers, skills, files, models, health)
    for route in resource.routes
]
_KEY_RELOAD_SECONDS = 2.0


def make_app(services: Services) -> Starlette:
    """The Starlette application for open services."""
    provided = [route for provider in services.registry.providers for route in provider.routes()]
    internal = [] if services.call_tokens is None else [replica_calls.route]
    app = Starlette(
        routes=[
            *ROUTES,
            handshake.route,
            openapi_route(ROUTES),
            *chat_completions.undocumented_routes,
            *provided,
            *internal,
        ],
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
    mcp = open_mcp(config, environment, sealer, lambda: authenticator.requires_key)
    model_registry, store, membership, backend, web_search = await _open_resources(config, environment, sealer, metrics)
    tokens = None if membership is None else CallTokens(sealer, membership.own_id)
    running = _containers(config, store, backend, metrics, membership, tokens)
    registry = ToolRegistry()
    engine = _engine(config, model_registry, registry, store, sealer, membership)
    services = Services(
        config,
        authenticator,
        store,
        model_registry,
        registry,
        engine,
        Background(store),
        metrics,
        running,
        None if running is None else _skills(config, store),
        backend.description,
        web_search.description,
        mcp.description,
        ProcessRateLimiter() if store.replicas is None else StoreRateLimiter(store.replicas, store.replica_id),
        membership,
        websockets=OpenWebSockets(config.server.websocket.max_per_tenant),
        call_tokens=tokens if config.server.replica_url is not None else None,
    )
    takeover = Takeover(
        engine,
        services.background,
        lambda run: _resume(services, run),
        lambda outcome: metrics.takeovers.labels(outcome).inc(),
    )
    tasks = [asyncio.create_task(task) for task in _periodic_tasks(services)]
    try:
        for provider in (*_providers(config, store, running, web_search.provider, mcp.provider), *extra_providers):
            registry.register(provider)
        registry.register_metrics(metrics.registry)
        metrics.websockets.set_function(lambda: services.websockets.count)
        tasks += await _recover(takeover, running, membership)
        log.info("started", replica=services.directory.own_id)
        yield services
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await services.aclose()


def _engine(
    config: Config,
    models: ModelRegistry,
    registry: ToolRegistry,
    store: Store,
    sealer: Sealer,
    membership: Membership | None,
) -> Engine:
    limits = config.engine
    return Engine(
        models,
        registry,
        store,
        sealer,
        config.compaction,
        limits.max_turns,
        limits.max_attached,
        ignore_unavailable_tools=config.tools.unavailable == "ignore",
        input_urls=InputUrls(open_fetcher(config.fetch), max_bytes=limits.max_attached)
        if config.fetch.input_urls
        else None,
        check_lease=(lambda: None) if membership is None else membership.check_lease,
    )


async def _recover(
    takeover: Takeover, running: Containers | None, membership: Membership | None
) -> list[asyncio.Task[None]]:
    """Resume what an earlier process has left: all of it now, or, with other replicas, that of each one that dies."""
    if membership is None:
        if running is not None:
            await running.recover()
        await takeover.recover()
        return []
    membership.on_death(takeover.notify)
    if running is not None:
        membership.on_death(running.note_ended)
    return [asyncio.create_task(takeover.run())]


class _Resources(NamedTuple):
    """What has connections, files or processes of its own. `Services.aclose` closes it."""

    models: ModelRegistry
    store: Store
    membership: Membership | None
    backend: Backend
    web_search: OpenedWebSearch


async def _open_resources(
    config: Config, environment: Mapping[str, str], sealer: Sealer, metrics: Metrics
) -> _Resources:
    """Open the models, the store, the sandboxes and the web search; what is open is closed if one cannot be opened."""
    async with AsyncExitStack() as opened:
        models = await asyncio.to_thread(open_models, config.models, metrics, environment)
        opened.push_async_callback(models.aclose)
        storage = config.storage
        store = await open_store(
            storage.url,
            storage.blobs,
            object_store=storage.object_store,
            orphan_age=storage.orphan_age,
            environment=environment,
        )
        opened.push_async_callback(store.aclose)
        membership = _membership(config, store, sealer, metrics)
        if membership is not None:
            opened.push_async_callback(membership.aclose)
            await membership.start()
        state = state_directory(config) / "sandbox"  # where a local sandbox server keeps its packages
        replica = None if membership is None else membership.own_id
        backend = await open_backend(config.providers.code_interpreter, state, environment, replica)
        if backend.sandboxes is not None:
            opened.push_async_callback(backend.sandboxes.aclose)
        state = state.with_name("web_search")
        web_search = await open_web_search(config, backend.sandboxes, environment, state, open_fetcher(config.fetch))
        opened.pop_all()
    return _Resources(models, store, membership, backend, web_search)


def _membership(config: Config, store: Store, sealer: Sealer, metrics: Metrics) -> Membership | None:
    """The membership of this process, in a store that several processes may have open."""
    replicas = store.replicas
    if replicas is None:
        return None

    def describe() -> ReplicaRecord:
        return ReplicaRecord(
            id=store.replica_id,
            url=config.server.replica_url,
            sealing_keys=sealer.key_ids,
            blobs=replicas.blob_location,
        )

    return Membership(replicas, describe, metrics)


async def _resume(services: Services, run: ResponseRun) -> None:
    """Run a recovered response in the background, tracked, and within the limits of its API key, if that is valid."""
    cleanup = ExitStack()
    if (caller := services.authenticator.caller_for_key(run.owner.key_id)) is not None:
        with suppress(StoreFault):  # then it is not counted, which is better than not to run
            cleanup.callback(await services.rate_limiter.resume(caller))
    cleanup.enter_context(services.track(run))
    services.background.launch(run, on_end=cleanup.close)


def open_fetcher(settings: FetchSettings) -> Fetcher:
    """The fetcher of URLs that users and models choose."""
    limits = FetchLimits(
        timeout=settings.timeout,
        max_bytes=settings.max_bytes,
        max_redirects=settings.max_redirects,
        ports=frozenset(settings.ports),
    )
    return Fetcher(AddressPolicy(settings.allow_networks), limits)


def _containers(
    config: Config,
    store: Store,
    backend: Backend,
    metrics: Metrics,
    membership: Membership | None,
    tokens: CallTokens | None,
) -> Containers | None:
    if backend.sandboxes is None:
        return None
    replicas: ReplicaDirectory = OnlyReplica(store.replica_id) if membership is None else membership
    client = None if tokens is None else ReplicaClient(replicas, tokens)
    interpreter = config.providers.code_interpreter
    clock = time.time if store.replicas is None else store.replicas.now  # replicas compare the times of each other
    return Containers(store, backend.sandboxes, config.containers, interpreter, metrics, replicas, client, clock=clock)


def _skills(config: Config, store: Store) -> SkillLibrary:
    settings = config.skills
    return SkillLibrary(store, SkillQuota(settings.max_skills, settings.max_versions, settings.max_bytes))


def _providers(
    config: Config,
    store: Store,
    running: Containers | None,
    web_search: WebSearchProvider | None,
    mcp: McpProvider | None,
) -> Iterator[FunctionProvider]:
    """The hosted tools of the configuration."""
    if running is not None:
        shared = ResponseContainers(running, store, config.containers.tiers, _skills(config, store))
        settings = config.providers.code_interpreter
        yield CodeInterpreterProvider(shared, settings)
        yield ShellProvider(shared, settings)
    if web_search is not None:
        yield web_search
    if mcp is not None:
        yield mcp
    yield ClientRunProvider()
    if running is None:
        yield LocalShellProvider()


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
    yield _reload_keys(services)
    yield _sweep_files(services)
    if services.containers is not None:
        yield _touch_containers(services.containers)
        yield _expire_containers(services, services.containers)


async def _reload_keys(services: Services) -> None:
    """Reload the key files, so that revoked and rotated keys take effect."""
    key_file, sealing_keys_file = KeyFile(api_keys_path(services.config)), compaction_keys_path(services.config)
    while True:
        await asyncio.sleep(_KEY_RELOAD_SECONDS)
        await _reload_api_keys(services.authenticator, key_file)
        await _reload_sealing_keys(services.engine.sealer, sealing_keys_file)


async def _sweep_files(services: Services) -> None:
    """Delete expired files, and what ended processes have left; at once, and then periodically, on one replica."""
    interval = services.config.storage.sweep_interval
    while True:
        try:
            if await services.claim_job("sweep_files", interval):
                await _sweep(services.store)
        except StoreFault as fault:
            log.warning("file_sweep_failed", reason=str(fault))
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, no file would be deleted
            log.exception("file_sweep_failed")
        await asyncio.sleep(interval)


async def _sweep(store: Store) -> None:
    """Delete expired files, and the contents and slots that ended processes have left."""
    deleted = await store.delete_expired_files()
    orphans = await store.delete_orphans()
    if store.replicas is not None:
        await store.replicas.free_slots_of_removed()
    log.info("files_swept", deleted=deleted, orphans=orphans)


async def _touch_containers(running: Containers) -> None:
    """Postpone the expiry of containers that are in use here. A task of its own: a sweep may wait for a cluster."""
    while True:
        await asyncio.sleep(running.sweep_interval)
        try:
            await running.touch_used()
        except StoreFault:
            log.warning("container_touch_failed")
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, containers would expire during a call
            log.exception("container_touch_failed")


async def _expire_containers(services: Services, running: Containers) -> None:
    """Expire idle containers, and release what others have deleted or left."""
    while True:
        await asyncio.sleep(running.sweep_interval)
        try:
            await running.reconcile()
            if await services.claim_job("expire_containers", running.sweep_interval):
                await running.expire_idle()
        except StoreFault:
            log.warning("container_sweep_failed")
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, no container would expire
            log.exception("container_sweep_failed")


async def _reload_api_keys(authenticator: Authenticator, file: KeyFile) -> None:
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
