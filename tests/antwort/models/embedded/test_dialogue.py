from __future__ import annotations

import json

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelRequest
from antwort.models.embedded.dialogue import EXAMPLES, failures, fences, messages

PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}}
CODE = FunctionSpec("code_interpreter", "Run Python.", PARAMETERS, now="In /mnt/data now: sales.csv.")
WEATHER = FunctionSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def told(items: list[dict], *tools: FunctionSpec, **more) -> list[dict]:
    return messages(ModelRequest(model="m", items=[read(item) for item in items], tools=tools, **more))


USER = {"role": "user", "content": "How many rows?"}
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "code_interpreter",
    "arguments": json.dumps({"code": 'print("1")\nprint(2)'}),
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1\n2"}


def test_the_first_tool_that_takes_code_is_called_by_python():
    other = FunctionSpec("run", "Run something else.", PARAMETERS)

    assert [(fence.word, fence.code) for fence in fences([WEATHER, CODE, other])] == [
        ("get_weather", False),
        ("python", True),
        ("run", False),
    ]


def test_tools_cannot_take_the_words_that_mean_something_else():
    tools = [FunctionSpec(name, None, None) for name in ("json", "python")]

    assert [fence.word for fence in fences(tools)] == ["json_tool", "python_tool"]


def test_without_tools_nothing_is_said_of_them():
    assert told([USER]) == [{"role": "system", "content": "You are a helpful assistant."}, USER]
    assert told([USER], instructions="Be brief.")[0]["content"] == "Be brief."


def test_with_code_the_examples_come_between_the_instructions_and_the_question():
    system, *shown, question = told([USER], CODE)

    assert "```python" in system["content"]
    assert len(shown) == 4 * len(EXAMPLES)
    assert shown[1]["content"].startswith("```python\n")
    assert question["role"] == "user"


def test_what_changes_comes_last():
    one, other = told([USER], CODE), told([{**USER, "content": "Why?"}], CODE)

    assert one[:-1] == other[:-1]
    assert one[-1]["content"] == "How many rows?\nIn /mnt/data now: sales.csv."


def test_calls_are_shown_as_they_are_written_and_results_as_if_the_user_said_them():
    *_, question, call, output = told([USER, CALL, OUTPUT], CODE)

    assert question["content"].startswith("How many rows?\nIn /mnt/data")
    assert call == {"role": "assistant", "content": '```python\nprint("1")\nprint(2)\n```'}
    assert output == {"role": "user", "content": "Output:\n1\n2"}


def test_a_failure_is_shown_with_what_to_do_about_it():
    failed = {**OUTPUT, "output": "Traceback (most recent call last):\nKeyError: 'city'"}
    request = ModelRequest(model="m", items=[read(item) for item in (USER, CALL, failed)], tools=(CODE,))

    assert messages(request)[-1]["content"].startswith("Output:\nTraceback")
    assert messages(request)[-1]["content"].endswith("corrected.")
    assert failures(request) == 1
    assert failures(ModelRequest(model="m", items=[read(item) for item in (USER, CALL, OUTPUT)])) == 0


def test_other_tools_are_described_with_their_arguments_and_called_by_json():
    call = {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city": "Rome"}'}
    output = {"type": "function_call_output", "call_id": "c2", "output": "21 degrees"}
    system, *_, shown, last = told([USER, call, output], WEATHER)

    assert "get_weather" in system["content"]
    assert '```get_weather\n{"city":"…"}\n```' in system["content"]
    assert shown["content"] == '```get_weather\n{"city": "Rome"}\n```'
    assert last["content"] == "Output:\n21 degrees"


def test_arguments_that_are_no_json_are_shown_as_they_are():
    *_, call, _ = told([USER, {**CALL, "arguments": "print(1)"}, OUTPUT], CODE)

    assert call["content"] == "```python\nprint(1)\n```"


def test_neighbours_of_one_role_are_one_turn_and_instructions_come_first():
    items = [{"role": "developer", "content": "Be kind."}, USER, {"role": "user", "content": "And why?"}]

    assert told(items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "How many rows?\n\nAnd why?"},
    ]


def test_a_schema_is_told_because_a_grammar_only_forbids():
    schema = {"type": "object", "properties": {"rows": {"type": "integer", "description": "How many."}}}
    system = told([USER], format=JsonSchemaFormat(name="rows", schema=schema))[0]

    assert '"How many."' in system["content"]


def test_the_examples_are_whole():
    for example in EXAMPLES:
        compile(example.code, "example", "exec")
        assert example.user
        assert example.output
        assert example.answer
