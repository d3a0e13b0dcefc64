"""Event dispatcher (event bus): publish/subscribe by event type, in process.

The argument `bus` of other modules is a `Dispatcher`; `InProcessEventBus` and `NullEventBus` are aliases.
"""

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
    """The result of a dispatch: the number of handlers that were called, and the exceptions that they raised."""

    event: object
    handled: int = 0
    errors: tuple[Exception, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.errors

    def raise_if_errors(self) -> None:
        """Raise the exceptions of the subscribers as an `ExceptionGroup`."""
        if self.errors:
            raise ExceptionGroup(f"subscribers of {type(self.event).__name__} raised", self.errors)


class Dispatcher(Protocol):
    """Receives the events of a session and passes them to subscribers."""

    def subscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> None:
        """Call `handler` with every event of this type or of a subclass; with `object`, every event."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], object], /) -> bool:
        """Remove one subscription; False if there is none."""
        ...

    def dispatch(self, event: object, /) -> DispatchResult:
        """Call the subscribers, in the order of subscription."""
        ...


class InProcessDispatcher:
    """Calls subscribers synchronously, in the caller's thread.

    An exception of a subscriber is logged with its traceback and returned in the `DispatchResult`. It neither stops
    the other subscribers nor ends the evaluation.
    """

    def __init__(self) -> None:
        self._subscribers: dict[type, tuple[Handler, ...]] = {}
        self._routes: dict[type, tuple[Handler, ...]] = {}  # cache: event type → handlers
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
            index = known.index(handler)
            self._subscribers[event_type] = known[:index] + known[index + 1 :]
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
            except Exception as error:  # user code; reported in the result
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
    """Discards events."""

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
