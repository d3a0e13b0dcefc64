from __future__ import annotations

from typing import Any

from antwort.api import events as wire
from antwort.api.events import kind_of
from antwort.api.items import FileCitation
from antwort.engine.output_builder import OpenCall, OutputBuilder
from antwort.engine.ports import (
    ReasoningPiece,
    RefusalPiece,
    SealedReasoning,
    SummaryPiece,
    TextPiece,
)


def written(writer: OutputBuilder, *pieces) -> list:
    return [event for piece in pieces for event in writer.write(piece)]


def kinds(events) -> list[str]:
    return [kind_of(event).removeprefix("response.") for event in events]


def test_an_item_stays_open_until_something_else_begins():
    writer = OutputBuilder()
    said = written(writer, TextPiece("a"), TextPiece("b"), ReasoningPiece("c"))

    assert kinds(said) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
    ]
    assert writer.output[0]["content"][0]["text"] == "ab"
    assert [item["type"] for item in writer.output] == ["message", "reasoning"]


def test_text_and_refusal_are_parts_of_one_message_in_their_order():
    writer = OutputBuilder()
    said = [*written(writer, TextPiece("a"), RefusalPiece("b")), *writer.close()]

    assert [part["type"] for part in writer.output[0]["content"]] == ["output_text", "refusal"]
    assert [event.content_index for event in said if isinstance(event, wire.ContentPartAdded)] == [0, 1]
    assert writer.output[0]["status"] == "completed"


def test_what_is_closed_early_says_so_and_closing_again_says_nothing():
    writer = OutputBuilder()
    written(writer, TextPiece("half"))

    assert kinds(writer.close("incomplete"))[-1] == "output_item.done"
    assert (writer.output[0]["status"], writer.output[0]["content"][0]["text"]) == ("incomplete", "half")
    assert list(writer.close()) == []


def test_an_empty_piece_begins_nothing():
    writer = OutputBuilder()

    assert written(writer, TextPiece(""), ReasoningPiece(""), TextPiece("", ({"token": ""},))) == []
    assert writer.next_index == 0


def test_summaries_and_thoughts_count_apart_and_a_seal_is_kept():
    writer = OutputBuilder()
    pieces = [SummaryPiece("a"), ReasoningPiece("b"), SummaryPiece("c"), SealedReasoning("sealed")]
    said = [*written(writer, *pieces), *writer.close()]

    [reasoning] = writer.output
    assert [part["text"] for part in reasoning["summary"]] == ["a", "c"]
    assert [part["text"] for part in reasoning["content"]] == ["b"]
    assert reasoning["encrypted_content"] == "sealed"
    assert [event.summary_index for event in said if isinstance(event, wire.SummaryPartDone)] == [0, 1]
    assert [event.content_index for event in said if isinstance(event, wire.ContentPartDone)] == [0]


def test_citations_come_before_the_text_is_done_and_stay_with_it():
    cited = FileCitation("file-1", "a.txt", 0)
    writer = OutputBuilder(lambda text: [cited] if text == "see [1]" else [])
    said = [*written(writer, TextPiece("see "), TextPiece("[1]")), *writer.close()]

    assert kinds(said)[4:6] == ["output_text.annotation.added", "output_text.done"]
    assert writer.output[0]["content"][0]["annotations"][0]["file_id"] == "file-1"


def test_a_call_of_the_clients_tells_its_deltas_and_the_whole():
    for custom, field in ((False, "arguments"), (True, "input")):
        call = OpenCall(3, name="f", call_id="c", custom=custom)
        said: list[Any] = [*call.write("a"), *call.write(""), *call.write("b")]

        assert [event.delta for event in said] == ["a", "b"]
        assert {event.output_index for event in said} == {3}
        assert getattr(call.close(), field) == "ab"
        assert call.item("completed") == {**call.item(), "status": "completed"}
        assert call.item()[field] == "ab"
