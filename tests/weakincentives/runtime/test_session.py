from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field

import pytest

from weakincentives.errors import ReducerError, SessionError
from weakincentives.prompt import ToolResult
from weakincentives.runtime import (
    Append,
    InProcessDispatcher,
    Replace,
    Session,
    SliceOp,
    SliceView,
    ToolInvoked,
    append_event,
    replace_latest,
)


@dataclass(frozen=True)
class StepDone:
    name: str


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    text: str


def invoked(name: str = "tool") -> ToolInvoked:
    return ToolInvoked(prompt_name="p", adapter="a", name=name, params=None, result=ToolResult("ok"))


def extend_plan(view: SliceView[Plan], event: StepDone) -> SliceOp:
    latest = view.latest() or Plan()
    return Replace((Plan((*latest.steps, event.name)),))


def test_an_event_without_a_reducer_goes_into_its_own_slice():
    session = Session()
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[StepDone].all() == (StepDone("a"), StepDone("b"))
    assert session[StepDone].latest() == StepDone("b")
    assert session[StepDone].where(lambda step: step.name == "a") == (StepDone("a"),)
    assert len(session[StepDone]) == 2
    assert session[Plan].latest() is None


def test_a_reducer_builds_state_from_events_and_takes_them_over():
    session = Session()
    session[Plan].register(StepDone, extend_plan)
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[Plan].all() == (Plan(("a", "b")),)
    assert session[StepDone].all() == ()


def test_a_reducer_on_a_log_leaves_the_log_complete():
    session = Session()
    session[Note].register(ToolInvoked, lambda view, event: Append(Note(event.name)))
    session.dispatch(invoked("one"))

    assert session[Note].all() == (Note("one"),)
    assert [event.name for event in session[ToolInvoked].all()] == ["one"]


def test_a_reducer_may_replace_how_a_slice_keeps_its_own_events():
    session = Session()
    session[StepDone].register(StepDone, replace_latest)
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[StepDone].all() == (StepDone("b"),)


def test_a_dispatched_event_is_stored_once_and_told_once():
    heard: list[object] = []
    bus = InProcessDispatcher()
    bus.subscribe(ToolInvoked, heard.append)
    session = Session(dispatcher=bus)
    with session.forwarding(bus):  # the session's own: told anyway
        session.dispatch(invoked())

    assert len(session[ToolInvoked].all()) == 1
    assert len(heard) == 1


def test_forwarding_tells_one_more_dispatcher_for_a_while():
    heard: list[object] = []
    bus = InProcessDispatcher()
    bus.subscribe(object, heard.append)
    session = Session()
    with session.forwarding(bus), session.forwarding(bus):
        assert session.dispatch(Note("in")).handled == 1
    session.dispatch(Note("out"))

    assert heard == [Note("in")]


def test_seed_append_and_clear():
    session = Session()
    session[Note].seed(Note("a"))
    session[Note].append(Note("b"))
    assert session[Note].all() == (Note("a"), Note("b"))
    session[Note].seed([Note("c"), Note("d")])
    assert session[Note].all() == (Note("c"), Note("d"))
    session[Note].clear()
    assert session[Note].all() == ()


def test_a_raising_reducer_is_raised_and_spoils_neither_its_slice_nor_the_others():
    heard: list[object] = []
    session = Session()
    session.dispatcher.subscribe(StepDone, heard.append)

    def broken(view: SliceView[Note], event: StepDone) -> SliceOp:
        raise ValueError("bad step")

    session[Note].seed(Note("kept"))
    session[Note].register(StepDone, broken)
    session[Plan].register(StepDone, extend_plan)
    with pytest.raises(ReducerError, match="StepDone failed: ValueError: bad step") as caught:
        session.dispatch(StepDone("a"))

    assert isinstance(caught.value.errors[0], ValueError)
    assert session[Note].all() == (Note("kept"),)
    assert session[Plan].latest() == Plan(("a",))
    assert heard == [StepDone("a")]


def test_restore_rolls_state_back_and_keeps_logs():
    session = Session()
    session.dispatch(Note("before"))
    snapshot = session.snapshot()
    session.dispatch(Note("after"))
    session.dispatch(StepDone("new slice"))
    session.dispatch(invoked("logged"))
    session.restore(snapshot)

    assert session[Note].all() == (Note("before"),)
    assert session[StepDone].all() == ()
    assert [event.name for event in session[ToolInvoked].all()] == ["logged"]
    session.dispatch(Note("again"))
    session.restore(snapshot)
    assert session[Note].all() == (Note("before"),)


def test_a_type_can_be_declared_a_log():
    session = Session(logs=(Note,))
    snapshot = session.snapshot()
    session.dispatch(Note("stays"))
    session.restore(snapshot)

    assert session[Note].all() == (Note("stays"),)


def test_a_snapshot_costs_nothing_per_item():
    touched: list[str] = []

    @dataclass(frozen=True)
    class Heavy:
        items: list[int] = field(default_factory=list[int])

        def __reduce__(self) -> str | tuple[object, ...]:
            touched.append("serialised")
            return super().__reduce__()

        def __copy__(self) -> Heavy:
            touched.append("copied")
            return self

    session = Session()
    for _ in range(10_000):
        session.dispatch(Heavy())
    item = session[Heavy].latest()
    references = sys.getrefcount(item)
    snapshot = session.snapshot()

    assert touched == []
    assert sys.getrefcount(item) == references  # nobody holds the items a second time
    assert snapshot.slices[Heavy] is session[Heavy].view


def test_a_snapshot_of_another_session_is_refused():
    with pytest.raises(SessionError, match="belongs to session"):
        Session().restore(Session().snapshot())


def test_what_is_no_dataclass_is_no_event():
    with pytest.raises(SessionError, match="dataclass instance"):
        Session().dispatch("hello")  # pyright: ignore[reportArgumentType] - the point of the test
    with pytest.raises(SessionError, match="dataclass instance"):
        Session().dispatch(Note)  # pyright: ignore[reportArgumentType] - the point of the test


def test_a_reducer_on_an_events_own_log_takes_the_place_of_the_default():
    session = Session()
    session[ToolInvoked].register(ToolInvoked, append_event)
    session.dispatch(invoked())

    assert len(session[ToolInvoked]) == len(session.transcript()) == 1


def test_forwarding_of_two_threads_may_end_in_any_order():
    session, one, other = Session(), InProcessDispatcher(), InProcessDispatcher()
    told: list[str] = []
    one.subscribe(Note, lambda note: told.append(f"one: {note.text}"))
    other.subscribe(Note, lambda note: told.append(f"other: {note.text}"))
    first, second = session.forwarding(one), session.forwarding(other)

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    session.dispatch(Note("between"))
    second.__exit__(None, None, None)
    session.dispatch(Note("after"))

    assert told == ["other: between"]


def test_a_dispatcher_that_is_empty_and_so_false_is_kept():
    class Counting(InProcessDispatcher):
        def __len__(self) -> int:
            return 0

    bus = Counting()

    assert Session(dispatcher=bus).dispatcher is bus
    assert Session(bus=bus).dispatcher is bus


def test_bus_is_another_name_for_dispatcher():
    bus = InProcessDispatcher()

    assert Session(bus=bus).dispatcher is bus
    with pytest.raises(SessionError, match="give one"):
        Session(bus=bus, dispatcher=bus)


def test_threads_lose_no_events():
    session = Session()
    session[Plan].register(StepDone, extend_plan)

    def work(name: str) -> None:
        for at in range(200):
            session.dispatch(StepDone(f"{name}{at}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    plan = session[Plan].latest()
    assert plan is not None
    assert len(set(plan.steps)) == 800


def test_a_reducer_may_dispatch_further_events():
    session = Session()

    def cascade(view: SliceView[Plan], event: StepDone) -> SliceOp:
        session.dispatch(Note(event.name))
        return extend_plan(view, event)

    session[Plan].register(StepDone, cascade)
    session.dispatch(StepDone("a"))

    assert session[Note].all() == (Note("a"),)
    assert session[Plan].latest() == Plan(("a",))


def test_shared_object_is_created_once_per_type_and_replaced_when_rejected():
    session, other = Session(), Session()

    def never(_: object) -> bool:
        return False

    def always(_: object) -> bool:
        return True

    first = session.shared(list, list[int], reuse=always)
    assert session.shared(list, list[int], reuse=always) is first
    assert session.shared(dict, dict[int, int], reuse=always) == {}
    assert other.shared(list, list[int], reuse=always) is not first
    second = session.shared(list, list[int], reuse=never)
    assert second is not first
    assert session.shared(list, list[int], reuse=always) is second
