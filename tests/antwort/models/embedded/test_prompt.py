from __future__ import annotations

import json
import subprocess
import sys

import pytest

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelRequest
from antwort.models.embedded.prompt import SHOWN, failures, fences, is_stuck, looking, messages, repair_of, shape

PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}}
CODE = FunctionSpec("code_interpreter", "Run Python.", PARAMETERS, current_state="In /mnt/data now: sales.csv.")
NO_FILES = FunctionSpec("code_interpreter", "Run Python.", PARAMETERS)
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
FAILED = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\nKeyError: 'city'"
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
    steps = sum(len(example.steps) + (example.look is not None) for example in SHOWN.examples)
    assert len(shown) == 2 * steps + 2 * len(SHOWN.examples)
    assert shown[1]["content"].startswith("```python\n")
    assert question["role"] == "user"


def test_examples_of_files_are_shown_where_there_are_files():
    assert len(told([USER], NO_FILES)) == len(told([USER], NO_FILES, WEATHER)) < len(told([USER], CODE, WEATHER))
    assert "look()" not in json.dumps(told([USER], NO_FILES))


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
    failed = {**OUTPUT, "output": FAILED}
    request = ModelRequest(model="m", items=[read(item) for item in (USER, CALL, failed)], tools=(CODE,))

    assert messages(request)[-1]["content"].startswith("Output:\nTraceback")
    assert messages(request)[-1]["content"].endswith("corrected.")
    assert failures(request) == ["KeyError: 'city'"]
    assert failures(ModelRequest(model="m", items=[read(item) for item in (USER, CALL, OUTPUT)])) == []


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
def test_only_what_a_block_ended_with_is_a_failure(output, error):
    request = ModelRequest(model="m", items=[read(item) for item in (USER, CALL, {**OUTPUT, "output": output})])

    assert failures(request) == ([] if error is None else [error])


def test_what_other_tools_failed_with_is_not_mended_by_python():
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    items = [read(item) for item in (USER, call, {**OUTPUT, "output": FAILED})]

    assert failures(ModelRequest(model="m", items=items, tools=(CODE, WEATHER))) == []


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


SCHEMA = {"type": "object", "properties": {"rows": {"type": "integer", "description": "How many."}}}
FORMAT = JsonSchemaFormat(name="rows", schema=SCHEMA)


def test_the_shape_of_the_answer_is_told_because_a_grammar_only_forbids():
    system, last = told([USER], format=FORMAT)

    assert last["content"].endswith('like this:\n```json\n{\n  "rows": integer (How many.)\n}\n```')
    assert system["content"] == "You are a helpful assistant."  # what differs comes last, so that the rest is kept


def test_the_shape_is_told_where_an_answer_may_come_and_not_before():
    failed = {**OUTPUT, "output": FAILED}

    assert "```json" in told([USER, CALL, OUTPUT], CODE, format=FORMAT)[-1]["content"]
    assert "```json" not in told([USER], CODE, format=FORMAT)[-1]["content"]
    assert "```json" not in told([USER, CALL, failed], CODE, format=FORMAT)[-1]["content"]


@pytest.mark.parametrize(
    "schema, said",
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
def test_a_schema_is_said_in_few_words(schema, said):
    assert shape(schema) == said


def test_the_examples_are_whole():
    compile(SHOWN.look, "look", "exec")
    for example in SHOWN.examples:
        for step in example.steps:
            compile(step.code, "example", "exec")
            assert step.output
        assert example.user
        assert example.answer


def test_the_look_prints_how_each_file_begins_and_which_variables_there_are(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n5,6\n7,8\n")
    (tmp_path / "b.bin").write_bytes(b"\x00\x01")
    before = "import os\nkept = [1, 2]\ncount = 7\n_hidden = 3\n"
    look = before + SHOWN.look.replace("/mnt/data", str(tmp_path))
    printed = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout

    assert (
        printed
        == f"{tmp_path}/a.csv\n  x,y\n  1,2\n  3,4\n  5,6\n{tmp_path}/b.bin\nvariable kept = list\nvariable count = 7\n"
    )


LOOK = {**CALL, "arguments": json.dumps({"code": SHOWN.look})}


@pytest.mark.parametrize(
    "items, tool, when",
    [
        ([USER], CODE, "now"),
        ([USER], NO_FILES, "no"),
        ([USER], WEATHER, "no"),
        ([], CODE, "no"),
        ([USER, LOOK, OUTPUT], CODE, "just"),
        ([USER, LOOK, OUTPUT, USER], CODE, "no"),
        ([USER, CALL, OUTPUT], CODE, "no"),
    ],
)
def test_files_are_looked_at_once_before_anything_else(items, tool, when):
    assert looking(ModelRequest(model="m", items=[read(item) for item in items], tools=(tool,))) == when


@pytest.mark.parametrize(
    "items, stuck",
    [
        ([USER], False),
        ([USER, CALL, OUTPUT], False),
        ([USER, CALL, OUTPUT, CALL, OUTPUT], True),
        ([USER, CALL, OUTPUT, USER, CALL, OUTPUT], False),
        ([USER, *(part for n in range(8) for part in ({**CALL, "arguments": f'{{"code": "{n}"}}'}, OUTPUT))], True),
    ],
)
def test_a_model_that_makes_the_same_call_again_is_stuck(items, stuck):
    assert is_stuck(ModelRequest(model="m", items=[read(item) for item in items], tools=(CODE,))) is stuck


@pytest.mark.parametrize(
    "error, begin",
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
def test_an_error_has_its_repair(error, begin):
    assert begin in repair_of(error)


def test_the_frames_of_libraries_are_not_told():
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
    last = told([USER, CALL, {**OUTPUT, "output": traceback}], CODE)[-1]["content"]

    assert "/opt/stack" not in last
    assert "ioargs" not in last
    assert 'rows: 3\nTraceback (most recent call last):\n  File "<cell 2>", line 1' in last
    assert "\nFileNotFoundError: [Errno 2]" in last
