from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat, ReasoningOptions
from antwort.api.tools import GrammarFormat
from antwort.engine.ports import FunctionSpec, ModelRequest, MustCall
from antwort.models.replay_hosted_calls import OUTPUT_NOT_STORED
from antwort.models.responses.request import ReplayReasoning, to_body, to_compact_body, to_input

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA", "created_by": "x", "new_field": [1]}
HELLO = {"type": "message", "role": "user", "content": "Hi"}
LOOK_TOOL = FunctionSpec("look", "Looks.", {"type": "object"}, strict=True)
FREE_TEXT_TOOL = FunctionSpec("sql", None, None, free_text=True)


def body(**request):
    return to_body(ModelRequest(model="client-name", items=[read(HELLO)], **request), model="upstream-name")


def to_items(*raws, reasoning: ReplayReasoning = "sealed"):
    return list(to_input([read(raw) for raw in raws], reasoning))


def test_fields_that_are_not_set_are_not_sent():
    assert body() == {
        "model": "upstream-name",
        "input": [HELLO],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_ids_and_status_are_removed():
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [],
        "phase": "final_answer",
    }
    call = {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "a",
        "name": "f",
        "arguments": "{}",
    }

    assert to_items({"role": "user", "content": "Hi"}, message, call) == [
        HELLO,
        {"type": "message", "role": "assistant", "content": [], "phase": "final_answer"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ]


def test_replay_reasoning():
    sealed = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    plain = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": None}

    assert to_items(sealed, plain) == [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]
    assert len(to_items(sealed, plain, reasoning="all")) == 2
    assert to_items(sealed, plain, reasoning="drop") == []


def test_hosted_calls_become_function_calls_and_unknown_items_are_dropped():
    code = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": "1", "outputs": []}
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "s", "action": {}}
    shell_output = {"type": "shell_call_output", "id": "sho_1", "call_id": "s", "output": []}

    items = to_items(code, shell, shell_output, {"type": "brand_new"}, {"type": "item_reference", "id": "x"})

    assert [(one["type"], one["call_id"]) for one in items] == [
        ("function_call", "ci_1"),
        ("function_call_output", "ci_1"),
        ("function_call", "s"),
        ("function_call_output", "s"),
    ]


def test_a_hosted_call_that_was_cut_off_gets_an_output():
    """Of local calls, a client answers those that it got whole; it answers no call that was interrupted."""
    cut = {"type": "shell_call", "id": "sh_1", "call_id": "a", "status": "incomplete", "action": {"commands": ["ls"]}}
    local = {"type": "local_shell_call", "id": "lsh_1", "call_id": "b", "action": {"type": "exec", "command": ["ls"]}}
    output = {"type": "local_shell_call_output", "id": "b", "output": "a.txt"}

    made = to_items(cut, local, output)

    assert [(one["type"], one["call_id"], one.get("output")) for one in made] == [
        ("function_call", "a", None),
        ("function_call_output", "a", OUTPUT_NOT_STORED),
        ("function_call", "b", None),
        ("function_call_output", "b", "a.txt"),
    ]


def test_tools_and_tool_choice():
    assert body(tools=[LOOK_TOOL, FREE_TEXT_TOOL])["tools"] == [
        {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "sql"},
    ]
    assert body(tools=[LOOK_TOOL], choice=MustCall("look"))["tool_choice"] == {"type": "function", "name": "look"}
    assert body(tools=[FREE_TEXT_TOOL], choice=MustCall("sql"))["tool_choice"] == {"type": "custom", "name": "sql"}
    assert body(tools=[LOOK_TOOL], choice="required", parallel=False)["parallel_tool_calls"] is False
    assert "tool_choice" not in body(tools=[LOOK_TOOL])


def test_options():
    options = body(
        instructions="Be kind.",
        reasoning=ReasoningOptions(effort="low", summary="auto"),
        format=JsonSchemaFormat(name="a", schema={"type": "object"}),
        verbosity="low",
        temperature=0.0,
        max_output_tokens=64,
        top_logprobs=2,
    )

    assert options["instructions"] == "Be kind."
    assert options["reasoning"] == {"effort": "low", "summary": "auto"}
    assert options["text"] == {
        "format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}},
        "verbosity": "low",
    }
    assert (options["temperature"], options["max_output_tokens"], options["top_logprobs"]) == (0.0, 64, 2)
    assert options["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert body(top_logprobs=0)["include"] == options["include"]
    assert body()["include"] == ["reasoning.encrypted_content"]


def test_a_grammar_is_sent():
    spec = FunctionSpec("sql", None, None, free_text=True, grammar=GrammarFormat("regex", "a+"))

    assert body(tools=[spec])["tools"] == [
        {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}}
    ]


@pytest.mark.parametrize("name", ["stream", "store", "include", "temperature"])
def test_the_token_count_request_contains_only_input_fields(name):
    request = ModelRequest(model="client-name", items=[read(HELLO)], tools=[LOOK_TOOL], temperature=0.5)

    assert name not in to_body(request, model="upstream-name", stream=False)


def test_file_data_is_sent_without_file_ids():
    parts = [
        {"type": "input_image", "file_id": "file-1", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_id": "file-2", "file_data": "data:,x", "filename": "x"},
        {"type": "input_image", "image_url": "https://x.example"},
    ]
    without_ids = [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_data": "data:,x", "filename": "x"},
        {"type": "input_image", "image_url": "https://x.example"},
    ]
    message = {"type": "message", "role": "user", "content": parts}
    output = {"type": "function_call_output", "call_id": "a", "output": parts}

    assert list(to_input([read(message), read(output)], "drop")) == [
        {"type": "message", "role": "user", "content": without_ids},
        {"type": "function_call_output", "call_id": "a", "output": without_ids},
    ]


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_compaction_items_are_sent_unchanged():
    given = {**HELLO, "id": "msg_1", "status": "completed"}

    for reasoning in ("sealed", "all", "drop"):
        assert to_items(given, COMPACTION, given, reasoning=reasoning) == [HELLO, COMPACTION, HELLO]


def test_compact_threshold_and_trigger_are_sent():
    assert body(compact_threshold=8000) == {
        **body(),
        "context_management": [{"type": "compaction", "compact_threshold": 8000}],
    }
    assert body(compaction_trigger=True) == {**body(), "input": [HELLO, {"type": "compaction_trigger"}]}


def test_the_token_count_request_has_neither_threshold_nor_trigger():
    request = ModelRequest(model="client-name", items=[read(HELLO)], compact_threshold=8000, compaction_trigger=True)

    assert to_body(request, model="upstream-name", stream=False) == {"model": "upstream-name", "input": [HELLO]}


def test_the_compact_request_has_model_input_and_instructions():
    sealed = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    items = [read(raw) for raw in (HELLO, sealed, COMPACTION)]
    request = ModelRequest(model="client-name", items=items, tools=[LOOK_TOOL], temperature=0.5)
    expected = {
        "model": "upstream-name",
        "input": [HELLO, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}, COMPACTION],
    }

    assert to_compact_body(request, model="upstream-name") == expected
    assert to_compact_body(request, model="upstream-name", reasoning="drop")["input"] == [HELLO, COMPACTION]
    instructed = ModelRequest(model="client-name", items=items, instructions="Be kind.")
    assert to_compact_body(instructed, model="upstream-name") == {**expected, "instructions": "Be kind."}


def test_the_output_limit_is_not_below_the_smallest_of_the_api():
    assert body(max_output_tokens=1)["max_output_tokens"] == 16
    assert body(max_output_tokens=17)["max_output_tokens"] == 17
