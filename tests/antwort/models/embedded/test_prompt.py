from __future__ import annotations

import json
import subprocess
import sys

import pytest

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.api.tools import GrammarFormat
from antwort.engine.ports import FREE_TEXT, FunctionSpec, ModelRequest
from antwort.models.embedded.prompt import (
    FEW_SHOTS,
    consecutive_errors,
    fenced_tools,
    file_listing_step,
    is_repeating,
    repair_comment,
    schema_hint,
    to_prompt_messages,
)

PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}}
CODE = FunctionSpec("code_interpreter", "Run Python.", PARAMETERS, current_state="In /mnt/data now: sales.csv.")
NO_FILES = FunctionSpec("code_interpreter", "Run Python.", PARAMETERS)
WEATHER = FunctionSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def prompt(items: list[dict], *tools: FunctionSpec, **more) -> list[dict]:
    return to_prompt_messages(ModelRequest(model="m", items=[read(item) for item in items], tools=tools, **more))


USER = {"role": "user", "content": "How many rows?"}
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "code_interpreter",
    "arguments": json.dumps({"code": 'print("1")\nprint(2)'}),
}
FAILED = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\nKeyError: 'city'"
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1\n2"}


def test_the_first_tool_with_a_code_parameter_uses_a_python_fence():
    other = FunctionSpec("run", "Run something else.", PARAMETERS)

    assert [(tool.word, tool.is_code) for tool in fenced_tools([WEATHER, CODE, other])] == [
        ("get_weather", False),
        ("python", True),
        ("run", False),
    ]


def test_tools_named_json_or_python_get_another_fence_word():
    tools = [FunctionSpec(name, None, None) for name in ("json", "python")]

    assert [tool.word for tool in fenced_tools(tools)] == ["json_tool", "python_tool"]


def test_a_tool_of_a_server_is_called_without_the_label_unless_two_have_the_name():
    names = ["shop__price", "shop__stock", "store__stock", "plain"]
    tools = fenced_tools([FunctionSpec(name, None, None) for name in names])

    assert [tool.word for tool in tools] == ["price", "shop__stock", "store__stock", "plain"]

    call = {"type": "function_call", "call_id": "c1", "name": "shop__price", "arguments": "{}"}
    *_, block, _ = prompt([USER, call, OUTPUT], FunctionSpec("shop__price", "The price.", None))
    assert block["content"] == "```price\n{}\n```"


def test_without_a_code_tool_there_are_examples_of_calls():
    commands = {"type": "object", "properties": {"commands": {"type": "array", "items": {"type": "string"}}}}
    shell = FunctionSpec("run", "Run commands.", commands)

    def blocks(*tools: FunctionSpec) -> str:
        return "\n".join(message["content"] for message in prompt([USER], *tools) if message["role"] == "assistant")

    assert "```run\n" in blocks(shell)
    assert "```find_book\n" not in blocks(shell)
    assert "```find_book\n" in blocks(WEATHER)
    assert "```run\n" not in blocks(WEATHER)
    assert "```run\n" not in blocks(shell, CODE)
    assert blocks() == ""


def test_a_failed_command_is_followed_by_the_retry_prompt():
    call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"commands": ["ls"]}'}
    failed = {**OUTPUT, "output": "no such file\n(exit code 2)"}

    *_, last = prompt([USER, call, failed], FunctionSpec("shell", "Run commands.", PARAMETERS))

    assert last["content"].endswith(
        "(exit code 2)\nThat failed. Do it in another way: write the whole block again, corrected."
    )


def test_the_example_of_a_call_has_the_required_arguments():
    properties = {"lines": {"type": "array"}, "name": {"type": "string"}, "limit": {"type": "integer"}}
    tool = FunctionSpec("sort", "Sort.", {"type": "object", "properties": properties, "required": ["lines", "name"]})

    assert '```sort\n{"lines":["…"],"name":"…"}\n```' in prompt([USER], tool)[0]["content"]


@pytest.mark.parametrize(
    "schema, shown",
    [
        ({"properties": {"city": {}}, "required": None}, '{"city":"…"}'),
        ({"properties": {"city": {}}, "required": 5}, '{"city":"…"}'),
        ({"properties": {"city": {}, "day": {}}, "required": [{}, "day"]}, '{"day":"…"}'),
        ({"properties": ["city"]}, "{}"),
        ({"properties": 5}, "{}"),
    ],
)
def test_a_schema_that_is_not_valid_has_no_properties_or_required_ones(schema, shown):
    tool = FunctionSpec("weather", "The weather.", {"type": "object", **schema})

    assert f"```weather\n{shown}\n```" in prompt([USER], tool)[0]["content"]


def test_the_required_arguments_are_not_searched_for_each_argument():
    """A server of MCP may list a hundred thousand of both."""

    class Required(list):
        def __contains__(self, name):
            raise AssertionError(f"a search for {name}")

    schema = {"type": "object", "properties": {"city": {}, "day": {}}, "required": Required(["day"])}

    assert '{"day":"…"}' in prompt([USER], FunctionSpec("weather", "The weather.", schema))[0]["content"]


def test_the_grammar_of_a_custom_tool_is_described():
    grammar = GrammarFormat("regex", "[0-9]+")
    system = prompt([USER], FunctionSpec("dial", "Dial.", FREE_TEXT, free_text=True, grammar=grammar))[0]["content"]

    assert "Dial.\nThe input must be allowed by this regex grammar:\n[0-9]+\n```dial" in system


def test_without_tools_the_prompt_has_no_tool_instructions():
    assert prompt([USER]) == [{"role": "system", "content": "You are a helpful assistant."}, USER]
    assert prompt([USER], instructions="Be brief.")[0]["content"] == "Be brief."


def test_examples_are_between_instructions_and_question():
    system, *examples, question = prompt([USER], CODE)

    assert "```python" in system["content"]
    steps = sum(len(example.steps) + (example.listing_output is not None) for example in FEW_SHOTS.examples)
    assert len(examples) == 2 * steps + 2 * len(FEW_SHOTS.examples)
    assert examples[1]["content"].startswith("```python\n")
    assert question["role"] == "user"


def test_file_examples_are_included_only_if_there_are_files():
    assert len(prompt([USER], NO_FILES)) == len(prompt([USER], NO_FILES, WEATHER)) < len(prompt([USER], CODE, WEATHER))
    assert "look()" not in json.dumps(prompt([USER], NO_FILES))


def test_the_prefix_is_constant_for_the_prompt_cache():
    one, other = prompt([USER], CODE), prompt([{**USER, "content": "Why?"}], CODE)

    assert one[:-1] == other[:-1]
    assert one[-1]["content"] == "How many rows?\nIn /mnt/data now: sales.csv."


def test_calls_are_fenced_blocks_and_outputs_are_user_messages():
    *_, question, call, output = prompt([USER, CALL, OUTPUT], CODE)

    assert question["content"].startswith("How many rows?\nIn /mnt/data")
    assert call == {"role": "assistant", "content": '```python\nprint("1")\nprint(2)\n```'}
    assert output == {"role": "user", "content": "Output:\n1\n2"}


def test_an_error_output_is_followed_by_the_retry_prompt():
    failed = {**OUTPUT, "output": FAILED}
    request = ModelRequest(model="m", items=[read(item) for item in (USER, CALL, failed)], tools=(CODE,))

    assert to_prompt_messages(request)[-1]["content"].startswith("Output:\nTraceback")
    assert to_prompt_messages(request)[-1]["content"].endswith("corrected.")
    assert consecutive_errors(request) == ["KeyError: 'city'"]
    assert consecutive_errors(ModelRequest(model="m", items=[read(item) for item in (USER, CALL, OUTPUT)])) == []


@pytest.mark.parametrize(
    "output, error",
    [
        ("SyntaxError: invalid syntax\n[files written: /mnt/data/a]", "SyntaxError: invalid syntax"),
        (FAILED.replace("KeyError: 'city'", "ValueError: two\nlines"), "an error"),
        ("ValueError    7", None),
        ('Traceback (most recent call last):\n  File "/srv/app.py", line 1\nKeyError: 1', None),
        ("", None),
    ],
)
def test_only_tracebacks_of_the_block_are_errors(output, error):
    request = ModelRequest(model="m", items=[read(item) for item in (USER, CALL, {**OUTPUT, "output": output})])

    assert consecutive_errors(request) == ([] if error is None else [error])


def test_errors_of_other_tools_are_not_repaired():
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    items = [read(item) for item in (USER, call, {**OUTPUT, "output": FAILED})]

    assert consecutive_errors(ModelRequest(model="m", items=items, tools=(CODE, WEATHER))) == []


def test_other_tools_are_described_and_called_with_json():
    call = {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city": "Rome"}'}
    output = {"type": "function_call_output", "call_id": "c2", "output": "21 degrees"}
    system, *_, block, last = prompt([USER, call, output], WEATHER)

    assert "get_weather" in system["content"]
    assert '```get_weather\n{"city":"…"}\n```' in system["content"]
    assert block["content"] == '```get_weather\n{"city": "Rome"}\n```'
    assert last["content"].startswith("Output:\n21 degrees\n\nIf this tells the answer")


def test_invalid_json_arguments_are_shown_verbatim():
    *_, call, _ = prompt([USER, {**CALL, "arguments": "print(1)"}, OUTPUT], CODE)

    assert call["content"] == "```python\nprint(1)\n```"


def test_adjacent_messages_of_one_role_are_merged_and_instructions_come_first():
    items = [{"role": "developer", "content": "Be kind."}, USER, {"role": "user", "content": "And why?"}]

    assert prompt(items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "How many rows?\n\nAnd why?"},
    ]


SCHEMA = {"type": "object", "properties": {"rows": {"type": "integer", "description": "How many."}}}
FORMAT = JsonSchemaFormat(name="rows", schema=SCHEMA)


def test_the_last_message_describes_the_json_format():
    system, last = prompt([USER], format=FORMAT)

    assert last["content"].endswith('like this:\n```json\n{\n  "rows": integer (How many.)\n}\n```')
    assert system["content"] == "You are a helpful assistant."  # the prefix stays constant for the cache


def test_the_json_format_is_described_only_when_an_answer_may_come_next():
    failed = {**OUTPUT, "output": FAILED}

    assert "```json" in prompt([USER, CALL, OUTPUT], CODE, format=FORMAT)[-1]["content"]
    assert "```json" not in prompt([USER], CODE, format=FORMAT)[-1]["content"]
    assert "```json" not in prompt([USER, CALL, failed], CODE, format=FORMAT)[-1]["content"]


@pytest.mark.parametrize(
    "schema, hint",
    [
        ({"type": "string"}, "string"),
        ({"enum": ["a", 1, None]}, '"a" or 1 or null'),
        ({"type": "array", "items": {"type": "number", "description": "In metres."}}, "list of number (In metres.)"),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}, "description": "One."}, '{\n  "a": boolean\n}'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '{"anyOf":[{"type":"string"},{"type":"null"}]}'),
        (
            {"properties": {"a": True, "b": {"properties": 1, "enum": 2}}},
            '{\n  "a": true,\n  "b": {"properties":1,"enum":2}\n}',
        ),
        ({"type": ["string", "null"]}, '{"type":["string","null"]}'),
    ],
)
def test_schema_hint(schema, hint):
    assert schema_hint(schema) == hint


def test_the_examples_are_complete_and_compile():
    compile(FEW_SHOTS.listing_code, "look", "exec")
    for example in FEW_SHOTS.examples:
        for step in example.steps:
            compile(step.code, "example", "exec")
            assert step.output
        assert example.user
        assert example.answer


def test_the_file_listing_prints_file_heads_and_variables(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n5,6\n7,8\n")
    (tmp_path / "b.bin").write_bytes(b"\x00\x01")
    before = "import os\nkept = [1, 2]\ncount = 7\n_hidden = 3\n"
    code = before + FEW_SHOTS.listing_code.replace("/mnt/data", str(tmp_path))
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert (
        printed
        == f"{tmp_path}/a.csv\n  x,y\n  1,2\n  3,4\n  5,6\n{tmp_path}/b.bin\nvariable kept = list\nvariable count = 7\n"
    )


LISTING = {**CALL, "arguments": json.dumps({"code": FEW_SHOTS.listing_code})}


@pytest.mark.parametrize(
    "items, tool, step",
    [
        ([USER], CODE, "due"),
        ([USER], NO_FILES, "none"),
        ([USER], WEATHER, "none"),
        ([], CODE, "none"),
        ([USER, LISTING, OUTPUT], CODE, "just_done"),
        ([USER, LISTING, OUTPUT, USER], CODE, "none"),
        ([USER, CALL, OUTPUT], CODE, "none"),
    ],
)
def test_the_file_listing_is_due_once_before_other_calls(items, tool, step):
    assert file_listing_step(ModelRequest(model="m", items=[read(item) for item in items], tools=(tool,))) == step


@pytest.mark.parametrize(
    "items, repeating",
    [
        ([USER], False),
        ([USER, CALL, OUTPUT], False),
        ([USER, CALL, OUTPUT, CALL, OUTPUT], True),
        ([USER, CALL, OUTPUT, USER, CALL, OUTPUT], False),
        ([USER, *(part for n in range(8) for part in ({**CALL, "arguments": f'{{"code": "{n}"}}'}, OUTPUT))], True),
    ],
)
def test_a_repeated_call_or_too_many_calls_are_repeating(items, repeating):
    assert is_repeating(ModelRequest(model="m", items=[read(item) for item in items], tools=(CODE,))) is repeating


@pytest.mark.parametrize(
    "error, comment",
    [
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte", "latin-1"),
        ("json.decoder.JSONDecodeError: Extra data", "one by one"),
        ("KeyError: 'temp'", "names and the separator"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/*.csv'", "glob.glob"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'", "that were printed"),
        ("NameError: name 'plt' is not defined", "import matplotlib.pyplot as plt"),
        ("NameError: name 'sales' is not defined", "defined first"),
        ("ValueError: whatever", "another way"),
    ],
)
def test_repair_comment_by_error(error, comment):
    assert comment in repair_comment(error)


def test_library_frames_are_removed_from_tracebacks():
    traceback = """rows: 3
Traceback (most recent call last):
  File "<cell 2>", line 1, in <module>
    pd.read_csv("*.csv")
    ^^^^^^^^^^^^^^^^^^^^
  File "/opt/stack/pandas/io/common.py", line 954, in get_handle
    handle = open(handle, ioargs.mode)
             ^^^^^^^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: '*.csv'
"""
    last = prompt([USER, CALL, {**OUTPUT, "output": traceback}], CODE)[-1]["content"]

    assert "/opt/stack" not in last
    assert "ioargs" not in last
    assert 'rows: 3\nTraceback (most recent call last):\n  File "<cell 2>", line 1' in last
    assert "\nFileNotFoundError: [Errno 2]" in last
