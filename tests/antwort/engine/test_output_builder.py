from __future__ import annotations

from typing import Any

from antwort.api import events as wire
from antwort.api.events import kind_of
from antwort.api.items import FileCitation
from antwort.engine.output_builder import OpenCall, OutputBuilder
from antwort.engine.ports import (
    EncryptedReasoning,
    ItemPiece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
    WholeTextAnnotator,
)


def write_all(output: OutputBuilder, *pieces) -> list:
    return [event for piece in pieces for event in output.write(piece)]


def kinds(events) -> list[str]:
    return [kind_of(event).removeprefix("response.") for event in events]


def test_an_item_stays_open_until_another_begins():
    output = OutputBuilder()
    events = write_all(output, TextPiece("a"), TextPiece("b"), ReasoningPiece("c"))

    assert kinds(events) == [
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
    assert output.output[0]["content"][0]["text"] == "ab"
    assert [item["type"] for item in output.output] == ["message", "reasoning"]


def test_text_and_refusal_are_parts_of_one_message():
    output = OutputBuilder()
    events = [*write_all(output, TextPiece("a"), RefusalPiece("b")), *output.close()]

    assert [part["type"] for part in output.output[0]["content"]] == ["output_text", "refusal"]
    assert [event.content_index for event in events if isinstance(event, wire.ContentPartAdded)] == [0, 1]
    assert output.output[0]["status"] == "completed"


def test_closing_early_is_incomplete_and_closing_twice_is_empty():
    output = OutputBuilder()
    write_all(output, TextPiece("half"))

    assert kinds(output.close("incomplete"))[-1] == "output_item.done"
    assert (output.output[0]["status"], output.output[0]["content"][0]["text"]) == ("incomplete", "half")
    assert list(output.close()) == []


def test_an_empty_piece_opens_no_item():
    output = OutputBuilder()

    assert write_all(output, TextPiece(""), ReasoningPiece(""), TextPiece("", ({"token": ""},))) == []
    assert output.next_index == 0


def test_summary_and_reasoning_indexes_are_separate_and_encrypted_content_is_kept():
    output = OutputBuilder()
    pieces = [SummaryPiece("a"), ReasoningPiece("b"), SummaryPiece("c"), EncryptedReasoning("sealed")]
    events = [*write_all(output, *pieces), *output.close()]

    [reasoning] = output.output
    assert [part["text"] for part in reasoning["summary"]] == ["a", "c"]
    assert [part["text"] for part in reasoning["content"]] == ["b"]
    assert reasoning["encrypted_content"] == "sealed"
    assert [event.summary_index for event in events if isinstance(event, wire.SummaryPartDone)] == [0, 1]
    assert [event.content_index for event in events if isinstance(event, wire.ContentPartDone)] == [0]


def test_the_parts_of_a_summary_stay_separate():
    output = OutputBuilder()
    pieces = [SummaryPiece("a"), SummaryPiece("b"), SummaryPiece("c", 1), ReasoningPiece("d"), SummaryPiece("e", 1)]
    events = [*write_all(output, *pieces), *output.close()]

    [reasoning] = output.output
    assert [part["text"] for part in reasoning["summary"]] == ["ab", "c", "e"]
    assert [event.summary_index for event in events if isinstance(event, wire.SummaryTextDelta)] == [0, 0, 1, 2]
    assert [event.summary_index for event in events if isinstance(event, wire.SummaryPartAdded)] == [0, 1, 2]


def test_annotations_precede_output_text_done():
    cited = FileCitation("file-1", "a.txt", 0)
    output = OutputBuilder(lambda: WholeTextAnnotator(lambda text: [cited] if text == "see [1]" else []))
    events = [*write_all(output, TextPiece("see "), TextPiece("[1]")), *output.close()]

    assert kinds(events)[4:6] == ["output_text.annotation.added", "output_text.done"]
    assert output.output[0]["content"][0]["annotations"][0]["file_id"] == "file-1"


class EachPart:
    """Cites every part, and the complete text."""

    def feed(self, delta):
        return [FileCitation("file-1", delta, 0)] if delta != "none" else []

    def finish(self, text):
        return [FileCitation("file-1", text, 0)]


def test_annotations_of_a_part_follow_its_delta_and_are_numbered_in_each_text():
    output = OutputBuilder(EachPart)
    pieces = [TextPiece("a"), TextPiece("none"), TextPiece("b"), RefusalPiece("no"), TextPiece("c")]
    events = [*write_all(output, *pieces), *output.close()]
    added = [event for event in events if isinstance(event, wire.OutputTextAnnotationAdded)]

    delta, note = "output_text.delta", "output_text.annotation.added"
    assert kinds(events)[2:9] == [delta, note, delta, delta, note, note, "output_text.done"]
    assert [(event.content_index, event.annotation_index) for event in added] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (2, 0),
        (2, 1),
    ]
    parts = output.output[0]["content"]
    assert [cited["filename"] for cited in parts[0]["annotations"]] == ["a", "b", "anoneb"]
    assert [cited["filename"] for cited in parts[2]["annotations"]] == ["c", "c"]


def test_a_client_side_call_emits_deltas_and_the_complete_arguments():
    for custom, field in ((False, "arguments"), (True, "input")):
        call = OpenCall(3, name="f", call_id="c", is_custom=custom)
        events: list[Any] = [*call.write("a"), *call.write(""), *call.write("b")]

        assert [event.delta for event in events] == ["a", "b"]
        assert {event.output_index for event in events} == {3}
        assert [getattr(event, field) for event in call.close()] == ["ab"]
        assert call.item("completed") == {**call.item(), "status": "completed"}
        assert call.item()[field] == "ab"


def test_an_item_that_is_complete_closes_the_open_one():
    output = OutputBuilder()
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
    events = [*output.write(TextPiece("a")), *output.add(item)]

    assert kinds(events)[-3:] == ["output_item.done", "output_item.added", "output_item.done"]
    assert [one["type"] for one in output.output] == ["message", "compaction"]
    assert output.next_index == 2


def test_reasoning_is_sealed_when_it_ends():
    output = OutputBuilder(seal_reasoning=lambda identifier, text: f"{identifier}:{text}")
    events = [*write_all(output, ReasoningPiece("a"), ReasoningPiece("b"), TextPiece("c")), *output.close()]

    reasoning, _ = output.output
    assert reasoning["encrypted_content"] == f"{reasoning['id']}:ab"
    added, done = (event.item for event in events if isinstance(event, wire.ItemEvent) if event.output_index == 0)
    assert "encrypted_content" not in added
    assert done == reasoning


def test_summaries_and_encrypted_reasoning_of_the_upstream_are_not_sealed():
    output = OutputBuilder(seal_reasoning=lambda identifier, text: "sealed")
    write_all(output, ReasoningPiece("a"), EncryptedReasoning("foreign"), TextPiece("b"), SummaryPiece("c"))
    output.close()

    assert [item.get("encrypted_content") for item in output.output] == ["foreign", None, None]


def test_items_of_an_upstream_stay_separate_and_messages_keep_their_phase():
    output = OutputBuilder()
    pieces = [
        *(ItemPiece(0), EncryptedReasoning("a"), ItemPiece(1), EncryptedReasoning("b")),
        *(ItemPiece(2, "commentary"), TextPiece("one"), ItemPiece(3), TextPiece("two"), ItemPiece(3, "final_answer")),
        *(RefusalPiece("no"), ItemPiece(4)),
    ]
    events = [*write_all(output, *pieces), *output.close()]

    first, second, *messages = output.output
    assert (first["encrypted_content"], second["encrypted_content"]) == ("a", "b")
    assert [(one["phase"], len(one["content"]), one["status"]) for one in messages] == [
        ("commentary", 1, "completed"),
        ("final_answer", 2, "completed"),
    ]
    added = [event.item.get("phase") for event in events if isinstance(event, wire.OutputItemAdded)]
    assert added == [None, None, "commentary", None]


def test_the_items_of_the_next_reply_have_indexes_of_their_own():
    output = OutputBuilder()
    write_all(output, ItemPiece(0, "commentary"), TextPiece("one"))
    output.close()
    write_all(output, ItemPiece(0), TextPiece("two"))
    output.close()

    assert [one.get("phase") for one in output.output] == ["commentary", None]


def test_reasoning_is_written_as_a_summary_in_place_of_content():
    output = OutputBuilder(seal_reasoning=lambda _, text: f"sealed:{text}", reasoning_as_summary=True)
    events = [*write_all(output, ReasoningPiece("a"), ReasoningPiece("b"), SummaryPiece("own"), TextPiece("c"))]

    reasoning = output.output[0]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "ab"}, {"type": "summary_text", "text": "own"}]
    assert "content" not in reasoning
    assert reasoning["encrypted_content"] == "sealed:ab"
    assert kinds(events)[:6] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
