from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from weakincentives.budget import TokenUsage
from weakincentives.errors import ParseError
from weakincentives.prompt import ToolResult
from weakincentives.runtime import (
    ModelResponded,
    PromptExecuted,
    PromptRendered,
    Session,
    ToolInvoked,
    Transcript,
)


@dataclass
class Query:
    sql: str


@dataclass
class Rows:
    count: int


def busy_session() -> Session:
    session = Session()
    session.dispatch(
        PromptRendered(prompt_ns="n", prompt_key="k", prompt_name="p", adapter="a", text="Do.", tool_names=("query",))
    )
    session.dispatch(
        ModelResponded(prompt_name="p", adapter="a", turn=0, tool_calls=("query",), usage=TokenUsage(10, 2))
    )
    session.dispatch(
        ToolInvoked(
            prompt_name="p",
            adapter="a",
            name="query",
            params=Query("select 1"),
            result=ToolResult("One row\nonly.", Rows(1)),
            call_id="c1",
        )
    )
    session.dispatch(
        ToolInvoked(
            prompt_name="p",
            adapter="a",
            name="web_search",
            params={"query": "ünïcode \u2028"},
            result=ToolResult.error("down"),
            origin="provider",
            provider="openai",
            capability="web_search",
        )
    )
    answer = SimpleNamespace(text="Done.", output=Rows(1))
    session.dispatch(PromptExecuted(prompt_name="p", adapter="a", result=answer, usage=TokenUsage(30, 5)))
    return session


def test_transcript_has_entries_in_order():
    entries = busy_session().transcript().entries

    assert [entry.kind for entry in entries] == ["prompt", "model", "tool", "tool", "answer"]
    assert [entry.sequence for entry in entries] == [0, 1, 2, 3, 4]
    query, search = entries[2:4]
    assert (query.name, query.call_id, query.params, query.value) == (
        "query",
        "c1",
        {"sql": "select 1"},
        {"count": 1},
    )
    assert query.text == 'One row\nonly.\n\n{"count":1}'
    assert (search.success, search.origin, search.capability) == (False, "provider", "web_search")
    assert entries[4].value == {"count": 1}
    assert entries[4].usage.total_tokens == 35


def test_jsonl_round_trip(tmp_path: Path):
    transcript = busy_session().transcript()
    transcript.write(tmp_path / "run.jsonl")

    assert Transcript.read(tmp_path / "run.jsonl") == transcript
    assert len(transcript.to_jsonl().splitlines()) >= len(transcript) == 5
    assert list(Transcript.from_jsonl("")) == []


def test_truncated_last_line_is_ignored_and_invalid_line_is_an_error():
    text = busy_session().transcript().to_jsonl()

    assert len(Transcript.from_jsonl(text[:-20])) == 4
    with pytest.raises(ParseError, match="line 1 "):
        Transcript.from_jsonl("{oops\n" + text)


def test_values_that_json_cannot_represent_are_written_as_repr():
    session = Session()
    session.dispatch(ToolInvoked(prompt_name="p", adapter="a", name="t", params=object, result=ToolResult("x", {1, 2})))
    transcript = session.transcript()

    assert transcript.entries[0].params == "<class 'object'>"
    assert Transcript.from_jsonl(transcript.to_jsonl()) == transcript


def test_any_value_can_be_written():
    endless: list[object] = []
    endless.append(endless)
    session = Session()
    for value in (endless, {(1, 2): 3}, "half a pair: \ud800"):
        session.dispatch(
            ToolInvoked(prompt_name="p", adapter="a", name="t", params={"x": value}, result=ToolResult("x", value))
        )
    read = Transcript.from_jsonl(session.transcript().to_jsonl())

    assert [entry.value for entry in read] == ["[[...]]", "{(1, 2): 3}", "half a pair: ?"]


def test_file_truncated_inside_a_character_is_read(tmp_path: Path):
    whole = busy_session().transcript().to_jsonl().encode()
    (tmp_path / "run.jsonl").write_bytes(whole[: whole.index("ü".encode()) + 1])

    assert len(Transcript.read(tmp_path / "run.jsonl")) == 3


def test_only_events_of_evaluations_are_included():
    session = busy_session()
    session.dispatch(Query("not part of it"))

    assert len(session.transcript()) == 5
    with pytest.raises(TypeError, match="no entry for Query"):
        Transcript.of([Query("x")])
