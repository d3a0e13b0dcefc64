"""`Session`: an event store with slices and reducers, as in Redux.

A session stores dispatched events, and state that reducers derive from them, in slices: tuples of dataclasses keyed
by type. It holds no conversation: a second `evaluate` with the same session starts a new chat and does not see the
messages of the first, unless the adapter compacts and keeps its window in a slice. It shares the state of the slices,
such as opened sections and what tools stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from threading import RLock
from typing import Any, Generic, TypeAlias, TypeVar, cast
from uuid import uuid4

from weakincentives.errors import ReducerError, SessionError
from weakincentives.prompt import SupportsDataclass
from weakincentives.runtime.dispatcher import Dispatcher, DispatchResult, InProcessDispatcher
from weakincentives.runtime.events import (
    CompactionRebuilt,
    CompactionUnavailable,
    ContainerRecreated,
    ContextCompacted,
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

_Reducers: TypeAlias = list[tuple[type, Reducer[Any, Any]]]

_TRANSCRIPT_TYPES: tuple[type, ...] = (PromptRendered, ModelResponded, ToolInvoked, PromptExecuted)
_LOG_TYPES: tuple[type, ...] = (
    *_TRANSCRIPT_TYPES,
    *(ContainerRecreated, TransferProgress, WorkspaceSynced),
    *(ContextCompacted, CompactionRebuilt, CompactionUnavailable),
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state slices at one moment. Holds references; copies nothing."""

    session_id: str
    slices: dict[type, SliceView[Any]]


class Slice(Generic[T]):
    """The slice of one type in a session, as returned by `session[T]`."""

    __slots__ = ("_session", "_type")

    def __init__(self, session: Session, item_type: type[T]) -> None:
        self._session = session
        self._type = item_type

    @property
    def view(self) -> SliceView[T]:
        """The current items, as an immutable view."""
        return self._session.view(self._type)

    def all(self) -> tuple[T, ...]:
        """Every item, oldest first."""
        return self.view.all()

    def latest(self) -> T | None:
        """The newest item; None if there is none."""
        return self.view.latest()

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that satisfy `predicate`."""
        return self.view.where(predicate)

    def append(self, item: T, /) -> None:
        """Add one item, without dispatching an event."""
        self._session.mutate(self._type, Append(item))

    def seed(self, items: T | Iterable[T], /) -> None:
        """Replace all items by one item or several."""
        several: Iterable[T] = (cast("T", items),) if isinstance(items, self._type) else cast("Iterable[T]", items)
        self._session.mutate(self._type, Replace(tuple(several)))

    def clear(self) -> None:
        """Remove all items."""
        self._session.mutate(self._type, Clear())

    def register(self, event_type: type[E], reducer: Reducer[T, E], /) -> None:
        """Apply `reducer` to this slice for each dispatched event of that type."""
        self._session.register(self._type, event_type, reducer)

    def __len__(self) -> int:
        return len(self.view)


class Session:
    """Event store for any number of evaluations: events and derived state, but no conversation.

    `dispatch` applies reducers, then notifies the subscribers of the dispatcher. An event of a type without reducers
    is appended to the slice of its own type. `bus` is another name for `dispatcher`.

    Several threads may dispatch; reducers run under the session's lock, subscribers do not. A failed tool call rolls
    the state back to before the call, including changes by other threads: evaluations that run in parallel need
    separate sessions.
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
            raise SessionError("Session takes dispatcher= or bus=, which are the same argument; pass one of them")
        chosen = bus if dispatcher is None else dispatcher
        self.dispatcher: Dispatcher = InProcessDispatcher() if chosen is None else chosen
        self.session_id = session_id or uuid4().hex
        self._logs = frozenset({*_LOG_TYPES, *logs})
        self._slices: dict[type, SliceView[Any]] = {}
        self._transcript_events: SliceView[Any] = SliceView()
        self._reducers: dict[type, _Reducers] = {}
        self._lock = RLock()
        self._extra_dispatchers: tuple[Dispatcher, ...] = ()
        self._shared: dict[type, object] = {}

    def __getitem__(self, item_type: type[T], /) -> Slice[T]:
        return Slice(self, item_type)

    def dispatch(self, event: SupportsDataclass, /) -> DispatchResult:
        """Apply the reducers of the event, then notify the subscribers.

        A reducer that raises leaves its slice unchanged; the other reducers and the subscribers still receive the
        event, then `ReducerError` is raised. Exceptions of subscribers are logged and returned.
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
        """Notify the subscribers without storing the event: for frequent events, such as `ModelProgress`."""
        result = self.dispatcher.dispatch(event)
        for extra in {id(extra): extra for extra in self._extra_dispatchers}.values():
            other = extra.dispatch(event)
            result = DispatchResult(event, result.handled + other.handled, (*result.errors, *other.errors))
        return result

    @contextmanager
    def forward_to(self, bus: Dispatcher | None) -> Generator[None]:
        """Dispatch events to `bus` too inside the `with` block; a dispatcher never receives an event twice."""
        if bus is None or bus is self.dispatcher:
            yield
            return
        with self._lock:
            self._extra_dispatchers = (*self._extra_dispatchers, bus)
        try:
            yield
        finally:
            with self._lock:  # removes one entry only: other threads may have added the same dispatcher
                extras = self._extra_dispatchers
                index = next(index for index, extra in enumerate(extras) if extra is bus)
                self._extra_dispatchers = extras[:index] + extras[index + 1 :]

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
                    except Exception as error:  # user code; raised after all reducers ran
                        _logger.exception("reducer %r failed on %s", reducer, event_type.__name__)
                        failures.append(error)
            if event_type in _TRANSCRIPT_TYPES:
                self._transcript_events = self._transcript_events.appended(event)
        return tuple(failures)

    def register(self, slice_type: type[T], event_type: type[E], reducer: Reducer[T, E], /) -> None:
        """As `session[slice_type].register(event_type, reducer)`.

        Events of a type with a reducer are no longer appended to the slice of their own type, unless it is a log.
        """
        with self._lock:
            default: _Reducers = [(event_type, append_event)] if event_type in self._logs else []
            reducers = self._reducers.setdefault(event_type, default)
            if slice_type is event_type:
                reducers[:] = [entry for entry in reducers if entry != (event_type, append_event)]
            reducers.append((slice_type, reducer))

    def mutate(self, slice_type: type, operation: SliceOp, /) -> None:
        """Apply one operation to a slice."""
        with self._lock:
            self._slices[slice_type] = apply(self.view(slice_type), operation)

    def view(self, item_type: type[T], /) -> SliceView[T]:
        """The current items of a type."""
        return self._slices.get(item_type) or SliceView()

    def snapshot(self) -> Snapshot:
        """The current state. Costs O(number of slices), independent of their length."""
        with self._lock:
            state = {kind: view for kind, view in self._slices.items() if kind not in self._logs}
            return Snapshot(self.session_id, state)

    def restore(self, snapshot: Snapshot, /) -> None:
        """Roll the state slices back to a snapshot. Logs (slices of events) are kept."""
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
        """The transcript of all evaluations with this session, in order."""
        return Transcript.of(self._transcript_events.all())

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, {len(self._slices)} slices)"
