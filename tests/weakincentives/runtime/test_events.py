from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

from weakincentives.prompt import ToolResult
from weakincentives.runtime import (
    CompactionRebuilt,
    CompactionUnavailable,
    ContainerRecreated,
    ContextCompacted,
    Session,
    TransferProgress,
    WorkspaceSynced,
    events,
)
from weakincentives.runtime.events import ModelResponded, PromptExecuted, PromptRendered, ToolInvoked


def required(event_type: type) -> list[str]:
    return [one.name for one in fields(event_type) if one.default is MISSING and one.default_factory is MISSING]


def test_required_fields_of_events():
    assert required(PromptRendered) == ["prompt_name", "adapter", "prompt_ns", "prompt_key", "text"]
    assert required(ModelResponded) == ["prompt_name", "adapter", "turn"]
    assert required(ToolInvoked) == ["prompt_name", "adapter", "name", "params", "result"]
    assert required(PromptExecuted) == ["prompt_name", "adapter", "result"]


def test_origin_fields_are_optional_and_last():
    names = [one.name for one in fields(ToolInvoked)]

    assert names[-3:] == ["origin", "provider", "capability"]
    event = ToolInvoked(prompt_name="p", adapter="a", name="t", params=None, result=ToolResult.error("no"))
    assert (event.origin, event.provider, event.capability) == ("client", None, None)
    assert event.success is False


def test_events_have_unique_ids_and_aware_times():
    one, other = (PromptExecuted(prompt_name="p", adapter="a", result=None) for _ in range(2))

    assert one.event_id != other.event_id
    assert one.created_at.tzinfo is not None


def test_module_exports_the_dispatchers():
    for name in ("InProcessDispatcher", "InProcessEventBus", "NullDispatcher", "NullEventBus"):
        assert name in events.__all__


def test_container_and_workspace_events_are_logs():
    session = Session()
    before = session.snapshot()
    events = [
        ContainerRecreated("cntr_1", "cntr_2", ("a",), ("b",)),
        TransferProgress(direction="upload", container_id="c", files=1, bytes=2, total_files=1, total_bytes=2),
        WorkspaceSynced(container_id="c", directory=Path("x"), added=("a", "b"), lost=("c",)),
    ]
    for event in events:
        session.dispatch(event)
    session.restore(before)

    assert [session[type(event)].all() for event in events] == [(event,) for event in events]
    assert len(session.transcript()) == 0
    assert (events[1].done, events[2].render()) == (True, "2 added, 1 lost")
    assert WorkspaceSynced(container_id=None, directory=Path("x")).render() == "no files"


def test_compaction_events_are_logs():
    session = Session()
    before = session.snapshot()
    dispatched = [
        ContextCompacted(
            mode="client", tokens_before=9, tokens_after=3, compaction_count=1, items_before=5, items_after=2
        ),
        CompactionRebuilt(reason="the key was rotated", items=4),
        CompactionUnavailable(reason="no endpoint"),
    ]
    for event in dispatched:
        session.dispatch(event)
    session.restore(before)

    assert [session[type(event)].all() for event in dispatched] == [(event,) for event in dispatched]
    assert len(session.transcript()) == 0
