"""Services: the open engine, store, models and rate limiter that request handlers use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from antwort.api.projection import ResponseView
from antwort.auth import Authenticator, Caller, ProcessRateLimiter, RateLimiter
from antwort.config import Config
from antwort.containers import Containers
from antwort.containers.replicas.calls import CallTokens
from antwort.containers.skills.library import SkillLibrary
from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.replicas.membership import Membership, OnlyReplica
from antwort.engine.replicas.port import ReplicaDirectory
from antwort.engine.stores import Owner, Store, StoreFault
from antwort.http.wires.websocket.registry import OpenWebSockets
from antwort.models.registry import ModelRegistry
from antwort.telemetry import Metrics
from antwort.tools import ToolRegistry


@dataclass
class WriteProbe:
    """Readiness check: a test write to the store, cached for `interval` seconds because any caller may request it."""

    interval: float = 2.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next_write_at: float = 0.0
    _last_fault: StoreFault | None = None

    async def check(self, write: Callable[[], Awaitable[None]]) -> None:
        """Raise `StoreFault` if the last test write failed. The lock lets concurrent callers share one write."""
        async with self._lock:
            if time.monotonic() >= self._next_write_at:
                try:
                    await write()
                    self._last_fault = None
                except StoreFault as fault:
                    self._last_fault = fault
                self._next_write_at = time.monotonic() + self.interval
            if self._last_fault is not None:
                raise StoreFault(str(self._last_fault)) from self._last_fault


@dataclass
class Services:
    """The open services of a running server."""

    config: Config
    authenticator: Authenticator
    store: Store
    models: ModelRegistry
    registry: ToolRegistry
    engine: Engine
    background: Background
    metrics: Metrics
    containers: Containers | None = None
    """None if the code interpreter is off."""
    skills: SkillLibrary | None = None
    """None if there are no containers."""
    sandbox_status: str = "off"
    """Where the code interpreter runs, or why it is off."""
    web_search_status: str = "off"
    """Which search engine the web search uses, or why it is off."""
    mcp_status: str = "off"
    """Which MCP servers can be used, or why the tool is off."""
    rate_limiter: RateLimiter = field(default_factory=ProcessRateLimiter)
    membership: Membership | None = None
    """None for a store that only this process has open."""
    active_responses: dict[str, ResponseRun] = field(default_factory=dict[str, ResponseRun])
    """Responses that a client waits for (not background), by id."""
    websockets: OpenWebSockets = field(default_factory=OpenWebSockets)
    write_probe: WriteProbe = field(default_factory=WriteProbe)
    call_tokens: CallTokens | None = None
    """Verifies the calls of other replicas; None if none of them can call this one."""
    stopping: bool = False

    @property
    def directory(self) -> ReplicaDirectory:
        """The replicas of the store, as this process knows them."""
        return self.membership or OnlyReplica(self.store.replica_id)

    def view(self, include: Iterable[str] = (), *, obfuscation: bool = False) -> ResponseView:
        """The view for a request: its `include`, and the outputs that the configuration always includes."""
        always = ["code_interpreter_call.outputs"] if self.config.providers.code_interpreter.outputs == "always" else []
        return ResponseView(frozenset([*include, *always]), obfuscation)

    @contextmanager
    def track(self, run: ResponseRun) -> Generator[None]:
        """Count a response in the metrics: as running inside of this, by its status afterwards."""
        self.metrics.running.inc()
        try:
            yield
        finally:
            name = self.models.resolve(run.response.model) or "other"
            self.active_responses.pop(run.response.id, None)
            self.metrics.running.dec()
            self.metrics.responses.labels(name, run.response.status).inc()
            self.metrics.record_compaction(run.response.compaction)

    async def check_ready(self) -> None:
        """Raise `StoreFault` if the store is not writable, or if the other replicas may take this one for dead."""
        await self.write_probe.check(self.store.check_writable)
        if self.membership is not None:
            self.membership.check()

    async def claim_job(self, name: str, interval: float) -> bool:
        """Whether this process is to run a periodic job now: of several replicas one does so in each interval."""
        replicas = self.store.replicas
        return replicas is None or await replicas.claim_job(name, interval)

    async def stop(self) -> None:
        """Begin a graceful shutdown: not ready any more, and streams of background responses end."""
        self.stopping = True
        self.websockets.stop()
        await self.background.stop_following()
        for work in self.active_responses.values():
            work.server_stopping = True  # another process ends it if it does not finish in time

    async def aclose(self) -> None:
        """Close everything. Background responses resume on another replica, or at the next start."""
        await self.background.aclose()
        await self.engine.retries.aclose()
        await self.rate_limiter.aclose()
        await self.registry.aclose()
        if self.containers is not None:
            await self.containers.aclose()
        await self.models.aclose()
        if self.membership is not None:
            await self.membership.aclose()
        await self.store.aclose()


def services_of(request: Request) -> Services:
    """The services, for a request handler."""
    services: Services = request.app.state.services
    return services


def caller_of(request: Request) -> Caller:
    """The authenticated caller; `RequestMiddleware` has set it."""
    caller: Caller = request.scope["antwort.caller"]
    return caller


def owner_of(request: Request) -> Owner:
    """The owner of the objects that a request creates and reads."""
    caller = caller_of(request)
    return Owner(caller.tenant, caller.key_id)
