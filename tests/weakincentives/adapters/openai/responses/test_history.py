from __future__ import annotations

import json
from typing import Any

from weakincentives.adapters.openai.responses.history import RequestHistory, encode_json, has_calls_in
from weakincentives.adapters.openai.wire import message
from weakincentives.adapters.turn import ClientRunCall, HistoryItem, ModelReply, ToolCall, ToolOutput
from weakincentives.prompt import ToolResult
from weakincentives.runtime.slices import SliceView

HEAD = b'{"model":"m"}'


def items_of(history: RequestHistory) -> list[Any]:
    body = json.loads(history.body(HEAD))
    assert body["model"] == "m"
    return body["input"]


def events(*items: HistoryItem) -> SliceView[HistoryItem]:
    return SliceView(items)


def test_items_are_repeated_unchanged_and_in_order():
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "x_future": {"a": [1.50, None, 2**70]}}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    history = RequestHistory([message("user", "Hi.")])
    reply = ModelReply(calls=(ToolCall("call_1", "f"),), items=(reasoning, call))
    history.append_new(events(reply, ToolOutput("call_1", "f", "done", success=True)))

    assert items_of(history) == [
        {"type": "message", "role": "user", "content": "Hi."},
        reasoning,
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ]


def test_retried_request_appends_nothing():
    history = RequestHistory([message("user", "Hi.")])
    seen = events(ModelReply(items=({"type": "message", "id": "msg_1"},)))
    history.append_new(seen)
    once = history.body(HEAD)
    history.append_new(seen)

    assert history.body(HEAD) == once


def test_only_new_items_are_encoded():
    history = RequestHistory([])
    view: SliceView[HistoryItem] = SliceView()
    for at in range(3):
        view = view.appended(ModelReply(items=({"id": at},)))
        history.append_new(view)

    assert items_of(history) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_client_run_call_is_answered_in_its_own_form():
    call = ClientRunCall(
        call_id="call_1",
        name="shell",
        capability="shell",
        provider="openai",
        params=None,
        run=lambda context: ToolResult(""),
        format_output=lambda output: {"type": "shell_call_output", "text": output.text},
    )
    history = RequestHistory([])
    history.append_new(events(ModelReply(calls=(call,)), ToolOutput("call_1", "shell", "ok", success=True)))

    assert items_of(history) == [{"type": "shell_call_output", "text": "ok"}]


def test_lone_surrogate_is_escaped():
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


def test_calls_in_a_scrubbed_container_become_text():
    other = {**CODE, "id": "ci_2", "container_id": "cntr_2"}
    history = RequestHistory([message("user", "Hi."), REASONING, CODE, CODE, REASONING, other, SHELL, OUTPUT])

    assert history.scrub_container("cntr_1") == 3
    kept = items_of(history)
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
    assert b"cntr_1" not in history.body(HEAD)
    assert history.scrub_container("cntr_1") == 0


def test_scrubbed_text_has_no_image_data():
    seen = {
        **CODE,
        "outputs": [{"type": "image", "url": "data:image/png;base64,AAAA"}, {"type": "logs", "logs": "5\ud800"}],
    }
    history = RequestHistory([seen])
    history.scrub_container("cntr_1")

    (event,) = items_of(history)
    assert "base64" not in event["content"]
    assert '"logs":"5' in event["content"]


def test_scrub_without_matching_calls_changes_nothing():
    history = RequestHistory([message("user", "Hi."), REASONING])
    before = history.body(HEAD)

    assert history.scrub_container("cntr_1") == 0
    assert history.body(HEAD) == before


def test_calls_in_a_container_are_found_by_its_id():
    code = {"type": "code_interpreter_call", "container_id": "cntr_1"}
    shell = {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "cntr_2"}}
    text = {"type": "message", "content": [{"type": "output_text", "text": "cntr_3"}]}

    assert [has_calls_in(f"cntr_{at}", {"output": [code, shell, text]}) for at in (1, 2, 3)] == [True, True, False]
    assert not has_calls_in("cntr_1", {})


def test_replaced_history_takes_the_outputs_of_open_calls():
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    history = RequestHistory([message("user", "Hi.")])
    view = SliceView[HistoryItem]().appended(ModelReply(items=(call,), calls=(ToolCall("c1", "f"),)))
    history.append_new(view)
    sealed = {"type": "compaction", "encrypted_content": "sealed"}

    history.replace([sealed, call])
    history.append_new(view.appended(ToolOutput("c1", "f", "done", success=True)))
    history.append_items([message("user", "More.")])

    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    assert history.items == items_of(history) == [sealed, call, output, message("user", "More.")]
    assert history.size == len(history.body(b"{}")) - len(history.items) + 1 - len(b'{,"input":[]}')
    assert history.encrypted_size == len(encode_json(sealed))


def test_containers_of_calls():
    code = {"type": "code_interpreter_call", "container_id": "cntr_1"}
    shell = {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "cntr_2"}}

    assert RequestHistory([code, shell, code, message("user", "cntr_3")]).containers() == {"cntr_1", "cntr_2"}
