from __future__ import annotations

import json
from typing import Any

from weakincentives.adapters.openai.responses.history import RequestHistory, encode_json, has_calls_in
from weakincentives.adapters.openai.wire import message
from weakincentives.adapters.turn import ClientRunCall, HistoryItem, ModelReply, ToolCall, ToolOutput
from weakincentives.prompt import ToolResult
from weakincentives.runtime.slices import SliceView

HEAD = b'{"model":"m"}'


def said(replay: RequestHistory) -> list[Any]:
    body = json.loads(replay.body(HEAD))
    assert body["model"] == "m"
    return body["input"]


def history(*items: HistoryItem) -> SliceView[HistoryItem]:
    return SliceView(items)


def test_everything_is_repeated_untouched_and_in_order():
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "x_future": {"a": [1.50, None, 2**70]}}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    replay = RequestHistory([message("user", "Hi.")])
    reply = ModelReply(calls=(ToolCall("call_1", "f"),), items=(reasoning, call))
    replay.append_new(history(reply, ToolOutput("call_1", "f", "done", success=True)))

    assert said(replay) == [
        {"type": "message", "role": "user", "content": "Hi."},
        reasoning,
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ]


def test_a_request_that_is_tried_again_says_nothing_twice():
    replay = RequestHistory([message("user", "Hi.")])
    so_far = history(ModelReply(items=({"type": "message", "id": "msg_1"},)))
    replay.append_new(so_far)
    once = replay.body(HEAD)
    replay.append_new(so_far)

    assert replay.body(HEAD) == once


def test_only_what_is_new_is_encoded():
    replay = RequestHistory([])
    view: SliceView[HistoryItem] = SliceView()
    for at in range(3):
        view = view.appended(ModelReply(items=({"id": at},)))
        replay.append_new(view)

    assert said(replay) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_a_call_that_was_left_to_us_is_answered_in_its_own_form():
    call = ClientRunCall(
        call_id="call_1",
        name="shell",
        capability="shell",
        provider="openai",
        params=None,
        run=lambda context: ToolResult(""),
        answer=lambda output: {"type": "shell_call_output", "said": output.text},
    )
    replay = RequestHistory([])
    replay.append_new(history(ModelReply(calls=(call,)), ToolOutput("call_1", "shell", "ok", success=True)))

    assert said(replay) == [{"type": "shell_call_output", "said": "ok"}]


def test_half_a_surrogate_pair_is_written_out():
    value = {"a\ud800": ["b\udfff", {"c": 1}, None, 2.5]}

    assert json.loads(encode_json(value)) == {"a\\ud800": ["b\\udfff", {"c": 1}, None, 2.5]}


CODE = {"id": "ci_1", "type": "code_interpreter_call", "code": "x = 1", "container_id": "cntr_1", "outputs": None}
SHELL = {
    "id": "sh_1",
    "type": "shell_call",
    "call_id": "call_1",
    "action": {"commands": ["ls"]},
    "environment": {"type": "container_reference", "container_id": "cntr_1"},
}
OUTPUT = {"id": "sho_1", "type": "shell_call_output", "call_id": "call_1", "output": [{"stdout": "a.txt"}]}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}


def test_what_ran_in_a_dead_container_is_retold_in_words():
    other = {**CODE, "id": "ci_2", "container_id": "cntr_2"}
    replay = RequestHistory([message("user", "Hi."), REASONING, CODE, CODE, REASONING, other, SHELL, OUTPUT])

    assert replay.scrub_container("cntr_1") == 3
    kept = said(replay)
    assert [item["type"] for item in kept] == [
        "message",
        "message",
        "message",
        "reasoning",
        "code_interpreter_call",
        "message",
        "message",
    ]
    assert [item["role"] for item in kept if item["type"] == "message"] == ["user"] + ["assistant"] * 4
    assert "x = 1" in kept[1]["content"]
    assert "a.txt" in kept[-1]["content"]
    assert b"cntr_1" not in replay.body(HEAD)
    assert replay.scrub_container("cntr_1") == 0


def test_images_are_not_retold():
    seen = {
        **CODE,
        "outputs": [{"type": "image", "url": "data:image/png;base64,AAAA"}, {"type": "logs", "logs": "5\ud800"}],
    }
    replay = RequestHistory([seen])
    replay.scrub_container("cntr_1")

    (told,) = said(replay)
    assert "base64" not in told["content"]
    assert '"logs":"5' in told["content"]


def test_a_history_without_the_container_stays_as_it_is():
    replay = RequestHistory([message("user", "Hi."), REASONING])
    before = replay.body(HEAD)

    assert replay.scrub_container("cntr_1") == 0
    assert replay.body(HEAD) == before


def test_what_ran_in_a_container_is_known_by_its_id():
    code = {"type": "code_interpreter_call", "container_id": "cntr_1"}
    shell = {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "cntr_2"}}
    said = {"type": "message", "content": [{"type": "output_text", "text": "cntr_3"}]}

    assert [has_calls_in(f"cntr_{at}", {"output": [code, shell, said]}) for at in (1, 2, 3)] == [True, True, False]
    assert not has_calls_in("cntr_1", {})
