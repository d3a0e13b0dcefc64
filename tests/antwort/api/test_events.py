from __future__ import annotations

import json

from antwort.api.events import OutputTextDelta, ToolProgress, kind_of, to_json, to_sse


def test_an_event_is_one_sse_frame_without_an_id():
    event = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a\nb", sequence_number=4)

    head, data, *rest = to_sse(event).split(b"\n")
    assert (head, rest) == (b"event: response.output_text.delta", [b"", b""])
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "a\nb",
        "logprobs": [],
        "sequence_number": 4,
    }


def test_a_tool_event_has_its_own_type_and_fields():
    event = ToolProgress(
        type="response.code_interpreter_call_code.delta",
        item_id="ci_1",
        output_index=1,
        fields={"delta": "x"},
        sequence_number=2,
    )

    assert kind_of(event) == "response.code_interpreter_call_code.delta"
    assert json.loads(to_json(event)) == {
        "type": "response.code_interpreter_call_code.delta",
        "item_id": "ci_1",
        "output_index": 1,
        "delta": "x",
        "sequence_number": 2,
    }
