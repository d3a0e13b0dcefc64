"""Continuation of a response after a crash, at every point where one can happen, also twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from fixtures_sealing import tenant_sealer
from fixtures_turn import (
    ClientRunTools,
    CommandTools,
    OpeningTools,
    PairTools,
    SharedTools,
    TurnRunner,
    check_grammar,
    used,
)

from antwort.api.events import FINAL_EVENTS, AnyEvent
from antwort.api.items import Item, read
from antwort.engine.checkpoint.state import Checkpoint, UnreadableCheckpoint, read_checkpoint
from antwort.engine.checkpoint.steps import Step, decode_step, encode_step
from antwort.engine.commands import Ask
from antwort.engine.compaction.compactor import Compactor
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.compaction.retention import Budgets
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    ModelFault,
    ModelRequest,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from antwort.engine.stores import StoredStep
from antwort.engine.turn import _INTERRUPTED as INTERRUPTED

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
SUMMARY = [TextPiece("Fact: blue"), used(7)]

Replies = Sequence[Sequence[Any]]


@dataclass
class Database:
    """What a store has of a response, and what was run and seen of it."""

    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    steps: list[StoredStep] = field(default_factory=list[StoredStep])
    first_sequence: int = 0
    ran: list[str] = field(default_factory=list[str])

    def copy(self) -> Database:
        return Database([*self.events], [*self.steps], self.first_sequence, [*self.ran])


class ContinuedRunner(TurnRunner):
    """A turn whose replies depend only on how many were read before, not on how often one was asked for."""

    def __init__(self, request: dict[str, Any], replies: Replies, **options: Any) -> None:
        super().__init__({"background": True, "tools": [SEARCH, ADD], **request}, **options)
        self._script = replies

    def reply(self, ask: Ask) -> list[Any]:
        return list(SUMMARY if ask.for_summary else self._script[self.turn._totals.turns])


def execute(new_runner: Callable[[], ContinuedRunner], database: Database) -> ContinuedRunner:
    """Begin or continue a response on this database, and run it to its end."""
    runner = new_runner()
    checkpoint = read_checkpoint(database.steps)
    if checkpoint is None:
        database.events = []
    else:
        last = database.events[-1].sequence_number if database.events else -1
        runner.first_sequence = database.first_sequence = max(database.first_sequence, last + 1)
        if (after := checkpoint.last_event) is not None:
            database.events = [event for event in database.events if event.sequence_number <= after]
        runner.tools.opened = 100 * len(database.steps)  # ids are unique
        runner.tools.made = checkpoint.output
        runner.open_response()
        runner.turn.restore(checkpoint)
    runner.run()
    return runner


def crashes(runner: ContinuedRunner, before: Database) -> list[Database]:
    """The database at each moment of this run: a prefix of its transactions, at least up to the last call that ran."""
    found: list[Database] = []
    current = before.copy()
    for events, step in runner.transactions:
        if events and isinstance(events[-1], FINAL_EVENTS):
            break
        current.events += events
        if step is not None:
            sequence = current.events[-1].sequence_number
            current.steps.append(StoredStep(len(current.steps), sequence, encode_step(step)))
            if step.begun is not None and not events:
                done = len(current.ran) - len(before.ran)
                current.ran += runner.ran[done : done + 1 + len(step.beside)]
        found.append(current.copy())
    return found


def plain(output: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what differs between two runs, and interrupted calls as if they had run.

    A call that was interrupted in its first item has no second one.
    """
    differing = ("id", "encrypted_content", "status", "queries")
    kept = [item for item in output if item.get("type") != "shell_call_output"]
    return [{key: value for key, value in item.items() if key not in differing} for item in kept]


def long_input() -> list[Item]:
    texts = [("user", f"question {n} " + "why " * 40) for n in range(20)]
    return [read({"type": "message", "role": role, "content": text}) for role, text in texts]


def compacting(*, triggered: bool = False) -> Callable[[Sequence[Item]], CompactionPlan]:
    def plan(history: Sequence[Item]) -> CompactionPlan:
        compactor = Compactor(tenant_sealer(), "writer", Budgets(125, 250, 125), None if triggered else 700)
        return CompactionPlan(compactor, triggered, transcript=history, history=history)

    return plan


def search(index: int, query: str) -> CallPiece:
    return CallPiece(index, "file_search", f"call_{query}", f'{{"q": "{query}"}}')


def add(index: int, call_id: str) -> CallPiece:
    return CallPiece(index, "add", call_id, '{"a": 1}')


TWO_TURNS = (
    [ReasoningPiece("Think."), TextPiece("First. "), search(0, "one"), used(3)],
    [search(0, "two"), used(2)],
    [TextPiece("Done."), used(4)],
)
SEVERAL_CALLS = (
    [
        TextPiece("Now. "),
        search(0, "one"),
        TextPiece("Then "),
        TextPiece("more. "),
        EncryptedReasoning("gAAA"),
        search(1, "two"),
        CallPiece(2, "missing", "call_missing", "{}"),
        search(3, "three"),
        used(5),
    ],
    [RefusalPiece("No."), used(1)],
)
WITH_CLIENT_CALLS = ([add(0, "call_a"), search(1, "one"), add(2, "call_b"), search(3, "two"), used(2)],)
CLIENT_RUN = (
    [search(0, "broken"), used(2)],
    [TextPiece("Again. "), search(0, "one"), add(1, "call_a"), search(2, "two"), used(2)],
)
REPAIRED = (
    [search(0, "one"), search(1, "broken"), add(2, "call_a"), search(3, "broken"), used(2)],
    [TextPiece("Again. "), search(0, "two"), search(1, "three"), used(2)],
)
BROKEN_TWICE = (
    [search(0, "one"), search(1, "broken"), used(2)],
    [search(0, "broken"), TextPiece("Hm."), used(2)],
)
NOT_AGAIN = ([search(0, "broken"), used(2)], [search(0, "broken"), used(2)], [TextPiece("No."), used(2)])
LIMITED = (
    [search(0, "one"), search(1, "two"), search(2, "three"), used(2)],
    [search(0, "four"), used(2)],
    [TextPiece("Done."), used(2)],
)
REFUSED_FIRST = (
    [TextPiece("Hm. "), CallPiece(0, "missing", "call_m", "{}"), used(1)],
    [CallPiece(0, "absent", "call_n", "{}"), search(1, "one"), used(1)],
    [TextPiece("Done."), used(1)],
)
FORCED = (
    [TextPiece("I would rather not."), used(1)],
    [search(0, "one"), used(1)],
    [search(0, "two"), used(1)],
    [TextPiece("Done."), used(1)],
)
LONG = TextPiece("word " * 600)
COMPACTED_TWICE = (
    [LONG, search(0, "one"), used(1)],
    [LONG, search(0, "two"), used(1)],
    [TextPiece("Done."), used(1)],
)
NEVER_CALLED = ([LONG, used(1)], [LONG, used(1)], [LONG, used(1)])
COMPACTED_AT_END = ([search(0, "one"), add(1, "call_a"), used(900)],)

SCENARIOS: dict[str, tuple[dict[str, Any], Replies, dict[str, Any]]] = {
    "two turns": ({}, TWO_TURNS, {}),
    "several calls": ({}, SEVERAL_CALLS, {}),
    "calls of the client": ({}, WITH_CLIENT_CALLS, {}),
    "max_tool_calls": ({"max_tool_calls": 2}, LIMITED, {}),
    "max_turns": ({}, (*LIMITED[1:2], *LIMITED[1:2], *TWO_TURNS), {"max_turns": 2}),
    "max_output_tokens": ({"max_output_tokens": 20}, ([search(0, "one"), used(10)], TWO_TURNS[1]), {}),
    "refused calls": ({}, REFUSED_FIRST, {}),
    "forced choice": ({"tool_choice": {"type": "file_search"}}, FORCED, {}),
    "calls in one container": ({}, SEVERAL_CALLS, {"tools": SharedTools}),
    "calls of two items": ({}, TWO_TURNS, {"tools": PairTools}),
    "several calls of two items": ({}, SEVERAL_CALLS, {"tools": PairTools}),
    "calls run by the client": ({}, CLIENT_RUN, {"tools": ClientRunTools}),
    "repaired calls": ({}, REPAIRED, {"tools": ClientRunTools}),
    "calls that are broken twice": ({}, BROKEN_TWICE, {"tools": ClientRunTools}),
    "repaired commands": ({}, REPAIRED, {"tools": CommandTools}),
    "commands that are broken twice": ({}, BROKEN_TWICE, {"tools": CommandTools}),
    "commands that are not made again": ({}, NOT_AGAIN, {"tools": CommandTools}),
    "approved calls": ({}, TWO_TURNS, {"tools": OpeningTools}),
    "compaction": ({}, TWO_TURNS, {"history": long_input(), "compaction": compacting()}),
    "compaction twice": (
        {"max_tool_calls": 2, "tool_choice": {"type": "file_search"}},
        COMPACTED_TWICE,
        {"history": long_input()[:8], "compaction": compacting()},
    ),
    "compaction after a forced choice": (
        {"tool_choice": {"type": "file_search"}},
        COMPACTED_TWICE,
        {"history": long_input()[:8], "compaction": compacting()},
    ),
    "compaction before a missed call": (
        {"tool_choice": {"type": "file_search"}},
        NEVER_CALLED,
        {"history": long_input()[:8], "compaction": compacting()},
    ),
    "compaction at the end": ({}, COMPACTED_AT_END, {"compaction": compacting(), "history": long_input()[:10]}),
    "triggered compaction": ({}, (), {"history": long_input(), "compaction": compacting(triggered=True)}),
    "failure": ({}, (TWO_TURNS[0], [TextPiece("Half"), ModelFault("It is gone.")]), {}),
}

WITHOUT_RUNS = (
    "triggered compaction",
    "compaction before a missed call",
    *(name for name, (_, _, options) in SCENARIOS.items() if options.get("tools") in (ClientRunTools, CommandTools)),
)
STATUSES = {
    "max_turns": "incomplete",
    "max_output_tokens": "incomplete",
    "failure": "failed",
    "compaction before a missed call": "failed",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_response_continues_from_every_point_and_runs_no_call_twice(name):
    request, replies, options = SCENARIOS[name]

    def new_runner() -> ContinuedRunner:
        return ContinuedRunner(request, replies, **options)

    start = Database()
    whole = execute(new_runner, start)
    check_grammar(whole.events, is_continued=True)
    points = crashes(whole, start)
    for point in points:
        again = point.copy()
        continued = execute(new_runner, again)
        check_continued(whole, point, again, continued)
        for second in crashes(continued, Database(again.events, again.steps, again.first_sequence, again.ran))[::3]:
            once_more = second.copy()
            check_continued(whole, second, once_more, execute(new_runner, once_more))
    assert len(points) > 3
    assert whole.ran or name in WITHOUT_RUNS
    assert (whole.turn.compacted is not None) == ("compaction" in name)
    assert whole.turn.response.status == STATUSES.get(name, "completed")


def check_continued(whole: ContinuedRunner, crash: Database, database: Database, continued: ContinuedRunner) -> None:
    """The same result as without the crash, except for the call that it interrupted; and each call has run once."""
    assert [*database.ran, *continued.ran] == whole.ran
    check_grammar([*database.events, *continued.events], is_continued=True)
    if crash.steps:
        assert continued.events[0].sequence_number > crash.events[-1].sequence_number
    response, expected = continued.turn.response, whole.turn.response
    assert plain(response.output) == plain(expected.output)
    assert (response.status, response.usage, response.error) == (expected.status, expected.usage, expected.error)
    assert response.incomplete_details == expected.incomplete_details
    failed = [item for item in response.output if item.get("status") == "failed"]
    assert len(failed) <= (2 if isinstance(whole.tools, SharedTools) else len(database.ran))  # one for each crash
    if continued.requests:
        check_last_request(continued.requests[-1], whole.requests[-1], most_interrupted=len(failed))


def check_last_request(request: ModelRequest, expected: ModelRequest, most_interrupted: int) -> None:
    """The model is asked the same, but reads of interrupted calls that they were interrupted."""
    items, expected_items = plain([one.raw for one in request.items]), plain([one.raw for one in expected.items])
    assert len(items) == len(expected_items)
    changed = [(got, wanted) for got, wanted in zip(items, expected_items, strict=True) if got != wanted]
    assert len(changed) <= most_interrupted
    assert all(got == {**wanted, "output": INTERRUPTED} for got, wanted in changed)
    assert msgspec.structs.replace(request, items=()) == msgspec.structs.replace(expected, items=())


def test_steps_grow_with_what_is_new_and_not_with_the_whole_run():
    replies = [*([search(0, f"{n:03}"), used(1)] for n in range(100)), [TextPiece("Done."), used(1)]]
    runner = ContinuedRunner({}, replies, max_turns=200)
    runner.run()
    sizes = [len(encode_step(step)) for _, step in runner.transactions if step is not None]
    assert len(sizes) == 1 + 2 * 100
    assert max(sizes[-20:]) <= max(sizes[1:20]) + 50


def test_a_response_in_the_foreground_has_no_steps():
    runner = ContinuedRunner({"background": False}, TWO_TURNS)
    runner.run()
    assert [step for _, step in runner.transactions if step is not None] == []


@pytest.mark.parametrize(
    "steps",
    [
        [StoredStep(0, 2, b"{")],
        [StoredStep(0, 2, b'{"totals": 1}')],
        [StoredStep(1, 2, b'{"totals": {}}')],
        [StoredStep(0, 2, b'{"totals": {}, "ended": {"key": 1, "text": ""}}')],
    ],
)
def test_invalid_steps_are_no_checkpoint(steps):
    with pytest.raises(UnreadableCheckpoint):
        read_checkpoint(steps)


def test_the_format_of_stored_steps_is_read():
    """The format is a promise: a newer server continues what an older one has left."""
    stored = b"""{
        "totals": {"turns": 1, "hosted_calls": 1, "usage": {"input_tokens": 10, "output_tokens": 3,
            "total_tokens": 13, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0}}},
        "items": [{"type": "message", "id": "msg_1"}],
        "history": [0, {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"}],
        "reply": {"first_index": 0, "usage": {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13},
            "calls": [{"key": 0, "name": "file_search", "call_id": "call_1", "arguments": "{}"}],
            "waiting": [0, [{"type": "TextPiece", "text": "More."}]]},
        "begun": {"key": 0, "item": {"type": "file_search_call", "id": "fs_1"}, "text": "interrupted"}
    }"""
    checkpoint = read_checkpoint([StoredStep(0, 7, stored)])
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.reply is not None
    assert checkpoint.begun is not None
    assert (checkpoint.last_event, checkpoint.steps, checkpoint.begun.text) == (None, 1, "interrupted")
    assert checkpoint.reply.saved.waiting == [0, [TextPiece("More.")]]
    assert msgspec.json.decode(encode_step(msgspec.json.decode(stored, type=Step)), type=Step)


def test_the_format_of_calls_that_ran_beside_another_is_read():
    stored = b"""{
        "totals": {"turns": 1},
        "reply": {"first_index": 0, "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
            "calls": [{"key": 0, "name": "f", "call_id": "c_0"}, {"key": 1, "name": "f", "call_id": "c_1"}],
            "waiting": [0, 1]},
        "begun": {"key": 0, "item": {"type": "file_search_call", "id": "fs_1"}, "text": "interrupted"},
        "beside": [{"key": 1, "item": {"type": "file_search_call", "id": "fs_2"}, "text": "interrupted"}]
    }"""
    ended = b'{"totals": {"turns": 1}, "ended": {"key": 0, "text": "", "awaits_client": true}}'
    checkpoint = read_checkpoint([StoredStep(0, 5, stored), StoredStep(1, 6, ended)])
    assert checkpoint is not None
    assert checkpoint.reply is not None
    assert checkpoint.reply.beside[1].item["id"] == "fs_2"
    assert checkpoint.reply.awaiting == {0}


def test_a_call_that_ended_is_not_run_again_beside_one_that_did_not_begin():
    """A version without calls at the same time has stored the steps: the others of the reply are still to be run."""

    def new_runner() -> ContinuedRunner:
        return ContinuedRunner({}, SEVERAL_CALLS)

    runner = new_runner()
    runner.run()
    for database in crashes(runner, Database()):
        steps = [decode_step(one.body) for one in database.steps]
        if not steps or steps[-1].begun is None or steps[-1].beside == []:
            continue
        older = msgspec.structs.replace(steps[-1], beside=[])
        database.steps[-1] = msgspec.structs.replace(database.steps[-1], body=encode_step(older))
        assert execute(new_runner, database).ran == ["call_two", "call_three"]
        return
    raise AssertionError("no calls have begun at the same time")
