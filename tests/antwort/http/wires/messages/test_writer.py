"""The events of generated responses: a valid stream, and the same message however it is folded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from fixtures_turn import TurnRunner, used
from hypothesis import given
from hypothesis import strategies as st
from message_stream import check_stream, fold_events

from antwort.api.events import AnyEvent, OutputItemAdded, OutputItemDone, ResponseCompleted, ToolProgress
from antwort.api.responses import Response
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    Finished,
    ModelFault,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.http.wires.messages.events import StreamEvent
from antwort.http.wires.messages.message import MessageFold
from antwort.http.wires.messages.writer import MessageWriter, ResponseFailedError

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
TEXTS = st.text(max_size=8)
PIECES = st.one_of(
    st.builds(TextPiece, TEXTS),
    st.builds(RefusalPiece, TEXTS),
    st.builds(ReasoningPiece, TEXTS),
    st.builds(SummaryPiece, TEXTS, st.integers(0, 2)),
    st.builds(EncryptedReasoning, st.just("c2VhbGVk")),
    st.builds(CallPiece, st.integers(0, 3), st.just("add"), st.just("call_1"), st.sampled_from(["", '{"n": 1}', "{"])),
)
ENDS = st.sampled_from(["stop", "length", "content_filter", "calls"])


def written(events: list[AnyEvent], **options: Any) -> list[StreamEvent]:
    writer = MessageWriter(**options)
    return [one for event in events for one in writer.write(event)]


def sent(events: list[StreamEvent]) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(event)) for event in events]


def folded(events: list[StreamEvent]) -> dict[str, Any]:
    fold = MessageFold()
    for event in events:
        fold.add(event)
    return json.loads(msgspec.json.encode(fold.message))


@given(st.lists(PIECES, max_size=8), ENDS, st.booleans())
def test_every_answer_is_a_valid_stream_that_folds_to_the_whole_message(pieces, end, shows_thinking):
    runner = TurnRunner({"tools": [ADD]}, [*pieces, Finished(end, used().usage)])
    response = runner.run()
    events = written(runner.events, shows_thinking=shows_thinking)

    check_stream(sent(events))
    assert fold_events(sent(events)) == folded(events)
    _check_content(response, folded(events), shows_thinking=shows_thinking)


def _check_content(response: Response, message: dict[str, Any], *, shows_thinking: bool) -> None:
    """The blocks are those of the output, in its order."""
    expected: list[tuple[str, str]] = []
    for item in response.output:
        match item["type"]:
            case "message":
                expected += [("text", part.get("text") or part.get("refusal") or "") for part in item["content"]]
            case "reasoning" if shows_thinking:
                expected.append(("thinking", "seal" if item.get("encrypted_content") else ""))
            case "function_call":
                expected.append(("tool_use", item["name"]))
    shown = {
        "text": lambda block: block["text"],
        "thinking": lambda block: "seal" if block["signature"] else "",
        "tool_use": lambda block: block["name"],
    }
    assert [(block["type"], shown[block["type"]](block)) for block in message["content"]] == expected
    has_call = any(item["type"] == "function_call" for item in response.output)
    assert (message["stop_reason"] == "tool_use") == (has_call and response.status == "completed")


@given(st.lists(PIECES, max_size=4))
def test_a_response_that_fails_has_no_end(pieces):
    runner = TurnRunner({"tools": [ADD]}, [*pieces, ModelFault("It failed.")])
    runner.run()
    writer, events = MessageWriter(), list[StreamEvent]()
    for event in runner.events[:-1]:
        events += writer.write(event)

    with pytest.raises(ResponseFailedError):
        list(writer.write(runner.events[-1]))
    check_stream([*sent(events), {"type": "error", "error": {"type": "api_error", "message": ""}}], is_broken=True)


# ── code ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def code_events(deltas: list[str], code: str, **result: Any) -> list[AnyEvent]:
    item: dict[str, Any] = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": ""}
    kind = "response.code_interpreter_call_code"
    done = {**item, "code": code, "status": "completed", "outputs": [], **result}
    response = Response(id="resp_1", created_at=1, status="completed", model="m", output=[done])
    return [
        OutputItemAdded(output_index=0, item=item),
        *(ToolProgress(type=f"{kind}.delta", item_id="ci_1", output_index=0, fields={"delta": one}) for one in deltas),
        ToolProgress(type=f"{kind}.done", item_id="ci_1", output_index=0, fields={"code": code}),
        OutputItemDone(output_index=0, item=done),
        ResponseCompleted(response=response),
    ]


@given(st.lists(st.text(min_size=1, max_size=5), max_size=5))
def test_code_is_streamed_as_json(deltas):
    code = "".join(deltas)
    result = {"antwort:result": {"stdout": "1", "stderr": "", "exit_code": 0, "note": "2", "file_ids": ["cfile_2"]}}
    events = sent(written(code_events(deltas, code, **result)))
    fragments = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]

    assert json.loads("".join(fragments)) == {"code": code}
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts[1]["content"] == {
        "type": "code_execution_result",
        "stdout": "1\n2",
        "stderr": "",
        "return_code": 0,
        "content": [{"type": "code_execution_output", "file_id": "file_1_2"}],
    }
