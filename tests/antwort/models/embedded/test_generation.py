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
    TextPiece,
)
from antwort.models.embedded.generation import Ended, Turn, bounded
from antwort.models.embedded.prompt import SHOWN
from antwort.testing.model import fold

CODE = FunctionSpec("code_interpreter", "Run Python.", {"type": "object", "properties": {"code": {"type": "string"}}})
WEATHER = FunctionSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}}
FORMAT = JsonSchemaFormat(name="total", schema=SCHEMA)


def turn(*tools: FunctionSpec, failed: int = 0, called: bool = False, user: str = "Hi", **more) -> Turn:
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
    return Turn(request, "<prompt>", mint=lambda: "call_1")


def begun(turn: Turn) -> list[str]:
    """The tools that are called whatever the model says."""
    return [piece.name for piece in turn.opening() if isinstance(piece, CallPiece) and piece.name]


def play(turn: Turn, *says: tuple[list[str], Ended]):
    """The whole answer of a model that says these words, and what it was asked for them."""
    pieces, asks = [*turn.opening()], []
    for words, ended in says:
        ask = turn.next()
        assert ask is not None
        asks.append(ask)
        for word in words:
            pieces += turn.read(word)
        pieces += turn.end(ended)
    assert turn.next() is None
    return fold([*pieces, turn.finished()]), asks


def test_words_are_text():
    answer, (ask,) = play(turn(), (["Hello ", "", "there."], Ended(read=10, cached=4, written=3)))

    assert (answer.text, answer.reason) == ("Hello there.", "stop")
    assert (ask.prompt, ask.stop, ask.schema, ask.grammar) == ("<prompt>", (), None, None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert answer.usage.input_tokens_details.cached_tokens == 4


def test_a_fence_of_python_is_a_call_with_the_code_as_json():
    code = ['print("a\\', 'n", {1: 2})\n', "# ü 🎈\tend"]
    opened = Ended(word="```python\n", read=10, written=2)
    answer, (speak, inside) = play(turn(CODE), (["I compute."], opened), (code, Ended(word="\n```", written=9)))

    assert speak.stop == ("```python\n",)
    assert inside.prompt == "<prompt>I compute.```python\n"
    assert inside.stop[0] == "\n```"
    assert (answer.text, answer.reason) == ("I compute.", "calls")
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [
        ("code_interpreter", {"code": "".join(code)})
    ]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 11)


def test_a_fence_with_a_tools_name_is_a_call_held_to_its_schema():
    opened = Ended(word="```get_weather\n")
    answer, (speak, inside) = play(turn(CODE, WEATHER), ([], opened), (['{"city": ', '"Rome"}'], Ended()))

    assert speak.stop == ("```python\n", "```get_weather\n")
    assert inside.schema == WEATHER.parameters
    assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", '{"city": "Rome"}')]
    assert answer.reason == "calls"


def test_an_answer_that_must_be_json_is_held_to_its_schema():
    wanted = JsonSchemaFormat(name="sum", schema=SCHEMA)
    answer, (ask,) = play(turn(format=wanted), (['{"total": 1}'], Ended()))

    assert (ask.prompt, ask.schema) == ("<prompt>```json\n", bounded(SCHEMA))
    assert (answer.text, answer.reason) == ('{"total": 1}', "stop")
    _, (ask,) = play(turn(format=JsonObjectFormat()), (["{}"], Ended()))
    assert ask.schema == {"type": "object"}


def test_a_number_cannot_be_written_for_ever():
    schema = {"anyOf": [{"type": "integer"}, {"type": "integer", "maximum": 9}], "type": "integer"}

    assert bounded(schema) == {
        "minimum": 1 - 2**53,
        "maximum": 2**53 - 1,
        "anyOf": [
            {"minimum": 1 - 2**53, "maximum": 2**53 - 1, "type": "integer"},
            {"minimum": 1 - 2**53, "maximum": 9, "type": "integer"},
        ],
        "type": "integer",
    }


def test_before_a_typed_answer_something_must_be_called_where_code_can_run():
    assert [type(piece) for piece in turn(CODE, format=FORMAT).opening()] == [CallPiece]
    assert [*turn(WEATHER, format=FORMAT).opening()] == []
    named = "Use get_weather."
    assert begun(turn(CODE, WEATHER, format=FORMAT)) == []  # nobody said so
    assert begun(turn(CODE, WEATHER, format=FORMAT, user=named)) == ["get_weather"]  # no files: no data

    files = msgspec.structs.replace(CODE, current_state="In /mnt/data now: a.csv.")
    other = msgspec.structs.replace(WEATHER, name="get_time")
    ask = turn(CODE, WEATHER, other, format=FORMAT, user=f"{named} And get_time.").next()
    assert ask is not None
    assert ask.grammar == 'root ::= "```get_weather\\n" | "```get_time\\n"'
    assert begun(turn(files, WEATHER, format=FORMAT, user=named)) == ["code_interpreter"]


def test_with_tools_and_a_schema_the_model_chooses_between_them():
    wanted = JsonSchemaFormat(name="sum", schema=SCHEMA)
    answer, (choose, inside) = play(
        turn(CODE, called=True, format=wanted), (["```json\n"], Ended(written=2)), (['{"total": 1}'], Ended(written=5))
    )
    assert choose.grammar == 'root ::= "```python\\n" | "```json\\n"'
    assert inside.prompt == "<prompt>```json\n"
    assert (answer.text, answer.calls) == ('{"total": 1}', ())

    answer, (_, inside) = play(
        turn(CODE, called=True, format=wanted), (["```pyth", "on\n"], Ended()), (["1 + 1"], Ended(word="```"))
    )
    assert inside.prompt == "<prompt>```python\n"
    assert (answer.text, [call.arguments for call in answer.calls]) == ("", ['{"code": "1 + 1"}'])


def test_a_call_that_is_required_is_made():
    answer, (ask,) = play(turn(CODE, choice="required"), (["1"], Ended(word="```")))
    assert (ask.prompt, [call.name for call in answer.calls]) == ("<prompt>```python\n", ["code_interpreter"])

    answer, (choose, _) = play(
        turn(CODE, WEATHER, choice="required"), (["```get_weather\n"], Ended()), (["{}"], Ended())
    )
    assert choose.grammar == 'root ::= "```python\\n" | "```get_weather\\n"'
    assert [call.name for call in answer.calls] == ["get_weather"]

    answer, (ask,) = play(turn(CODE, WEATHER, choice=MustCall("get_weather")), (["{}"], Ended()))
    assert (ask.prompt, [call.name for call in answer.calls]) == ("<prompt>```get_weather\n", ["get_weather"])


def test_a_block_that_failed_is_written_anew_with_a_hint_but_not_for_ever():
    answer, (ask,) = play(turn(CODE, failed=1), (["1 / 1"], Ended(word="\n```")))

    assert ask.prompt == "<prompt>```python\n# Done in another way.\n"
    assert json.loads(answer.calls[0].arguments) == {"code": "# Done in another way.\n1 / 1"}
    for failed, begins in ((0, []), (3, [CallPiece])):
        assert [type(piece) for piece in turn(CODE, failed=failed).opening()] == begins
    assert [*turn(WEATHER, failed=1).opening()] == []
    assert [*turn(CODE, failed=1, choice="none").opening()] == []


def test_a_model_that_is_stuck_has_to_answer():
    answer, (ask,) = play(turn(CODE, failed=4), ([" not known."], Ended()))
    assert (ask.prompt, ask.stop) == ("<prompt>The answer is", ())
    assert (answer.text, answer.reason, answer.calls) == ("The answer is not known.", "stop", ())

    answer, (ask,) = play(turn(CODE, failed=4, format=FORMAT), (['{"total": 1}'], Ended()))
    assert (ask.schema, answer.text) == (bounded(SCHEMA), '{"total": 1}')


def test_files_are_looked_at_first_and_then_there_must_be_code():
    files = msgspec.structs.replace(CODE, current_state="In /mnt/data now: a.csv.")
    answer, asks = play(turn(files))
    assert asks == []
    assert answer.reason == "calls"
    assert json.loads(answer.calls[0].arguments) == {"code": SHOWN.look}

    call = {"type": "function_call", "call_id": "c", "name": files.name, "arguments": answer.calls[0].arguments}
    items = [{"role": "user", "content": "Hi"}, call, {"type": "function_call_output", "call_id": "c", "output": "a"}]
    request = ModelRequest(model="m", items=[read(item) for item in items], tools=(files,))
    assert play(Turn(request, "<prompt>"), (["1"], Ended(word="```")))[1][0].prompt == "<prompt>```python\n"
    assert [*turn(files, choice="none").opening()] == []


def test_a_space_behind_the_fence_is_no_indentation():
    opened = Ended(word="```python\n")
    answer, _ = play(turn(CODE), ([], opened), ([" ", "x = 1", " + 1"], Ended(word="\n```")))

    assert json.loads(answer.calls[0].arguments) == {"code": "x = 1 + 1"}


def test_where_no_call_is_allowed_none_is_made():
    answer, (ask,) = play(turn(CODE, choice="none"), (["```python\n1\n```"], Ended()))

    assert ask.stop == ()
    assert (answer.calls, answer.text) == ((), "```python\n1\n```")


@pytest.mark.parametrize("written", [0, 3, 30])
def test_the_limit_on_tokens_holds_over_all_of_an_answer(written):
    answering = turn(CODE, max_output_tokens=10)
    first = answering.next()
    assert first is not None
    assert first.limit == 10
    list(answering.end(Ended(word="```python\n", written=written)))
    second = answering.next()
    assert second is not None
    assert second.limit == max(1, 10 - written)


def test_what_is_cut_off_says_so_and_makes_no_call_whole():
    answer, _ = play(turn(), (["Once"], Ended(cut=True)))
    assert (answer.text, answer.reason) == ("Once", "length")

    answering = turn(CODE)
    pieces = [*answering.opening(), *answering.end(Ended(word="```python\n")), *answering.read("print(")]
    pieces += [*answering.end(Ended(cut=True)), answering.finished()]
    assert [piece.reason for piece in pieces if isinstance(piece, Finished)] == ["length"]
    assert not any(isinstance(piece, TextPiece) for piece in pieces)
    assert [piece.arguments for piece in pieces if isinstance(piece, CallPiece)] == ['{"code": "', "print("]
