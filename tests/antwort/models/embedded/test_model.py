from __future__ import annotations

import pytest
from fake_llama_server import FAKE_SERVER_COMMAND, LlamaReply, received_requests

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelFault, ModelRequest, SamplingOptions, TextPiece
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.embedded.generation import bound_schema
from antwort.testing.model import FREE_TEXT_TOOL, WEATHER_TOOL, ModelConformance, collect, fold, make_request

pytestmark = pytest.mark.anyio


class TestEmbedded(ModelConformance):
    """Uses the fake llama.cpp server process."""

    has_usage = False
    is_minimal = True

    @pytest.fixture(autouse=True)
    def _script(self, tmp_path):
        self.script = tmp_path / "reply.json"

    def make(self, reply):
        call = reply.calls[0] if reply.calls else None
        LlamaReply(
            text=reply.text,
            opening=f"```{call.name}\n" if call else "",
            block=call.arguments if call else "",
            is_truncated=reply.reason == "length",
        ).write(self.script)
        return Embedded(Supervisor(self.script, command=FAKE_SERVER_COMMAND))

    def make_failing(self, text):
        LlamaReply(text=text, exits=True).write(self.script)
        return Embedded(Supervisor(self.script, command=FAKE_SERVER_COMMAND))


@pytest.fixture
async def model_and_script(tmp_path):
    script = tmp_path / "reply.json"
    model = Embedded(Supervisor(script, command=FAKE_SERVER_COMMAND))
    try:
        yield model, script
    finally:
        await model.aclose()


async def test_sampling_defaults_and_options_of_the_request(model_and_script):
    model, script = model_and_script
    LlamaReply(text="Hello").write(script)
    await collect(model, make_request())
    items = [read({"role": "user", "content": "Hi"})]
    await collect(model, ModelRequest(model="m", items=items, temperature=0.7, top_p=0.5, max_output_tokens=9))
    sampling = SamplingOptions(seed=7, logit_bias={"5": -100})
    await collect(model, ModelRequest(model="m", items=items, sampling=sampling))
    default, custom, biased = received_requests(script)

    assert (default["temperature"], default["seed"], default["stream"]) == (0.0, 1, True)
    assert "top_p" not in default
    assert (custom["temperature"], custom["top_p"], custom["n_predict"]) == (0.7, 0.5, 9)
    assert (biased["seed"], biased["logit_bias"]) == (7, [[5, -100]])


async def test_with_schema_and_tools_a_grammar_offers_the_choice_and_the_schema_constrains_the_answer(model_and_script):
    model, script = model_and_script
    LlamaReply(opening="```json\n", block='{"a": 1}').write(script)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = ModelRequest(
        model="m",
        items=make_request().items,
        tools=(WEATHER_TOOL, FREE_TEXT_TOOL),
        format=JsonSchemaFormat(name="a", schema=schema),
    )
    answer = fold(await collect(model, request))
    choice, answered = received_requests(script)

    assert answer.text == '{"a": 1}'
    assert "grammar" in choice
    assert answered["json_schema"] == bound_schema(schema)


async def test_code_is_streamed_as_call_arguments(model_and_script):
    model, script = model_and_script
    LlamaReply(text="Let me see.\n", opening="```python\n", block='print("ü")\nx = {}').write(script)
    code = FunctionSpec("python", None, {"type": "object", "properties": {"code": {"type": "string"}}})
    pieces = await collect(model, make_request("Hello", code))
    answer = fold(pieces)

    assert len(pieces) > 6
    assert [call.arguments for call in answer.calls] == ['{"code": "print(\\"ü\\")\\nx = {}"}']
    assert answer.usage.input_tokens == 20
    assert answer.usage.input_tokens_details.cached_tokens == 12
    assert answer.usage.output_tokens == 10


@pytest.mark.parametrize("top_logprobs, entries", [(None, None), (0, 0), (3, 3)])
async def test_logprobs_are_sent_if_requested(model_and_script, top_logprobs, entries):
    model, script = model_and_script
    LlamaReply(text="Hello").write(script)
    request = ModelRequest(model="m", items=make_request().items, top_logprobs=top_logprobs)
    logprobs = [
        entry for piece in await collect(model, request) if isinstance(piece, TextPiece) for entry in piece.logprobs
    ]

    assert [len(entry["top_logprobs"]) for entry in logprobs] == ([] if entries is None else [entries])
    assert "".join(entry["token"] for entry in logprobs) == ("" if entries is None else "Hello")


async def test_a_prompt_that_is_too_long_is_a_400_fault(model_and_script):
    model, script = model_and_script
    LlamaReply(error_status=400).write(script)

    with pytest.raises(ModelFault) as caught:
        await collect(model, make_request())
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
