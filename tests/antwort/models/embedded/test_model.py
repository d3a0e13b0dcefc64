from __future__ import annotations

import pytest
from fake_llama_server import COMMAND, Reply, asked

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import (
    FunctionSpec,
    ModelFault,
    ModelRequest,
    TextPiece,
)
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.embedded.generation import bounded
from antwort.testing.model import FREE, WEATHER, ModelConformance, asking, collect, fold

pytestmark = pytest.mark.anyio


class TestEmbedded(ModelConformance):
    """Against a process that listens as llama.cpp does."""

    has_usage = False
    plain = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.script = tmp_path / "reply.json"

    def make(self, reply):
        call = reply.calls[0] if reply.calls else None
        Reply(
            text=reply.text,
            opens=f"```{call.name}\n" if call else "",
            inside=call.arguments if call else "",
            cut=reply.reason == "length",
        ).write(self.script)
        return Embedded(Supervisor(self.script, command=COMMAND))

    def make_failing(self, text):
        Reply(text=text, die=True).write(self.script)
        return Embedded(Supervisor(self.script, command=COMMAND))


@pytest.fixture
async def stage(tmp_path):
    script = tmp_path / "reply.json"
    model = Embedded(Supervisor(script, command=COMMAND))
    try:
        yield model, script
    finally:
        await model.aclose()


async def test_it_is_the_likeliest_words_with_a_fixed_seed_unless_a_request_says_otherwise(stage):
    model, script = stage
    Reply(text="Hello").write(script)
    await collect(model, asking())
    items = [read({"role": "user", "content": "Hi"})]
    await collect(model, ModelRequest(model="m", items=items, temperature=0.7, top_p=0.5, max_output_tokens=9))
    plain, told = asked(script)

    assert (plain["temperature"], plain["seed"], plain["stream"]) == (0.0, 1, True)
    assert "top_p" not in plain
    assert (told["temperature"], told["top_p"], told["n_predict"]) == (0.7, 0.5, 9)


async def test_an_answer_with_a_schema_and_tools_is_chosen_by_grammar_and_held_to_the_schema(stage):
    model, script = stage
    Reply(opens="```json\n", inside='{"a": 1}').write(script)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = ModelRequest(
        model="m", items=asking().items, tools=(WEATHER, FREE), format=JsonSchemaFormat(name="a", schema=schema)
    )
    answer = fold(await collect(model, request))
    choose, inside = asked(script)

    assert answer.text == '{"a": 1}'
    assert "grammar" in choose
    assert inside["json_schema"] == bounded(schema)


async def test_code_comes_as_it_is_written(stage):
    model, script = stage
    Reply(text="Let me see.\n", opens="```python\n", inside='print("ü")\nx = {}').write(script)
    code = FunctionSpec("python", None, {"type": "object", "properties": {"code": {"type": "string"}}})
    pieces = await collect(model, asking("Hello", code))
    answer = fold(pieces)

    assert len(pieces) > 6
    assert [call.arguments for call in answer.calls] == ['{"code": "print(\\"ü\\")\\nx = {}"}']
    assert answer.usage.input_tokens == 20
    assert answer.usage.input_tokens_details.cached_tokens == 12
    assert answer.usage.output_tokens == 10


@pytest.mark.parametrize("asked_for, shown", [(None, None), (0, 0), (3, 3)])
async def test_how_likely_the_words_were_is_told_to_those_who_ask(stage, asked_for, shown):
    model, script = stage
    Reply(text="Hello").write(script)
    request = ModelRequest(model="m", items=asking().items, top_logprobs=asked_for)
    told = [
        entry for piece in await collect(model, request) if isinstance(piece, TextPiece) for entry in piece.logprobs
    ]

    assert [len(entry["top_logprobs"]) for entry in told] == ([] if shown is None else [shown])
    assert "".join(entry["token"] for entry in told) == ("" if shown is None else "Hello")


async def test_a_prompt_that_is_too_long_is_the_callers_fault(stage):
    model, script = stage
    Reply(refuse=400).write(script)

    with pytest.raises(ModelFault) as caught:
        await collect(model, asking())
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
