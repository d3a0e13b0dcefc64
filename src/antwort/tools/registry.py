"""The registry of hosted tools: who offers what, and a call for whoever the model asks for.

A provider that raises becomes a failed call that the model reads about, never a dead response.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from antwort.api.errors import ApiError, invalid, unavailable
from antwort.api.ids import Prefix, new_id
from antwort.api.items import Annotation
from antwort.api.tools import ToolDeclaration, tool_type
from antwort.engine.ports import (
    FunctionSpec,
    HostedCall,
    Progress,
    ToolContext,
    ToolDone,
    Workbench,
)
from antwort.engine.stores import StoreFault

_logger = logging.getLogger(__name__)

_Step: TypeAlias = Progress | ToolDone

_PREFIXES: dict[str, Prefix] = {
    "code_interpreter": "ci_",
    "file_search": "fs_",
    "web_search": "ws_",
    "shell": "sh_",
    "mcp": "mcp_",
}


class FunctionProvider(Protocol):
    """One hosted tool, or several that belong together."""

    @property
    def name(self) -> str:
        """How logs and metrics call it."""
        ...

    @property
    def tools(self) -> Sequence[str]:
        """The types of the tools that it runs, as requests declare them. No other provider may run one of them."""
        ...

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        """What a model is told of a declared tool, of one of these types; None where this one is not run."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        """Make an offered tool ready for a response; `ApiError` where that cannot be."""
        ...

    def routes(self) -> Sequence[Any]:
        """HTTP routes of its own, for the server to mount."""
        ...

    def metrics(self) -> Sequence[Collector]:
        """Numbers of its own, for `/metrics` to show. Asked once, at start."""
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...


class ProviderCollision(Exception):
    """Two providers claim the same name, tool or metric."""


class Registry:
    """All providers. What one of them runs, no other may: an error at start, not a surprise later."""

    def __init__(self, providers: Iterable[FunctionProvider] = ()) -> None:
        self._providers: dict[str, FunctionProvider] = {}
        self._running: dict[str, FunctionProvider] = {}
        for provider in providers:
            self.register(provider)

    def register(self, provider: FunctionProvider) -> None:
        """Add one. A name that is taken, or a tool, is a `ProviderCollision`."""
        if provider.name in self._providers:
            raise ProviderCollision(f"two tool providers are called {provider.name!r}")
        for tool in provider.tools:
            if (other := self._running.get(tool)) is not None:
                raise ProviderCollision(f"both {other.name!r} and {provider.name!r} run {tool!r}: enable one of them")
        self._providers[provider.name] = provider
        self._running |= dict.fromkeys(provider.tools, provider)

    @property
    def providers(self) -> tuple[FunctionProvider, ...]:
        return tuple(self._providers.values())

    def show_metrics(self, page: CollectorRegistry) -> None:
        """Let a page show the numbers of all providers. A name that is there already is a `ProviderCollision`."""
        for provider in self.providers:
            for collector in provider.metrics():
                try:
                    page.register(collector)
                except ValueError as error:
                    raise ProviderCollision(f"metrics of {provider.name!r}: {error}") from error

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        provider = self._running.get(tool_type(tool))
        if provider is None:
            return None
        with _guarded(provider.name, "say what it offers"):
            return provider.offer(tool)
        raise unavailable(f"Tool type '{tool_type(tool)}' is not available now.")

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        provider, bench = self._running.get(tool_type(tool)), None
        if provider is None:
            raise invalid(f"Tool type '{tool_type(tool)}' is not available on this server.", param=f"{param}.type")
        with _guarded(provider.name, "get ready", but=(ApiError, StoreFault)):
            bench = await provider.prepare(tool, param, context)
        return Guarded(provider.name, tool, bench)

    async def aclose(self) -> None:
        """Close every provider, also when some of them fail at it."""
        for provider in self.providers:
            with _guarded(provider.name, "close"):
                await provider.aclose()


@contextmanager
def _guarded(provider: str, what: str, but: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """What a provider's own code raises in here is logged, and ends no response; the caller goes on behind it."""
    try:
        yield
    except but:
        raise
    except Exception:  # the one place where foreign code is kept from doing harm
        _logger.exception("provider %s could not %s", provider, what)


class Guarded:
    """The bench of a provider; None where it could not be got ready. What it fails at has failed, or is left out."""

    def __init__(self, name: str, tool: ToolDeclaration, bench: Workbench | None) -> None:
        self._name = name
        self._tool = tool
        self._bench = bench

    @property
    def takes_files(self) -> bool:
        with _guarded(self._name, "say whether it takes files"):
            return self._bench is not None and self._bench.takes_files
        return False

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        with _guarded(self._name, "describe itself"):
            return spec if self._bench is None else self._bench.describe(spec)
        return spec

    async def open(self, name: str, call_id: str) -> HostedCall:
        with _guarded(self._name, "begin a call"):
            if self._bench is not None:
                return GuardedCall(self._name, await self._bench.open(name, call_id))
        return BrokenCall(self._tool, "The tool could not be started. Answer without it, or try again.")

    def annotate(self, text: str) -> Sequence[Annotation]:
        with _guarded(self._name, "annotate an answer"):
            return () if self._bench is None else tuple(self._bench.annotate(text))
        return ()

    @contextmanager
    def at_work(self) -> Generator[None]:
        kept = ExitStack()
        with _guarded(self._name, "begin its work"):
            if self._bench is not None:
                kept.enter_context(self._bench.at_work())
        try:
            yield
        finally:
            with _guarded(self._name, "end its work"):
                kept.close()


class GuardedCall:
    """A call of a provider. One that raises, at whatever it does, has failed, and is not run if it has not been."""

    def __init__(self, name: str, call: HostedCall) -> None:
        self._name = name
        self._call = call
        self._item = {**call.item}
        self._whole = True
        """Nothing of it has failed yet."""
        if not all(isinstance(self._item.get(field), str) for field in ("id", "type")):
            raise TypeError("the item of a call needs an `id` and a `type`")

    @property
    def item(self) -> dict[str, Any]:
        return self._item

    def opening(self) -> Sequence[Progress]:
        return self._steps("open a call", self._call.opening)

    def write(self, delta: str) -> Sequence[Progress]:
        return self._steps("read arguments", lambda: self._call.write(delta)) if self._whole else ()

    def _steps(self, what: str, do: Callable[[], Sequence[Progress]]) -> Sequence[Progress]:
        with _guarded(self._name, what):
            return tuple(do())
        self._whole = False
        return ()

    async def run(self) -> AsyncGenerator[Progress | ToolDone]:
        reason = "The tool failed. Try another way, or answer without it."
        with _guarded(self._name, "run a call"):
            if self._whole:
                async with _closing(self._name, self._call.run()) as steps:
                    async for step in steps:
                        yield step
                        if isinstance(step, ToolDone):
                            return
                reason = "The tool ended without a result."
        yield self.failed(reason)

    def failed(self, reason: str) -> ToolDone:
        with _guarded(self._name, "say that a call has failed"):
            return self._call.failed(reason)
        return ToolDone({**self._item, "status": "failed"}, reason)


@asynccontextmanager
async def _closing(name: str, steps: AsyncIterator[_Step]) -> AsyncGenerator[AsyncIterator[_Step]]:
    """Generators hold sandboxes and connections; let them go now and not when they are collected."""
    try:
        yield steps
    finally:
        with _guarded(name, "close a call"):
            if isinstance(steps, AsyncGenerator):
                await steps.aclose()


class BrokenCall:
    """A call that fails as soon as it is run."""

    def __init__(self, declaration: ToolDeclaration, reason: str) -> None:
        kind = tool_type(declaration)
        self._reason = reason
        self._item = {"id": new_id(_PREFIXES.get(kind, "fc_")), "type": f"{kind}_call", "status": "in_progress"}

    @property
    def item(self) -> dict[str, Any]:
        return self._item

    def opening(self) -> Sequence[Progress]:
        return ()

    def write(self, delta: str) -> Sequence[Progress]:
        _ = delta
        return ()

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        yield self.failed(self._reason)

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**self._item, "status": "failed"}, reason)
