"""The process: a socket, the application on it, one screen that says what is on, and an orderly end."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

import msgspec
import uvicorn

from antwort.config import Config, ConfigError
from antwort.http.app import make_app, open_authenticator, open_services
from antwort.http.protocol import protocol_for
from antwort.http.services import Services
from antwort.http.snippets import snippets
from antwort.models.discovery import find_models
from antwort.models.registry import kind_of
from antwort.telemetry import log
from antwort.tools import FunctionProvider

_BACKLOG = 2048
_OTHER_FILES = 256
_SHOWN = 8


def run(
    config: Config,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    also: Iterable[FunctionProvider] = (),
    *,
    hints: bool = False,
) -> None:
    """Serve until told to stop. `say` is given the screen, once requests are taken, and with `hints` how to try it.

    A program that brings tools of its own calls this with them (`also`) instead of `antwort serve`.
    """
    open_authenticator(config)  # before anybody could connect
    config = _with_room(config)
    with listen(config) as listener:
        runner = asyncio.Runner(loop_factory=_loop)
        with runner:
            runner.run(_serve(config, environment, listener, say, also, hints=hints))


def _with_room(config: Config) -> Config:
    """No more connections than this process may have: whoever is one too many is told so, and nobody else suffers."""
    wanted = config.server.max_connections
    granted = make_room(wanted)
    if granted < wanted:
        log.warning("fewer_connections", max_connections=granted, wanted=wanted, why="the hard limit of open files")
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, max_connections=granted))


def make_room(connections: int) -> int:
    """Let this process open the files for so many connections, and how many it has room for.

    Each may need a second connection, to a model. The soft limit is 1,024 on most hosts, and asking for more is what
    it is soft for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + _OTHER_FILES
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, min(connections, (limit - _OTHER_FILES) // 2))


def listen(config: Config) -> socket.socket:
    """The socket; port 0 takes any that is free."""
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"server: cannot listen on {host}:{port}: {error.strerror or error}") from error


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415 - slow to import, and only a server needs it

    return uvloop.new_event_loop()


async def _serve(
    config: Config,
    environment: Mapping[str, str],
    listener: socket.socket,
    say: Callable[[str], None],
    also: Iterable[FunctionProvider],
    *,
    hints: bool,
) -> None:
    found = await find_models(config.models, environment, own_port=listener.getsockname()[1])
    config = msgspec.structs.replace(config, models=found.models)
    async with open_services(config, environment, also) as services:

        def ready() -> None:
            say(screen(services, listener, found.why))
            if hints:
                url = _url(services, listener)
                say(
                    "\n"
                    + snippets(
                        url,
                        requires_key=services.authenticator.requires_key,
                        has_code_interpreter=services.containers is not None,
                    )
                )

        await _Server(services, ready).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn, which also tells us when it is ready and when it is told to stop."""

    def __init__(self, services: Services, ready: Callable[[], None]) -> None:
        settings = services.config.server
        super().__init__(
            uvicorn.Config(
                make_app(services),
                http=protocol_for(settings),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=settings.shutdown_timeout,
            )
        )
        self._services = services
        self._ready = ready
        self._stopping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._services.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal ends at once; it is not raised again afterwards, because to be told to stop is no error."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
        self.should_exit = True
        del frame


def screen(services: Services, listener: socket.socket, why: str) -> str:
    """What is on, and what is off, in one glance. `why` these models."""
    config = services.config
    tools = [provider.name for provider in services.registry.providers]
    unlocked = "off: no keys, so only this machine gets in"
    auth = f"{services.authenticator.count} keys" if services.authenticator.requires_key else unlocked
    lines = [
        f"antwort    {_url(services, listener)}",
        f"models     {_models(services, why)}",
        f"storage    {config.storage.url.partition('?')[0]}, files in {config.storage.blobs}",
        f"auth       {auth}",
        f"limits     {_limits(config)}",
        f"code       {_code(services)}",
        f"tools      {', '.join(tools) or 'none are run here: functions go back to the client'}",
        "metrics    /metrics; documents: /openapi.json; health: /healthz, /readyz",
    ]
    return "\n".join(lines)


def _url(services: Services, listener: socket.socket) -> str:
    host = services.config.server.host
    address = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{address}:{listener.getsockname()[1]}/v1"


def _models(services: Services, why: str) -> str:
    models = services.config.models
    if not models.named:
        return f"none, and until there is one every request is refused: {why}"
    default = services.models.default
    shown = [
        f"{name} ({kind_of(one)}{', the default' if name == default else ''})" for name, one in models.named.items()
    ]
    if len(shown) > _SHOWN:
        first = next(line for line, name in zip(shown, models.named, strict=True) if name == default)
        shown = [first, f"and {len(shown) - 1} more"]
    unknown = "; unknown names get the default" if models.default_for_unknown else ""
    return f"{', '.join(shown)}{unknown}: {why}"


def _code(services: Services) -> str:
    if services.containers is None:
        return services.sandbox_status
    settings = services.config.containers
    limits = f"{settings.max_containers} of one owner at a time, idle for {settings.expires_after:g} min at most"
    return f"{services.sandbox_status}; containers: {limits}"


def _limits(config: Config) -> str:
    auth, server = config.auth, config.server
    rate = f"{auth.requests_per_minute} requests a minute" if auth.requests_per_minute else "no request rate"
    at_once = f"{auth.concurrent_responses} responses at once" if auth.concurrent_responses else "no limit at once"
    return f"{rate}, {at_once} unless a key says otherwise; bodies {server.max_body:,} B, files {server.max_file:,} B"
