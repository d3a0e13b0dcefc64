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


def test_event_without_a_reducer_is_appended_to_its_own_slice():
    session = Session()
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[StepDone].all() == (StepDone("a"), StepDone("b"))
    assert session[StepDone].latest() == StepDone("b")
    assert session[StepDone].where(lambda step: step.name == "a") == (StepDone("a"),)
    assert len(session[StepDone]) == 2
    assert session[Plan].latest() is None


def test_reducer_replaces_the_slice_of_its_event():
    session = Session()
    session[Plan].register(StepDone, extend_plan)
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[Plan].all() == (Plan(("a", "b")),)
    assert session[StepDone].all() == ()


def test_reducer_on_a_log_event_keeps_the_log():
    session = Session()
    session[Note].register(ToolInvoked, lambda view, event: Append(Note(event.name)))
    session.dispatch(invoked("one"))

    assert session[Note].all() == (Note("one"),)
    assert [event.name for event in session[ToolInvoked].all()] == ["one"]


def test_reducer_for_the_slice_of_its_own_event():
    session = Session()
    session[StepDone].register(StepDone, replace_latest)
    session.dispatch(StepDone("a"))
    session.dispatch(StepDone("b"))

    assert session[StepDone].all() == (StepDone("b"),)


def test_event_is_stored_and_dispatched_once():
    received: list[object] = []
    bus = InProcessDispatcher()
    bus.subscribe(ToolInvoked, received.append)
    session = Session(dispatcher=bus)
    with session.forward_to(bus):  # the session's own dispatcher
        session.dispatch(invoked())

    assert len(session[ToolInvoked].all()) == 1
    assert len(received) == 1


def test_forward_to_adds_a_dispatcher_temporarily():
    received: list[object] = []
    bus = InProcessDispatcher()
    bus.subscribe(object, received.append)
    session = Session()
    with session.forward_to(bus), session.forward_to(bus):
        assert session.dispatch(Note("in")).handled == 1
    session.dispatch(Note("out"))

    assert received == [Note("in")]


def test_seed_append_and_clear():
    session = Session()
    session[Note].seed(Note("a"))
    session[Note].append(Note("b"))
    assert session[Note].all() == (Note("a"), Note("b"))
    session[Note].seed([Note("c"), Note("d")])
    assert session[Note].all() == (Note("c"), Note("d"))
    session[Note].clear()
    assert session[Note].all() == ()


def test_failing_reducer_raises_and_leaves_the_slices_unchanged():
    received: list[object] = []
    session = Session()
    session.dispatcher.subscribe(StepDone, received.append)

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
    assert received == [StepDone("a")]


def test_restore_rolls_back_state_and_keeps_logs():
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


def test_logs_argument_declares_a_log():
    session = Session(logs=(Note,))
    snapshot = session.snapshot()
    session.dispatch(Note("stays"))
    session.restore(snapshot)

    assert session[Note].all() == (Note("stays"),)


def test_cost_of_a_snapshot_is_independent_of_items():
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
    assert sys.getrefcount(item) == references  # no second reference to the items
    assert snapshot.slices[Heavy] is session[Heavy].view


def test_snapshot_of_another_session_is_rejected():
    with pytest.raises(SessionError, match="belongs to session"):
        Session().restore(Session().snapshot())


def test_event_must_be_a_dataclass_instance():
    with pytest.raises(SessionError, match="dataclass instance"):
        Session().dispatch("hello")  # pyright: ignore[reportArgumentType] - the point of the test
    with pytest.raises(SessionError, match="dataclass instance"):
        Session().dispatch(Note)  # pyright: ignore[reportArgumentType] - the point of the test


def test_reducer_on_the_log_of_its_event_replaces_the_default():
    session = Session()
    session[ToolInvoked].register(ToolInvoked, append_event)
    session.dispatch(invoked())

    assert len(session[ToolInvoked]) == len(session.transcript()) == 1


def test_overlapping_forward_to_may_end_in_any_order():
    session, one, other = Session(), InProcessDispatcher(), InProcessDispatcher()
    received: list[str] = []
    one.subscribe(Note, lambda note: received.append(f"one: {note.text}"))
    other.subscribe(Note, lambda note: received.append(f"other: {note.text}"))
    first, second = session.forward_to(one), session.forward_to(other)

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    session.dispatch(Note("between"))
    second.__exit__(None, None, None)
    session.dispatch(Note("after"))

    assert received == ["other: between"]


def test_falsy_dispatcher_is_kept():
    class Counting(InProcessDispatcher):
        def __len__(self) -> int:
            return 0

    bus = Counting()

    assert Session(dispatcher=bus).dispatcher is bus
    assert Session(bus=bus).dispatcher is bus


def test_bus_is_an_alias_of_dispatcher():
    bus = InProcessDispatcher()

    assert Session(bus=bus).dispatcher is bus
    with pytest.raises(SessionError, match="pass one of them"):
        Session(bus=bus, dispatcher=bus)


def test_concurrent_dispatch_loses_no_events():
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


def test_reducer_may_dispatch_events():
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
