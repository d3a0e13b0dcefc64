"""Carrying events to whoever listens. Knows no event by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar

E = TypeVar("E")
Handler: TypeAlias = Callable[[Any], object]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """How a dispatch went: how many were told, and what they raised."""

    event: object
    handled: int = 0
    errors: tuple[Exception, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.errors

    def raise_if_errors(self) -> None:
        """Raise what the subscribers raised, all of it."""
        if self.errors:
            raise ExceptionGroup(f"subscribers of {type(self.event).__name__} raised", self.errors)


class Dispatcher(Protocol):
    """Where a session sends its events."""

    def subscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> None:
        """Call `handler` with every event of this type or of a subclass. `object` means all."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> bool:
        """Stop that; False where it was not subscribed."""
        ...

    def dispatch(self, event: object, /) -> DispatchResult:
        """Tell the subscribers, in the order in which they came."""
        ...


class InProcessDispatcher:
    """Calls subscribers at once, in the caller's thread.

    One that raises does not keep the others from being told, nor ends the evaluation:
    its exception is logged with its traceback and returned in the `DispatchResult`.
    """

    def __init__(self) -> None:
        self._subscribers: dict[type, tuple[Handler, ...]] = {}
        self._routes: dict[type, tuple[Handler, ...]] = {}  # by event type, worked out on first sight
        self._lock = Lock()

    def subscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> None:
        with self._lock:
            self._subscribers[event_type] = (*self._subscribers.get(event_type, ()), handler)
            self._routes = {}

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> bool:
        with self._lock:
            known = self._subscribers.get(event_type, ())
            if handler not in known:
                return False
            at = known.index(handler)
            self._subscribers[event_type] = known[:at] + known[at + 1 :]
            self._routes = {}
            return True

    def dispatch(self, event: object, /) -> DispatchResult:
        handlers = self._routes.get(type(event))
        if handlers is None:
            handlers = self._route(type(event))
        if not handlers:
            return DispatchResult(event)
        errors: list[Exception] = []
        for handler in handlers:
            try:
                handler(event)
            except Exception as error:  # a stranger's code; whatever it raises is reported
                _logger.exception("subscriber %r failed on %s", handler, type(event).__name__)
                errors.append(error)
        return DispatchResult(event, len(handlers), tuple(errors))

    def _route(self, event_type: type) -> tuple[Handler, ...]:
        with self._lock:
            route = tuple(
                handler
                for subscribed, handlers in self._subscribers.items()
                if issubclass(event_type, subscribed)
                for handler in handlers
            )
            self._routes = {**self._routes, event_type: route}
            return route

    publish = dispatch


class NullDispatcher:
    """Tells nobody."""

    def subscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> None:
        _ = event_type, handler

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> bool:
        _ = event_type, handler
        return False

    def dispatch(self, event: object, /) -> DispatchResult:
        return DispatchResult(event)

    publish = dispatch


InProcessEventBus = InProcessDispatcher
NullEventBus = NullDispatcher
