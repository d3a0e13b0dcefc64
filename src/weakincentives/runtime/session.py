"""A session: what happened, kept in typed slices that reducers build from events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from threading import RLock
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

from weakincentives.errors import ReducerError, SessionError
from weakincentives.prompt import SupportsDataclass
from weakincentives.runtime.dispatcher import Dispatcher, DispatchResult, InProcessDispatcher
from weakincentives.runtime.events import (
    ContainerRecreated,
    ModelResponded,
    PromptExecuted,
    PromptRendered,
    ToolInvoked,
    TransferProgress,
    WorkspaceSynced,
)
from weakincentives.runtime.slices import Append, Clear, Reducer, Replace, SliceOp, SliceView, append_event, apply
from weakincentives.runtime.transcript import Transcript

T = TypeVar("T")
E = TypeVar("E")

_JOURNALED: tuple[type, ...] = (PromptRendered, ModelResponded, ToolInvoked, PromptExecuted)
_EVENTS: tuple[type, ...] = (*_JOURNALED, ContainerRecreated, TransferProgress, WorkspaceSynced)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state slices at one moment. Holds references, copies nothing."""

    session_id: str
    slices: dict[type, SliceView[Any]]


class Slice(Generic[T]):
    """The handle that `session[T]` gives."""

    __slots__ = ("_session", "_type")

    def __init__(self, session: Session, item_type: type[T]) -> None:
        self._session = session
        self._type = item_type

    @property
    def view(self) -> SliceView[T]:
        """The items as they are now, and stay."""
        return self._session.view(self._type)

    def all(self) -> tuple[T, ...]:
        """Every item, oldest first."""
        return self.view.all()

    def latest(self) -> T | None:
        """The newest item."""
        return self.view.latest()

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that fit."""
        return self.view.where(predicate)

    def append(self, item: T, /) -> None:
        """Add one item, without telling anybody."""
        self._session.mutate(self._type, Append(item))

    def seed(self, items: T | Iterable[T], /) -> None:
        """Put an item, or several, in place of everything."""
        several: Iterable[T] = (cast("T", items),) if isinstance(items, self._type) else cast("Iterable[T]", items)
        self._session.mutate(self._type, Replace(tuple(several)))

    def clear(self) -> None:
        """Remove everything."""
        self._session.mutate(self._type, Clear())

    def register(self, event_type: type[E], reducer: Reducer[T, E], /) -> None:
        """Let `reducer` work on this slice whenever such an event is dispatched."""
        self._session.register(self._type, event_type, reducer)

    def __len__(self) -> int:
        return len(self.view)


class Session:
    """State and history of one piece of work, over any number of evaluations.

    `dispatch` is the one way in: reducers run first, then the dispatcher's
    subscribers are told. A type that no reducer claims is appended to its own slice.
    Threads may dispatch at the same time; reducers run under the session's lock, subscribers
    do not. But a tool that fails rolls state back to before its call, whoever changed it
    since: evaluations that run in parallel want sessions of their own.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher | None = None,
        bus: Dispatcher | None = None,
        session_id: str | None = None,
        logs: Iterable[type] = (),
    ) -> None:
        if dispatcher is not None and bus is not None:
            raise SessionError("Session takes dispatcher= or bus=, which mean the same; give one")
        given = bus if dispatcher is None else dispatcher
        self.dispatcher: Dispatcher = InProcessDispatcher() if given is None else given
        self.session_id = session_id or uuid4().hex
        self._logs = frozenset({*_EVENTS, *logs})
        self._slices: dict[type, SliceView[Any]] = {}
        self._journal: SliceView[Any] = SliceView()
        self._reducers: dict[type, list[tuple[type, Reducer[Any, Any]]]] = {}
        self._lock = RLock()
        self._forwards: tuple[Dispatcher, ...] = ()
        self._shared: dict[type, object] = {}

    def __getitem__(self, item_type: type[T], /) -> Slice[T]:
        return Slice(self, item_type)

    def dispatch(self, event: SupportsDataclass, /) -> DispatchResult:
        """Let the reducers work, then tell the subscribers.

        A raising reducer leaves its slice as it was; the other reducers and the
        subscribers still get the event, and then `ReducerError` is raised. What
        subscribers raise is logged, and returned.
        """
        event_type = type(event)
        if not is_dataclass(event_type):
            raise SessionError(f"an event must be a dataclass instance, not {event!r}")
        failures = self._reduce(event_type, event)
        result = self.notify(event)
        if failures:
            names = "; ".join(f"{type(error).__name__}: {error}" for error in failures)
            raise ReducerError(f"reducers of {event_type.__name__} failed: {names}", errors=failures) from failures[0]
        return result

    def notify(self, event: SupportsDataclass, /) -> DispatchResult:
        """Tell the subscribers alone: for what comes a hundred times a second, and is not kept."""
        result = self.dispatcher.dispatch(event)
        for forward in {id(forward): forward for forward in self._forwards}.values():
            told = forward.dispatch(event)
            result = DispatchResult(event, result.handled + told.handled, (*result.errors, *told.errors))
        return result

    @contextmanager
    def forwarding(self, bus: Dispatcher | None) -> Generator[None]:
        """Tell one more dispatcher for a while; one that is told anyway is not told twice."""
        if bus is None or bus is self.dispatcher:
            yield
            return
        with self._lock:
            self._forwards = (*self._forwards, bus)
        try:
            yield
        finally:
            with self._lock:  # takes out this one only: another thread's may have come meanwhile
                at = next(at for at, forward in enumerate(self._forwards) if forward is bus)
                self._forwards = self._forwards[:at] + self._forwards[at + 1 :]

    def _reduce(self, event_type: type, event: object) -> tuple[Exception, ...]:
        failures: list[Exception] = []
        with self._lock:
            reducers = self._reducers.get(event_type)
            if reducers is None:
                self.mutate(event_type, Append(event))
            else:
                for slice_type, reducer in reducers:
                    try:
                        self.mutate(slice_type, reducer(self.view(slice_type), event))
                    except Exception as error:  # a stranger's code; raised again once all have run
                        _logger.exception("reducer %r failed on %s", reducer, event_type.__name__)
                        failures.append(error)
            if event_type in _JOURNALED:
                self._journal = self._journal.appended(event)
        return tuple(failures)

    def register(self, slice_type: type[T], event_type: type[E], reducer: Reducer[T, E], /) -> None:
        """As `session[slice_type].register(event_type, reducer)`.

        An event that some reducer claims is no longer kept for itself, except in a log.
        """
        with self._lock:
            kept: list[tuple[type, Reducer[Any, Any]]] = (
                [(event_type, append_event)] if event_type in self._logs else []
            )
            known = self._reducers.setdefault(event_type, kept)
            if slice_type is event_type:
                known[:] = [entry for entry in known if entry != (event_type, append_event)]
            known.append((slice_type, reducer))

    def mutate(self, slice_type: type, operation: SliceOp, /) -> None:
        """Apply one operation to a slice."""
        with self._lock:
            self._slices[slice_type] = apply(self.view(slice_type), operation)

    def view(self, item_type: type[T], /) -> SliceView[T]:
        """The items of a type as they are now."""
        return self._slices.get(item_type) or SliceView()

    def snapshot(self) -> Snapshot:
        """The state now. Costs as much as there are slices, however long they are."""
        with self._lock:
            return Snapshot(
                self.session_id, {kind: view for kind, view in self._slices.items() if kind not in self._logs}
            )

    def restore(self, snapshot: Snapshot, /) -> None:
        """Go back to a snapshot. State slices roll back; logs (events) stay."""
        if snapshot.session_id != self.session_id:
            raise SessionError(f"the snapshot belongs to session {snapshot.session_id}, not {self.session_id}")
        with self._lock:
            logs = {kind: view for kind, view in self._slices.items() if kind in self._logs}
            self._slices = {**snapshot.slices, **logs}

    def shared(self, kind: type[T], create: Callable[[], T], *, reuse: Callable[[T], bool]) -> T:
        """The object of this type that the users of the session share; `create` replaces one that `reuse` rejects."""
        with self._lock:
            known = self._shared.get(kind)
            if isinstance(known, kind) and reuse(known):
                return known
            created = create()
            self._shared[kind] = created
            return created

    def transcript(self) -> Transcript:
        """Everything that happened here, in order."""
        return Transcript.of(self._journal.all())

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, {len(self._slices)} slices)"
