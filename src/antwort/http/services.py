"""What a request needs: the engine, the store, the models, the limits. Handlers ask for it here and nowhere else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from starlette.requests import Request

from antwort.api.projection import ResponseView
from antwort.auth import Authenticator, Caller, RateLimiter
from antwort.config import Config
from antwort.containers import Containers
from antwort.engine.background import Background
from antwort.engine.engine import Engine, Work
from antwort.engine.ports import Owner, Store, StoreFault
from antwort.models.registry import Directory
from antwort.telemetry import Metrics
from antwort.tools import Registry


@dataclass
class Trial:
    """Whether the store can be written to. Everybody may ask, so it is tried now and then, for all who asked since."""

    every: float = 2.0
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _again_at: float = 0.0
    _fault: StoreFault | None = None

    async def of(self, write: Callable[[], Awaitable[None]]) -> None:
        """`StoreFault` where it cannot."""
        async with self._one_at_a_time:
            if time.monotonic() >= self._again_at:
                try:
                    await write()
                    self._fault = None
                except StoreFault as fault:
                    self._fault = fault
                self._again_at = time.monotonic() + self.every
            if self._fault is not None:
                raise StoreFault(str(self._fault)) from self._fault


@dataclass
class Services:
    """All that is open while the server runs."""

    config: Config
    door: Authenticator
    store: Store
    models: Directory
    registry: Registry
    engine: Engine
    background: Background
    metrics: Metrics
    containers: Containers | None = None
    """None where no code is run here."""
    place: str = "off"
    """Where it is, or why it is not."""
    limits: RateLimiter = field(default_factory=RateLimiter)
    attended: dict[str, Work] = field(default_factory=dict[str, Work])
    """The responses that somebody waits for."""
    trial: Trial = field(default_factory=Trial)
    stopping: bool = False

    def view(self, include: Iterable[str] = (), *, obfuscation: bool = False) -> ResponseView:
        """What a caller who asks for this is shown: that, and what the configuration shows to everybody."""
        always = ["code_interpreter_call.outputs"] if self.config.providers.code_interpreter.outputs == "always" else []
        return ResponseView(frozenset([*include, *always]), obfuscation)

    async def stop(self) -> None:
        """The server is told to stop: nothing new, and whoever only watches is let go."""
        self.stopping = True
        await self.background.stop_following()
        for work in self.attended.values():
            work.server_stopping = True  # if it does not finish in time, the next start ends it

    async def aclose(self) -> None:
        """Let go of everything. Background responses go on after the next start."""
        await self.background.aclose()
        await self.engine.late.aclose()
        await self.registry.aclose()
        if self.containers is not None:
            await self.containers.aclose()
        await self.models.aclose()
        await self.store.aclose()


def track_metrics(services: Services, work: Work, release: Callable[[], None]) -> Callable[[], None]:
    """Count a response as running. The returned callback ends that: it calls `release` and counts the final status."""
    services.metrics.running.inc()
    name = work.response.model if work.response.model in services.models.names() else "other"

    def ended() -> None:
        release()
        services.attended.pop(work.response.id, None)
        services.metrics.running.dec()
        services.metrics.responses.labels(name, work.response.status).inc()

    return ended


def services_of(request: Request) -> Services:
    """What is open, for the handler of a request."""
    services: Services = request.app.state.services
    return services


def caller_of(request: Request) -> Caller:
    """Who asks. The gate has seen to it that somebody does."""
    caller: Caller = request.scope["antwort.caller"]
    return caller


def owner_of(request: Request) -> Owner:
    """Whose objects these are."""
    caller = caller_of(request)
    return Owner(caller.tenant, caller.key_id)
