from __future__ import annotations

import json

import msgspec
import pytest

from antwort.api.items import read
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.engine.ports import (
    CallPiece,
    Finished,
    FunctionSpec,
    ModelRequest,
    MustCall,
    SamplingOptions,
    TextPiece,
)
from antwort.models.embedded.generation import CompletionEnd, CompletionRequest, Generation, bound_schema
from antwort.models.embedded.prompt import FEW_SHOTS
from antwort.testing.model import fold

CODE = FunctionSpec("code_interpreter", "Run Python.", {"type": "object", "properties": {"code": {"type": "string"}}})
WEATHER = FunctionSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}}
FORMAT = JsonSchemaFormat(name="total", schema=SCHEMA)


def make_generation(
    *tools: FunctionSpec, failed: int = 0, called: bool = False, user: str = "Hi", **more
) -> Generation:
    history = [{"role": "user", "content": user}]
    if called:
        history += [{"type": "function_call", "call_id": "c", "name": "code_interpreter", "arguments": '{"code": "1"}'}]
        history += [{"type": "function_call_output", "call_id": "c", "output": "1"}]
    for number in range(failed):
        call = {"call_id": f"c{number}", "name": "code_interpreter", "arguments": f'{{"code": "{number}/0"}}'}
        error = 'Traceback (most recent call last):\n  File "<cell 1>", line 1\nZeroDivisionError: division by zero'
        history += [{"type": "function_call", **call}]
        history += [{"type": "function_call_output", "call_id": f"c{number}", "output": error}]
    request = ModelRequest(model="m", items=[read(item) for item in history], tools=tools, **more)
    return Generation(request, "<prompt>", new_call_id=lambda: "call_1")


def first_request(generation: Generation) -> CompletionRequest:
    completion = generation.next_request()
    assert completion is not None
    return completion


def forced_calls(generation: Generation) -> list[str]:
    """The tools whose call starts before the first completion."""
    return [piece.name for piece in generation.initial_pieces() if isinstance(piece, CallPiece) and piece.name]


def run(generation: Generation, *replies: tuple[list[str], CompletionEnd]):
    """The complete answer for these completions, and the requests for them."""
    pieces, completions = [*generation.initial_pieces()], []
    for fragments, end in replies:
        completion = generation.next_request()
        assert completion is not None
        completions.append(completion)
        for fragment in fragments:
            pieces += generation.read(fragment)
        pieces += generation.end(end)
    assert generation.next_request() is None
    return fold([*pieces, generation.finished()]), completions


def test_plain_text():
    answer, (completion,) = run(
        make_generation(), (["Hello ", "", "there."], CompletionEnd(input_tokens=10, cached_tokens=4, output_tokens=3))
    )

    assert (answer.text, answer.reason) == ("Hello there.", "stop")
    assert (completion.prompt, completion.stop, completion.schema, completion.grammar) == ("<prompt>", (), None, None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert answer.usage.input_tokens_details.cached_tokens == 4


def test_stop_sequences_end_the_text():
    generation = make_generation(CODE, sampling=SamplingOptions(stop=("END",)))
    answer, (completion,) = run(generation, (["Hello "], CompletionEnd(stop_word="END", output_tokens=3)))

    assert completion.stop == ("```python\n", "END")
    assert (answer.text, answer.reason, answer.calls) == ("Hello ", "stop", ())
    assert generation.finished().stop_sequence == "END"


def test_a_python_fence_becomes_a_call_with_json_arguments():
    code = ['print("a\\', 'n", {1: 2})\n', "# ü 🎈\tend"]
    opened = CompletionEnd(stop_word="```python\n", input_tokens=10, output_tokens=2)
    answer, (text, block) = run(
        make_generation(CODE), (["I compute."], opened), (code, CompletionEnd(stop_word="\n```", output_tokens=9))
    )

    assert text.stop == ("```python\n",)
    assert block.prompt == "<prompt>I compute.```python\n"
    assert block.stop[0] == "\n```"
    assert (answer.text, answer.reason) == ("I compute.", "calls")
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [
        ("code_interpreter", {"code": "".join(code)})
    ]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 11)


def test_a_tool_fence_becomes_a_call_constrained_by_its_schema():
    opened = CompletionEnd(stop_word="```get_weather\n")
    answer, (text, block) = run(
        make_generation(CODE, WEATHER), ([], opened), (['{"city": ', '"Rome"}'], CompletionEnd())
    )

    assert text.stop == ("```python\n", "```get_weather\n")
    assert block.schema == {**(WEATHER.parameters or {}), "additionalProperties": False}
    assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", '{"city": "Rome"}')]
    assert answer.reason == "calls"


def test_a_json_block_without_a_name_is_a_call_of_the_only_tool():
    answer, (first, second) = run(
        make_generation(WEATHER),
        ([], CompletionEnd(stop_word="```json\n")),
        (['{"city": "Oslo"}'], CompletionEnd()),
    )

    assert "```json\n" in first.stop
    assert second.prompt == "<prompt>```get_weather\n"
    assert answer.calls[0].arguments == '{"city": "Oslo"}'


def test_for_a_json_block_without_a_name_the_model_chooses_the_tool():
    other = FunctionSpec("get_time", "The time.", {"type": "object", "properties": {}})
    answer, (_, choice, arguments) = run(
        make_generation(WEATHER, other),
        ([], CompletionEnd(stop_word="```json\n")),
        (["```get_time\n"], CompletionEnd()),
        (["{}"], CompletionEnd()),
    )

    assert choice.grammar == 'root ::= "```get_weather\\n" | "```get_time\\n"'
    assert arguments.schema == {"additionalProperties": False, "type": "object", "properties": {}}
    assert answer.calls[0].name == "get_time"


@pytest.mark.parametrize("more", [{"called": True}, {"choice": "none"}])
def test_a_json_block_is_an_answer_after_an_output_and_where_no_call_may_be(more):
    completion = first_request(make_generation(WEATHER, **more))

    assert "```json\n" not in completion.stop


@pytest.mark.parametrize(
    "text, stop_word, arguments",
    [
        ('{"city": "Os', '"}```', {"city": "Os"}),
        ('{"city": "Os\\', '"}```', {"city": "Os\\"}),
        ('{"city": "Os\\\\', '"}```', {"city": "Os\\"}),
    ],
)
def test_a_string_that_the_model_takes_for_closed_is_closed(text, stop_word, arguments):
    opened = ([], CompletionEnd(stop_word="```get_weather\n"))
    answer, (_, completion) = run(make_generation(WEATHER), opened, ([text], CompletionEnd(stop_word=stop_word)))

    assert stop_word in completion.stop
    assert json.loads(answer.calls[0].arguments) == arguments


def test_lists_of_commands_are_short_and_arguments_have_no_loops():
    commands = {"type": "array", "items": {"type": "string"}}
    shell = FunctionSpec("shell", "Runs commands.", {"type": "object", "properties": {"commands": commands}})
    generation = make_generation(shell, choice=MustCall("shell"))

    completion = first_request(generation)

    assert completion.schema is not None
    assert completion.schema["properties"]["commands"] == {"maxItems": 4, **commands}
    assert completion.avoids_loops
    answer = first_request(make_generation(format=JsonSchemaFormat(name="any", schema={"properties": {}})))
    assert not answer.avoids_loops
    assert answer.schema == {"properties": {}}


@pytest.mark.parametrize("properties", [None, 5, ["commands"], {"commands": 5}])
def test_parameters_that_are_not_valid_do_not_fail_the_request(properties):
    shell = FunctionSpec("shell", "Runs commands.", {"type": "object", "properties": properties})
    completion = first_request(make_generation(shell, choice=MustCall("shell")))

    assert completion.schema is not None
    assert completion.schema["properties"] == properties


def test_a_json_answer_is_constrained_by_its_schema():
    wanted = JsonSchemaFormat(name="sum", schema=SCHEMA)
    answer, (completion,) = run(make_generation(format=wanted), (['{"total": 1}'], CompletionEnd()))

    assert (completion.prompt, completion.schema) == ("<prompt>```json\n", bound_schema(SCHEMA))
    assert (answer.text, answer.reason) == ('{"total": 1}', "stop")
    _, (completion,) = run(make_generation(format=JsonObjectFormat()), (["{}"], CompletionEnd()))
    assert completion.schema == {"type": "object"}


def test_integers_are_bounded():
    schema = {"anyOf": [{"type": "integer"}, {"type": "integer", "maximum": 9}], "type": "integer"}

    assert bound_schema(schema) == {
        "minimum": 1 - 2**53,
        "maximum": 2**53 - 1,
        "anyOf": [
            {"minimum": 1 - 2**53, "maximum": 2**53 - 1, "type": "integer"},
            {"minimum": 1 - 2**53, "maximum": 9, "type": "integer"},
        ],
        "type": "integer",
    }


def test_objects_are_closed_unless_the_schema_says_otherwise():
    name = {"type": "string"}
    inner = {"type": "object", "properties": {"name": name}}
    schema = {"type": "object", "properties": {"a": inner, "properties": name}}
    given = {"type": "object", "properties": {"name": name}, "additionalProperties": True}

    closed = bound_schema(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"] == {"additionalProperties": False, **inner}
    assert set(closed["properties"]) == {"a", "properties"}
    assert bound_schema(given) == given
    assert bound_schema({"type": "object"}) == {"type": "object"}
    assert bound_schema({"allOf": [inner, inner]}) == {"allOf": [inner, inner]}


def test_before_a_json_answer_a_call_is_forced_if_there_is_a_code_tool():
    assert [type(piece) for piece in make_generation(CODE, format=FORMAT).initial_pieces()] == [CallPiece]
    assert [*make_generation(WEATHER, format=FORMAT).initial_pieces()] == []
    named = "Use get_weather."
    assert forced_calls(make_generation(CODE, WEATHER, format=FORMAT)) == []  # not named by the user
    assert forced_calls(make_generation(CODE, WEATHER, format=FORMAT, user=named)) == [
        "get_weather"
    ]  # named, and there are no files

    files = msgspec.structs.replace(CODE, current_state="In /mnt/data now: a.csv.")
    other = msgspec.structs.replace(WEATHER, name="get_time")
    completion = make_generation(CODE, WEATHER, other, format=FORMAT, user=f"{named} And get_time.").next_request()
    assert completion is not None
    assert completion.grammar == 'root ::= "```get_weather\\n" | "```get_time\\n"'
    assert forced_calls(make_generation(files, WEATHER, format=FORMAT, user=named)) == ["code_interpreter"]


def test_with_tools_and_a_schema_the_model_chooses_by_grammar():
    wanted = JsonSchemaFormat(name="sum", schema=SCHEMA)
    answer, (choice, block) = run(
        make_generation(CODE, called=True, format=wanted),
        (["```json\n"], CompletionEnd(output_tokens=2)),
        (['{"total": 1}'], CompletionEnd(output_tokens=5)),
    )
    assert choice.grammar == 'root ::= "```python\\n" | "```json\\n"'
    assert block.prompt == "<prompt>```json\n"
    assert (answer.text, answer.calls) == ('{"total": 1}', ())

    answer, (_, block) = run(
        make_generation(CODE, called=True, format=wanted),
        (["```pyth", "on\n"], CompletionEnd()),
        (["1 + 1"], CompletionEnd(stop_word="```")),
    )
    assert block.prompt == "<prompt>```python\n"
    assert (answer.text, [call.arguments for call in answer.calls]) == ("", ['{"code": "1 + 1"}'])


def test_required_and_named_tool_choice_force_a_call():
    answer, (completion,) = run(make_generation(CODE, choice="required"), (["1"], CompletionEnd(stop_word="```")))
    assert (completion.prompt, [call.name for call in answer.calls]) == ("<prompt>```python\n", ["code_interpreter"])

    answer, (choice, _) = run(
        make_generation(CODE, WEATHER, choice="required"),
        (["```get_weather\n"], CompletionEnd()),
        (["{}"], CompletionEnd()),
    )
    assert choice.grammar == 'root ::= "```python\\n" | "```get_weather\\n"'
    assert [call.name for call in answer.calls] == ["get_weather"]

    answer, (completion,) = run(
        make_generation(CODE, WEATHER, choice=MustCall("get_weather")), (["{}"], CompletionEnd())
    )
    assert (completion.prompt, [call.name for call in answer.calls]) == ("<prompt>```get_weather\n", ["get_weather"])


def test_a_failed_block_is_repaired_a_limited_number_of_times():
    answer, (completion,) = run(make_generation(CODE, failed=1), (["1 / 1"], CompletionEnd(stop_word="\n```")))

    assert completion.prompt == "<prompt>```python\n# Done in another way.\n"
    assert json.loads(answer.calls[0].arguments) == {"code": "# Done in another way.\n1 / 1"}
    for failed, forced in ((0, []), (3, [CallPiece])):
        assert [type(piece) for piece in make_generation(CODE, failed=failed).initial_pieces()] == forced
    assert [*make_generation(WEATHER, failed=1).initial_pieces()] == []
    assert [*make_generation(CODE, failed=1, choice="none").initial_pieces()] == []


def test_after_too_many_errors_an_answer_is_forced():
    answer, (completion,) = run(make_generation(CODE, failed=4), ([" not known."], CompletionEnd()))
    assert (completion.prompt, completion.stop) == ("<prompt>The answer is", ())
    assert (answer.text, answer.reason, answer.calls) == ("The answer is not known.", "stop", ())

    answer, (completion,) = run(make_generation(CODE, failed=4, format=FORMAT), (['{"total": 1}'], CompletionEnd()))
    assert (completion.schema, answer.text) == (bound_schema(SCHEMA), '{"total": 1}')


def test_the_file_listing_is_forced_first_and_then_code():
    files = msgspec.structs.replace(CODE, current_state="In /mnt/data now: a.csv.")
    answer, completions = run(make_generation(files))
    assert completions == []
    assert answer.reason == "calls"
    assert json.loads(answer.calls[0].arguments) == {"code": FEW_SHOTS.listing_code}

    call = {"type": "function_call", "call_id": "c", "name": files.name, "arguments": answer.calls[0].arguments}
    items = [{"role": "user", "content": "Hi"}, call, {"type": "function_call_output", "call_id": "c", "output": "a"}]
    request = ModelRequest(model="m", items=[read(item) for item in items], tools=(files,))
    assert (
        run(Generation(request, "<prompt>"), (["1"], CompletionEnd(stop_word="```")))[1][0].prompt
        == "<prompt>```python\n"
    )
    assert [*make_generation(files, choice="none").initial_pieces()] == []


def test_a_space_after_the_fence_is_removed():
    opened = CompletionEnd(stop_word="```python\n")
    answer, _ = run(make_generation(CODE), ([], opened), ([" ", "x = 1", " + 1"], CompletionEnd(stop_word="\n```")))

    assert json.loads(answer.calls[0].arguments) == {"code": "x = 1 + 1"}


def test_tool_choice_none_makes_no_call():
    answer, (completion,) = run(make_generation(CODE, choice="none"), (["```python\n1\n```"], CompletionEnd()))

    assert completion.stop == ()
    assert (answer.calls, answer.text) == ((), "```python\n1\n```")


@pytest.mark.parametrize("output_tokens", [0, 3, 30])
def test_max_output_tokens_covers_all_completions(output_tokens):
    generation = make_generation(CODE, max_output_tokens=10)
    first = generation.next_request()
    assert first is not None
    assert first.max_tokens == 10
    list(generation.end(CompletionEnd(stop_word="```python\n", output_tokens=output_tokens)))
    second = generation.next_request()
    assert second is not None
    assert second.max_tokens == max(1, 10 - output_tokens)


def test_a_truncated_completion_ends_with_length_and_an_incomplete_call():
    answer, _ = run(make_generation(), (["Once"], CompletionEnd(is_truncated=True)))
    assert (answer.text, answer.reason) == ("Once", "length")

    generation = make_generation(CODE)
    pieces = [
        *generation.initial_pieces(),
        *generation.end(CompletionEnd(stop_word="```python\n")),
        *generation.read("print("),
    ]
    pieces += [*generation.end(CompletionEnd(is_truncated=True)), generation.finished()]
    assert [piece.reason for piece in pieces if isinstance(piece, Finished)] == ["length"]
    assert not any(isinstance(piece, TextPiece) for piece in pieces)
    assert [piece.arguments for piece in pieces if isinstance(piece, CallPiece)] == ['{"code": "', "print("]
