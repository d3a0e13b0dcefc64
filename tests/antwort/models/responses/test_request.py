from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat, ReasoningOptions
from antwort.api.tools import GrammarFormat
from antwort.engine.ports import FunctionSpec, ModelRequest, MustCall
from antwort.models.responses.request import ReplayReasoning, to_body, to_input

HELLO = {"type": "message", "role": "user", "content": "Hi"}
LOOK = FunctionSpec("look", "Looks.", {"type": "object"}, strict=True)
FREE = FunctionSpec("sql", None, None, free_text=True)


def body(**request):
    return to_body(ModelRequest(model="ours", items=[read(HELLO)], **request), model="theirs")


def sent(*raws, reasoning: ReplayReasoning = "sealed"):
    return list(to_input([read(raw) for raw in raws], reasoning))


def test_what_is_not_asked_for_is_not_sent():
    assert body() == {
        "model": "theirs",
        "input": [HELLO],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_ids_are_ours_and_stay_here():
    said = {
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

    assert sent({"role": "user", "content": "Hi"}, said, call) == [
        HELLO,
        {"type": "message", "role": "assistant", "content": [], "phase": "final_answer"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ]


def test_reasoning_goes_back_sealed_whole_or_not_at_all():
    sealed = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    plain = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": None}

    assert sent(sealed, plain) == [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]
    assert len(sent(sealed, plain, reasoning="all")) == 2
    assert sent(sealed, plain, reasoning="drop") == []


def test_hosted_calls_are_retold_and_the_unknown_is_left_out():
    code = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": "1", "outputs": []}
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "s", "action": {}}
    shown = {"type": "shell_call_output", "id": "sho_1", "call_id": "s", "output": []}

    retold = sent(code, shell, shown, {"type": "brand_new"}, {"type": "item_reference", "id": "x"})

    assert [(one["type"], one["call_id"]) for one in retold] == [
        ("function_call", "ci_1"),
        ("function_call_output", "ci_1"),
        ("function_call", "s"),
        ("function_call_output", "s"),
    ]


def test_tools_and_choices():
    assert body(tools=[LOOK, FREE])["tools"] == [
        {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "sql"},
    ]
    assert body(tools=[LOOK], choice=MustCall("look"))["tool_choice"] == {"type": "function", "name": "look"}
    assert body(tools=[FREE], choice=MustCall("sql"))["tool_choice"] == {"type": "custom", "name": "sql"}
    assert body(tools=[LOOK], choice="required", parallel=False)["parallel_tool_calls"] is False
    assert "tool_choice" not in body(tools=[LOOK])


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


def test_a_grammar_goes_along():
    spec = FunctionSpec("sql", None, None, free_text=True, grammar=GrammarFormat("regex", "a+"))

    assert body(tools=[spec])["tools"] == [
        {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}}
    ]


@pytest.mark.parametrize("name", ["stream", "store", "include", "temperature"])
def test_counting_asks_for_the_input_alone(name):
    request = ModelRequest(model="ours", items=[read(HELLO)], tools=[LOOK], temperature=0.5)

    assert name not in to_body(request, model="theirs", stream=False)


def test_the_data_of_files_goes_along_and_their_ids_do_not():
    parts = [
        {"type": "input_image", "file_id": "file-1", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_id": "file-2", "file_data": "data:,x", "filename": "x"},
        {"type": "input_image", "image_url": "https://x.example"},
    ]
    sent = [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_data": "data:,x", "filename": "x"},
        {"type": "input_image", "image_url": "https://x.example"},
    ]
    message = {"type": "message", "role": "user", "content": parts}
    output = {"type": "function_call_output", "call_id": "a", "output": parts}

    assert list(to_input([read(message), read(output)], "drop")) == [
        {"type": "message", "role": "user", "content": sent},
        {"type": "function_call_output", "call_id": "a", "output": sent},
    ]
