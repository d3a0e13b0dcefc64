"""The server process: listening socket, uvicorn, start-up banner, open-file limit and graceful shutdown."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

import msgspec
import uvicorn

from antwort.auth import Authenticator
from antwort.config import Config, ConfigError, api_keys_path
from antwort.http.app import make_app, open_authenticator, open_services
from antwort.http.protocol import connection_limiter, websocket_protocol
from antwort.http.services import Services
from antwort.http.snippets import snippets
from antwort.models.discovery import discover_models
from antwort.models.registry import kind_of
from antwort.storage import display_url
from antwort.telemetry import log
from antwort.tools import FunctionProvider

_BACKLOG = 2048
_OTHER_FILES = 256
_MAX_MODELS_SHOWN = 8


def run(
    config: Config,
    environment: Mapping[str, str],
    echo: Callable[[str], None],
    extra_providers: Iterable[FunctionProvider] = (),
    *,
    hints: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM. Once requests are accepted, `echo` gets the banner, and with `hints` examples.

    A program with tools of its own calls this with `extra_providers` instead of `antwort serve`.
    """
    open_authenticator(config)  # fails before the socket accepts connections
    config = _limit_connections(config)
    with listen(config) as listener, asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(_serve(config, environment, listener, echo, extra_providers, hints=hints))


def _limit_connections(config: Config) -> Config:
    """Lower `max_connections` to what the open-file limit allows, so that excess connections get 503."""
    wanted = config.server.max_connections
    granted = raise_nofile_limit(wanted)
    if granted < wanted:
        log.warning("fewer_connections", max_connections=granted, wanted=wanted, why="the hard limit of open files")
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, max_connections=granted))


def raise_nofile_limit(connections: int) -> int:
    """Raise the soft RLIMIT_NOFILE for this many connections; returns how many the hard limit allows.

    Each may need a second connection, to a model. The soft limit is 1,024 on most hosts; processes may raise it up to
    the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + _OTHER_FILES
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, min(connections, (limit - _OTHER_FILES) // 2))


def listen(config: Config) -> socket.socket:
    """The listening socket; port 0 selects a free port."""
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"server: cannot listen on {host}:{port}: {error.strerror or error}") from error


def _new_event_loop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415 - slow to import, and only the server needs it

    return uvloop.new_event_loop()


async def _serve(
    config: Config,
    environment: Mapping[str, str],
    listener: socket.socket,
    echo: Callable[[str], None],
    extra_providers: Iterable[FunctionProvider],
    *,
    hints: bool,
) -> None:
    found = await discover_models(config.models, environment, own_port=listener.getsockname()[1])
    config = msgspec.structs.replace(config, models=found.models)
    async with open_services(config, environment, extra_providers) as services:

        def on_ready() -> None:
            echo(startup_banner(services, listener, found.reason))
            if hints:
                url, has_keys = _url(services, listener), services.authenticator.requires_key
                has_code_interpreter = services.containers is not None
                echo("\n" + snippets(url, requires_key=has_keys, has_code_interpreter=has_code_interpreter))

        await _Server(services, on_ready).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn with a callback when it accepts requests, and a shutdown that stops the services first."""

    def __init__(self, services: Services, on_ready: Callable[[], None]) -> None:
        settings = services.config.server
        limiter = connection_limiter(settings)
        super().__init__(
            uvicorn.Config(
                make_app(services),
                http=limiter.protocol,
                ws=websocket_protocol(limiter, settings) if settings.websocket.enabled else "none",
                ws_max_size=settings.max_body,
                ws_per_message_deflate=False,  # costs more than it saves, and makes decompression bombs possible
                ws_ping_interval=settings.keep_alive,
                ws_ping_timeout=settings.stall_timeout,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=settings.shutdown_timeout,
            )
        )
        self._services = services
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._services.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second SIGINT exits at once. Unlike uvicorn, do not raise the signal again: stopping is no error."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
        self.should_exit = True
        del frame


def startup_banner(services: Services, listener: socket.socket, models_source: str) -> str:
    """One line per feature: URL, models and where they come from, storage, authentication, limits, tools, endpoints."""
    config = services.config
    tools = [provider.name for provider in services.registry.providers]
    lines = [
        f"antwort    {_url(services, listener)}",
        f"models     {_describe_models(services, models_source)}",
        f"storage    {display_url(config.storage.url)}, files in {config.storage.blobs}",
        *_describe_replica(services),
        f"auth       {describe_keys(services.authenticator, config)}",
        f"limits     {_describe_limits(config)}",
        f"code       {_describe_code_interpreter(services)}",
        f"web        {services.web_search_status}",
        f"mcp        {services.mcp_status}",
        f"tools      {', '.join(tools)}",
        "metrics    /metrics; OpenAPI: /openapi.json; health: /healthz, /readyz",
    ]
    return "\n".join(lines)


def _describe_replica(services: Services) -> list[str]:
    membership = services.membership
    if membership is None:
        return []
    url = services.config.server.replica_url
    reached = f"; reached at {url}" if url else ""
    return [f"replica    {membership.own_id}, {membership.live} live on this storage{reached}"]


def describe_keys(authenticator: Authenticator, config: Config) -> str:
    """The API keys and their file, for the operator."""
    path = api_keys_path(config)
    if not authenticator.requires_key:
        return f"off: no API keys in {path}, so only loopback clients are accepted; `antwort keys create` turns it on"
    return f"{authenticator.count} {'key' if authenticator.count == 1 else 'keys'} in {path}; every request needs one"


def _url(services: Services, listener: socket.socket) -> str:
    host = services.config.server.host
    address = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{address}:{listener.getsockname()[1]}/v1"


def _describe_models(services: Services, source: str) -> str:
    models = services.config.models
    if not models.named:
        return f"none, so every request is rejected: {source}"
    default = services.models.default
    marks = {services.models.default: ", the default"}
    shown = [f"{name} ({kind_of(model)}{marks.get(name, '')})" for name, model in models.named.items()]
    if len(shown) > _MAX_MODELS_SHOWN:
        first = next(line for line, name in zip(shown, models.named, strict=True) if name == default)
        shown = [first, f"and {len(shown) - 1} more"]
    aliases = f"; {_describe_aliases(models.aliases)}" if models.aliases else ""
    unknown = "; unknown names get the default" if services.models.default_for_unknown else ""
    return f"{', '.join(shown)}{aliases}{unknown}: {source}"


def _describe_aliases(aliases: Mapping[str, str]) -> str:
    shown = [f"{alias} = {model}" for alias, model in aliases.items()]
    more = [f"and {len(shown) - _MAX_MODELS_SHOWN} more"] if len(shown) > _MAX_MODELS_SHOWN else []
    return f"aliases: {', '.join([*shown[:_MAX_MODELS_SHOWN], *more])}"


def _describe_code_interpreter(services: Services) -> str:
    if services.containers is None:
        return services.sandbox_status
    settings = services.config.containers
    limits = f"at most {settings.max_containers} per owner, expire after {settings.expires_after:g} min idle"
    return f"{services.sandbox_status}; containers: {limits}"


def _describe_limits(config: Config) -> str:
    auth, server = config.auth, config.server
    rate = f"{auth.requests_per_minute} requests per minute" if auth.requests_per_minute else "no rate limit"
    running = (
        f"{auth.concurrent_responses} concurrent responses" if auth.concurrent_responses else "no concurrency limit"
    )
    return f"{rate}, {running} by default; bodies {server.max_body:,} B, files {server.max_file:,} B"
